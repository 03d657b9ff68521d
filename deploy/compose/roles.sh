#!/bin/sh
# The postgres image runs this once, when the database is new: the role that serves, beside the one that owns.
set -e
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --set password="$APP_PASSWORD" <<'SQL'
CREATE ROLE tranche_app LOGIN PASSWORD :'password';
SQL
