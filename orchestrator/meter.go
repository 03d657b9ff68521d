package orchestrator

import (
	"reflect"
	"sync/atomic"

	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Leading is what a node reports while it leads.
type Leading struct {
	Epoch       int64 // of the lease
	LeaderTasks []inspect.TaskPulse
}

// Leading returns nil while the node does not lead.
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

func (l *Leading) pulses() []inspect.TaskPulse {
	if l == nil {
		return nil
	}
	return l.LeaderTasks
}

// Stats is a reading of a node's counters since its start: one field for each of [core.Counters], with the same name.
type Stats struct {
	Claims       int64 `json:"claims"`       // claim transactions that found work
	EmptyClaims  int64 `json:"empty_claims"` // that found none
	Slices       int64 `json:"slices"`       // slices claimed
	Requests     int64 `json:"requests"`     // requests in the stream
	Republished  int64 `json:"republished"`  // publishes retried
	Postponed    int64 `json:"postponed"`    // slices that could not be published, released for a while
	Unreachable  int64 `json:"unreachable"`  // times nothing was claimed, since the NATS server sent no heartbeat
	Splits       int64 `json:"splits"`       // slices cut because they were too large for a message, or for the node
	Commits      int64 `json:"commits"`      // recording transactions
	Replies      int64 `json:"replies"`      // messages recorded
	Slots        int64 `json:"slots"`        // slots recorded
	Stale        int64 `json:"stale"`        // messages of a superseded or closed slice: they had no effect
	Duplicates   int64 `json:"duplicates"`   // slots of items with an earlier answer
	Quarantined  int64 `json:"quarantined"`
	Expired      int64 `json:"expired"`  // slices past their deadline
	Extended     int64 `json:"extended"` // deadlines moved: the request was not yet delivered to a service
	Released     int64 `json:"released"` // slices of dead sessions and lost streams reissued
	SessionsLost int64 `json:"sessions_lost"`
	Buried       int64 `json:"buried"`    // dead letters stored
	Exhausted    int64 `json:"exhausted"` // removed messages that JetStream no longer delivers
	Requeued     int64 `json:"requeued"`  // dead letters sent again

	Fetches       int64 `json:"fetches"`        // chunks processed by the node itself
	FetchesFailed int64 `json:"fetches_failed"` // that failed entirely, or omitted items
	Fetching      int64 `json:"fetching"`       // in progress now
	Hung          int64 `json:"hung"`           // abandoned calls of fetchers that have not returned
	OddSlots      int64 `json:"odd_slots"`      // slots from fetchers for unrequested items or duplicates
	RecordedAgain int64 `json:"recorded_again"` // retried commits of fetched results

	Flushes      int64 `json:"flushes"`       // requests for collectors
	FlushedOps   int64 `json:"flushed_ops"`   // operations that succeeded
	FailedOps    int64 `json:"failed_ops"`    // tries of operations that failed
	StaleFlushes int64 `json:"stale_flushes"` // flushes that returned too late: they had no effect
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
