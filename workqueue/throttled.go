package workqueue

import "slices"

// ThrottledCodes returns the error codes with which services refuse work because it is too much at the moment, as
// docs/protocol.md tells authors of services. Such items are retried without an attempt lost, and a pace learns a
// rate from them.
func ThrottledCodes() []string {
	return []string{"throttled", "throttling", "too_many_requests", "rate_limited", "rate_limit_exceeded", "429", "busy",
		"overloaded", "quota_exceeded"}
}

// Throttled reports whether a code is one of [ThrottledCodes].
func Throttled(code string) bool { return slices.Contains(ThrottledCodes(), code) }
