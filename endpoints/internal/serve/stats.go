package serve

import (
	"sync/atomic"
	"time"

	"github.com/tranchehq/tranche/endpoints/internal/consume"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// stats counts what an endpoint has done since Run.
type stats struct {
	chunks, items, errors      atomic.Int64
	redelivered, givenUp, dead atomic.Int64
	busy                       atomic.Int64 // nanoseconds from the delivery of a chunk to its last acknowledgement
	latency                    latency
}

// Add counts a chunk of which items were worked on, and answered ones answered: a stage of a flow may answer none.
func (s *stats) Add(items, answered, errors int, took time.Duration) {
	s.chunks.Add(1)
	s.items.Add(int64(answered))
	s.errors.Add(int64(errors))
	s.busy.Add(int64(took))
	s.latency.add(time.Now(), items, answered, took)
}

// Came counts a request, or a reply to a flow, by which delivery it is.
func (s *stats) Came(delivered uint64) {
	if delivered > 1 {
		s.redelivered.Add(1)
	}
}

// Failed counts what speaks for a chunk in the end, if anything does.
func (s *stats) Failed(failure *wire.SlotError) {
	if failure != nil && failure.Code == wire.CodeDeliveries {
		s.givenUp.Add(1)
	}
}

// Status is the "data" of an endpoint in a $SRV.STATS answer.
type Status struct {
	Chunks      int64      `json:"chunks"`
	Processed   int64      `json:"processed"`    // items
	Errors      int64      `json:"errors"`       // items of those that got an error slot
	InFlight    int        `json:"in_flight"`    // chunks held
	Average     int64      `json:"avg_per_item"` // nanoseconds
	Rate        float64    `json:"rate"`         // items a second, in the last minute
	P50         int64      `json:"p50"`          // nanoseconds an item, in the last minute
	P99         int64      `json:"p99"`
	Concurrency int        `json:"concurrency"`
	Each        bool       `json:"each"` // concurrency is of items
	Lane        bool       `json:"lane"`
	State       wire.State `json:"state"`
	Reason      string     `json:"reason,omitempty"` // of StateWaiting, or what is denied
	Redelivered int64      `json:"redelivered"`
	GivenUp     int64      `json:"given_up"`
	Dead        int64      `json:"dead"`
	Stages      int        `json:"stages"` // 0 when it is not a flow
	Rebinds     int64      `json:"rebinds"`
}

// Status says what the endpoint has done, and what it is doing.
func (e *Server) Status() Status {
	pace := e.Stats.latency.pace(time.Now())
	all := Status{
		Chunks: e.Stats.chunks.Load(), Processed: e.Stats.items.Load(), Errors: e.Stats.errors.Load(), InFlight: e.Held(),
		Rate: pace.rate, P50: int64(pace.p50), P99: int64(pace.p99), Concurrency: e.Slots.Len(), Each: e.ByItem,
		Lane: e.lane(), State: wire.StateListening, Redelivered: e.Stats.redelivered.Load(),
		GivenUp: e.Stats.givenUp.Load(), Dead: e.Stats.dead.Load(), Stages: e.Stages,
	}
	if all.Processed > 0 {
		all.Average = e.Stats.busy.Load() / all.Processed
	}
	for _, p := range append([]*consume.Puller{e.Work}, e.More...) {
		all.Rebinds += p.Life.Rebinds.Load()
		if state, reason := p.Life.State(); state != wire.StateListening && all.State != wire.StateDraining {
			all.State, all.Reason = state, reason
		}
	}
	if all.Reason == "" {
		all.Reason = e.Host.Outbox.Perms.Reason(e.Name)
	}
	return all
}

// lane reports whether calls are read apart from chunks. Until a node has made the consumer for them they come with
// these.
func (e *Server) lane() bool {
	state, _ := e.Calls.Life.State()
	return state == wire.StateListening
}
