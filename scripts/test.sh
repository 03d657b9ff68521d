#!/usr/bin/env bash
# Runs go test and retries failures: test.sh GOTESTSUM 'PACKAGES' FLAGS...
#
# After all tests, each failed one is retried alone, up to twice. If it then passes, flaky.txt records it, with the
# output of its first run. The run fails if a test fails three times, on a data race, a panic or a leak found at the end
# of a package, or if more than three tests are flaky.
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
    echo "This package failed after its tests: check for leaks, such as goroutines or processes left running." >&2
    exit 1
fi
grep -E '\.Test[^/ ]*: ' "$report" >>flaky.txt
if [[ $(grep -cE '\.Test[^/ ]*: [0-9]+ runs' flaky.txt) -gt 3 ]]; then
    echo "More than three tests passed only when retried; see flaky.txt." >&2
    exit 1
fi
