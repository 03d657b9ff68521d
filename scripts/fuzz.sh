#!/usr/bin/env bash
# Runs every fuzz test for a time, one at a time: fuzz.sh 10s
set -euo pipefail

cd "$(dirname "$0")/.."
grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
    sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r name; do
        echo "== ${file%/*} $name"
        # An input that is merely interesting is not worth a minute of making it smaller.
        go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" -fuzzminimizetime 10x "${file%/*}" </dev/null
    done
done
