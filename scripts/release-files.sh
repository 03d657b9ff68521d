#!/usr/bin/env bash
# Generates completions, man pages and a sample config file for a release: release-files.sh DIR VERSION
set -euo pipefail

dir=$1
cd "$(dirname "$0")/.."
rm -rf "$dir"
mkdir -p "$dir/completions" "$dir/man.gz"
tranche=$dir/tranche
GOOS="" GOARCH="" VERSION=$2 scripts/build.sh "$tranche"
"$tranche" completion bash >"$dir/completions/tranche.bash"
"$tranche" completion zsh >"$dir/completions/_tranche"
"$tranche" completion fish >"$dir/completions/tranche.fish"
"$tranche" man "$dir/man"
"$tranche" config >"$dir/tranche.yaml"
for page in "$dir"/man/*; do
    gzip -9n <"$page" >"$dir/man.gz/$(basename "$page").gz"
done
rm "$tranche"
