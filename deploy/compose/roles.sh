#!/bin/sh
# The postgres image runs this once, for a new database. It creates the role that serves; the owner exists.
set -e
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --set password="$APP_PASSWORD" <<'SQL'
CREATE ROLE tranche_app LOGIN PASSWORD :'password';
SQL
