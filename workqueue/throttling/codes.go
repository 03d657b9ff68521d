// Package throttling knows the error codes with which services say that they refuse work because it is too much at the
// moment. docs/protocol.md has them for authors of services.
//
// The store and the controller of the pace both go by them: the one tries such items again without holding it against
// them, the other learns a rate. What either makes of it is not this package's job. It has no state and is safe for
// concurrent use.
package throttling

import "slices"

// Codes returns the codes.
func Codes() []string {
	return []string{"throttled", "throttling", "too_many_requests", "rate_limited", "rate_limit_exceeded", "429", "busy",
		"overloaded", "quota_exceeded"}
}

// Is reports whether a code is one of them.
func Is(code string) bool { return slices.Contains(Codes(), code) }
