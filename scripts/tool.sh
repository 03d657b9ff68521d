#!/usr/bin/env bash
# Prints the path of a Go program at a version, building it into .tools if missing:
#
#   tool.sh helm.sh/helm/v3/cmd/helm@v3.22.0
set -euo pipefail

package=${1%@*}
version=${1#*@}
name=$package
while [[ ${name##*/} == cmd || ${name##*/} =~ ^v[0-9]+$ ]]; do name=${name%/*}; done
name=${name##*/}
cd "$(dirname "$0")/.."
tools=$PWD/.tools
tool=$tools/$name-$version

if [[ ! -x $tool ]]; then
    mkdir -p "$tools"
    building=$(mktemp -d "$tools/building.XXXX")
    trap 'rm -rf "$building"' EXIT
    echo "Building $name $version into .tools; the first time takes a few minutes." >&2
    # With the flags of the Makefile, the standard library is compiled once.
    env -u GOOS -u GOARCH GOBIN="$building" go install "$1" >&2
    mv "$building"/* "$tool"
fi
echo "$tool"
