#!/usr/bin/env bash
# Looks for known vulnerabilities in what the program is made of. If the database of govulncheck cannot be reached, that
# is a failure: GOVULNDB names a mirror, as for the tool itself.
set -euo pipefail

cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev}
if [[ $database == http* ]] && ! curl --silent --fail --max-time 15 --output /dev/null "$database/index/db.json"; then
    echo "No look for vulnerabilities: $database cannot be reached. Name a mirror by GOVULNDB." >&2
    exit 1
fi
tool=$(scripts/tool.sh golang.org/x/vuln/cmd/govulncheck@v1.9.0)
exec "$tool" -db "$database" ./...
