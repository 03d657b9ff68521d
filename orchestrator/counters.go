package orchestrator

import "sync/atomic"

// counters is what a node counts over its life. They go into its session's row with every heartbeat.
type counters struct {
	claims, emptyClaims, slices, requests atomic.Int64
	republished, postponed, splits        atomic.Int64
	unreachable                           atomic.Int64
	commits, replies, slots               atomic.Int64
	stale, duplicates, quarantined        atomic.Int64
	expired, extended, released           atomic.Int64
	sessionsLost                          atomic.Int64
	buried, exhausted, requeued           atomic.Int64
	fetches, fetchesFailed, oddSlots      atomic.Int64
	hung, recordedAgain                   atomic.Int64
	flushes, flushedOps, failedOps        atomic.Int64
	staleFlushes                          atomic.Int64
}
