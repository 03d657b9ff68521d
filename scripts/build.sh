#!/usr/bin/env bash
# Builds a program as releases have it: static, without paths, with its version, so that the same source makes the same
# bytes wherever it stands. GOOS and GOARCH say for what.
#
#   build.sh OUT [PACKAGE]
#
# VERSION, COMMIT and DATE say what it is; without them git does. .goreleaser.yaml has the same flags.
set -euo pipefail

out=$(realpath -m "$1")
package=${2:-./cmd/tranche}
cd "$(dirname "$0")/.."
version=${VERSION-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
commit=${COMMIT-$(git rev-parse HEAD 2>/dev/null || true)}
date=${DATE-$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || true)}
echo "compiling ${out##*/}; the first time takes minutes" >&2
CGO_ENABLED=0 GOFLAGS='' exec go build -trimpath -buildvcs=false -o "$out" \
    -ldflags "-s -w -X main.version=$version -X main.commit=$commit -X main.date=$date" "$package"
