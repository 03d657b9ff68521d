#!/usr/bin/env bash
# Checks for known vulnerabilities with govulncheck. Fails if its database is unreachable; GOVULNDB sets a mirror.
set -euo pipefail

cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev}
if [[ $database == http* ]] && ! curl --silent --fail --max-time 15 --output /dev/null "$database/index/db.json"; then
    echo "Vulnerabilities were not checked: $database is unreachable. Set GOVULNDB to a mirror." >&2
    exit 1
fi
tool=$(scripts/tool.sh golang.org/x/vuln/cmd/govulncheck@v1.9.0)
exec "$tool" -db "$database" ./...
