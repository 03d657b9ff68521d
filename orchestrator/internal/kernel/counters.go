package kernel

import "sync/atomic"

// Counters is what a node counts over its life. They go into its session's row with every heartbeat.
type Counters struct {
	Claims, EmptyClaims, Slices, Requests atomic.Int64
	Republished, Postponed, Splits        atomic.Int64
	Unreachable                           atomic.Int64
	Commits, Replies, Slots               atomic.Int64
	Stale, Duplicates, Quarantined        atomic.Int64
	Expired, Extended, Released           atomic.Int64
	SessionsLost                          atomic.Int64
	Buried, Exhausted, Requeued           atomic.Int64
	Fetches, FetchesFailed, OddSlots      atomic.Int64
	Hung, RecordedAgain                   atomic.Int64
	Flushes, FlushedOps, FailedOps        atomic.Int64
	StaleFlushes                          atomic.Int64
}
