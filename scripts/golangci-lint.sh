#!/usr/bin/env bash
# Prints the path of golangci-lint in the given version, and builds it into .tools first when it is not there:
# golangci-lint.sh v2.15.0
set -euo pipefail

version=$1
cd "$(dirname "$0")/.."
tools=$PWD/.tools
tool=$tools/golangci-lint-$version

# is_version reports whether a program is golangci-lint in that version.
is_version() { [[ $("$1" version 2>/dev/null) == *" version ${version#v} "* ]]; }

if [[ ! -x $tool ]]; then
    mkdir -p "$tools"
    installed=$(command -v golangci-lint || echo "$(go env GOPATH)/bin/golangci-lint")
    if [[ -x $installed ]] && is_version "$installed"; then
        ln -sf "$installed" "$tool"
    else
        echo "Building golangci-lint $version into .tools; this takes a few minutes, once." >&2
        GOBIN=$tools go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version" >&2
        mv "$tools/golangci-lint" "$tool"
    fi
fi
echo "$tool"
