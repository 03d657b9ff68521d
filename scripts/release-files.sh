#!/usr/bin/env bash
# Writes what releases have beside the program, by the program itself: completions, man pages and a sample of the config
# file. release-files.sh DIR
set -euo pipefail

dir=$1
cd "$(dirname "$0")/.."
rm -rf "$dir"
mkdir -p "$dir/completions" "$dir/man.gz"
tranche=$dir/tranche
version=$(git describe --tags --abbrev=0 2>/dev/null || echo dev)
CGO_ENABLED=0 GOOS='' GOARCH='' go build -trimpath -buildvcs=false -o "$tranche" \
    -ldflags "-s -w -X main.version=$version -X main.date=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%d --format=%cd)" ./cmd/tranche
"$tranche" completion bash >"$dir/completions/tranche.bash"
"$tranche" completion zsh >"$dir/completions/_tranche"
"$tranche" completion fish >"$dir/completions/tranche.fish"
"$tranche" man "$dir/man"
"$tranche" config >"$dir/tranche.yaml"
for page in "$dir"/man/*; do
    gzip -9n <"$page" >"$dir/man.gz/$(basename "$page").gz"
done
rm "$tranche"
