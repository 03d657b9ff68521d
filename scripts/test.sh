#!/usr/bin/env bash
# Runs go test, and what failed again: test.sh GOTESTSUM 'PACKAGES' FLAGS...
#
# A test that fails runs again up to twice, alone, when all others have ended. One that then passes is no failure of the
# change: flaky.txt names it, with what its first run printed. A test that fails three times, a data race, a panic, a
# leak found at the end of a package, and more than three tests in flaky.txt fail the run.
set -euo pipefail

gotestsum=$1 packages=$2
shift 2
cd "$(dirname "$0")/.."
[[ $packages == *[![:space:]]* ]] || exit 0
report=$(mktemp) log=$(mktemp)
trap 'rm -f "$report" "$log"' EXIT

"$gotestsum" --no-color --format pkgname-and-test-fails --format-icons text --hide-summary skipped --packages "$packages" --rerun-fails=2 \
    --rerun-fails-max-failures 3 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
    --rerun-fails-report "$report" -- "$@" | tee "$log"
[[ -s $report ]] || exit 0
awk '/^=== Failed$/ { kept = "" } { kept = kept $0 "\n" } END { printf "%s", kept }' "$log" >>flaky.txt
if grep '\.: ' "$report" >&2; then
    echo "This package failed at its end, after its tests: look for what they left behind." >&2
    exit 1
fi
grep -E '\.Test[^/ ]*: ' "$report" >>flaky.txt
if [[ $(grep -cE '\.Test[^/ ]*: [0-9]+ runs' flaky.txt) -gt 3 ]]; then
    echo "More than three tests passed only when they ran again; flaky.txt has them." >&2
    exit 1
fi
