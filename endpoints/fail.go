package endpoints

import (
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fail returns an error that a handler may return, or wrap, to fail an item for good: trying it again would not help. A
// HandleList handler that returns it has failed all items that are not answered.
// The code groups errors in lists and re-runs: keep it short and the same for the same cause, of A-Z a-z 0-9 _ . -, at
// most 64 characters. The message is cut at 2 KiB.
func Fail(code, format string, args ...any) error {
	return wire.Fail(code, format, args...)
}

// Retry returns an error like Fail's which says that trying again could help: a time-out, a locked row, a busy host.
func Retry(code, format string, args ...any) error {
	return wire.Retry(code, format, args...)
}
