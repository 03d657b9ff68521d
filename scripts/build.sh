#!/usr/bin/env bash
# Builds a program as a release does: static, without paths, reproducible from any directory.
#
#   build.sh OUT [PACKAGE]
#
# GOOS and GOARCH select the target. VERSION, COMMIT and DATE default to git's. Keep the flags as in .goreleaser.yaml.
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
