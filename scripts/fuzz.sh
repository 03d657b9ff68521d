#!/usr/bin/env bash
# Runs each fuzz test for the given time, one after another: fuzz.sh 10s
set -euo pipefail

cd "$(dirname "$0")/.."
grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
    sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r name; do
        echo "== ${file%/*} $name"
        # Do not spend a minute minimizing inputs that are merely interesting.
        go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" -fuzzminimizetime 10x "${file%/*}" </dev/null
    done
done
