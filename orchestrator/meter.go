package orchestrator

import (
	"reflect"
	"sync/atomic"

	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Leading is what a node says of its leading.
type Leading struct {
	Epoch       int64 // of the lease
	LeaderTasks []inspect.TaskPulse
}

// Leading returns what there is to say while this node leads; nil when it does not.
func (n *Node) Leading() *Leading {
	lease := n.lease.Load()
	if lease == nil {
		return nil
	}
	l := &Leading{Epoch: lease.Epoch, LeaderTasks: make([]inspect.TaskPulse, 0, len(n.tasks))}
	for _, d := range n.tasks {
		l.LeaderTasks = append(l.LeaderTasks, d.pulse())
	}
	return l
}

// pulses is nil while the node does not lead.
func (l *Leading) pulses() []inspect.TaskPulse {
	if l == nil {
		return nil
	}
	return l.LeaderTasks
}

// Stats is a reading of a node's counters since its start: a field for each of [core.Counters], of the same name.
type Stats struct {
	Claims       int64 `json:"claims"`       // claim transactions that brought work
	EmptyClaims  int64 `json:"empty_claims"` // that did not
	Slices       int64 `json:"slices"`       // slices claimed
	Requests     int64 `json:"requests"`     // requests in the stream
	Republished  int64 `json:"republished"`  // publishes retried
	Postponed    int64 `json:"postponed"`    // slices that could not be published, given back for a while
	Unreachable  int64 `json:"unreachable"`  // times nothing was claimed, since the NATS server gave no heartbeat
	Splits       int64 `json:"splits"`       // slices cut because they were too much for a message, or for the node
	Commits      int64 `json:"commits"`      // recording transactions
	Replies      int64 `json:"replies"`      // messages recorded
	Slots        int64 `json:"slots"`        // slots taken
	Stale        int64 `json:"stale"`        // messages of a superseded or closed slice: they touched nothing
	Duplicates   int64 `json:"duplicates"`   // slots of items answered before
	Quarantined  int64 `json:"quarantined"`
	Expired      int64 `json:"expired"`  // slices past their deadline
	Extended     int64 `json:"extended"` // deadlines moved: no service had been handed the request
	Released     int64 `json:"released"` // slices of dead sessions and lost streams reissued
	SessionsLost int64 `json:"sessions_lost"`
	Buried       int64 `json:"buried"`    // dead letters taken in
	Exhausted    int64 `json:"exhausted"` // messages removed that JetStream delivers no more
	Requeued     int64 `json:"requeued"`  // dead letters sent again

	Fetches       int64 `json:"fetches"`        // chunks that the node has worked on itself
	FetchesFailed int64 `json:"fetches_failed"` // that failed as a whole, or in what they left out
	Fetching      int64 `json:"fetching"`       // that it works on now
	Hung          int64 `json:"hung"`           // calls of fetchers that were given up and have not come back
	OddSlots      int64 `json:"odd_slots"`      // of fetchers, for items that were not asked for or came twice
	RecordedAgain int64 `json:"recorded_again"` // commits retried, with what was fetched

	Flushes      int64 `json:"flushes"`       // requests for collectors
	FlushedOps   int64 `json:"flushed_ops"`   // operations that succeeded
	FailedOps    int64 `json:"failed_ops"`    // tries of operations that did not
	StaleFlushes int64 `json:"stale_flushes"` // flushes that came back too late: they touched nothing
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	s := Stats{Fetching: int64(n.fetching.AtWork())}
	counters, stats := reflect.ValueOf(&n.core.Stats).Elem(), reflect.ValueOf(&s).Elem()
	for field, counter := range counters.Fields() {
		stats.FieldByName(field.Name).SetInt(counter.Addr().Interface().(*atomic.Int64).Load())
	}
	return s
}
