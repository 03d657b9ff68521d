package serve

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

type stats struct {
	chunks, items, errors      atomic.Int64
	redelivered, givenUp, dead atomic.Int64
	busy                       atomic.Int64 // nanoseconds from a chunk's delivery to its last acknowledgement
	latency                    latency
}

// Add counts a chunk and its answered items: a stage of a flow may answer none.
func (s *stats) Add(items, answered, errors int, took time.Duration) {
	s.chunks.Add(1)
	s.items.Add(int64(answered))
	s.errors.Add(int64(errors))
	s.busy.Add(int64(took))
	s.latency.add(time.Now(), items, answered, took)
}

// Came counts a redelivery.
func (s *stats) Came(delivered uint64) {
	if delivered > 1 {
		s.redelivered.Add(1)
	}
}

// Failed counts a chunk's failure if it is CodeDeliveries.
func (s *stats) Failed(failure *wire.SlotError) {
	if failure != nil && failure.Code == wire.CodeDeliveries {
		s.givenUp.Add(1)
	}
}

// Status is the "data" of an endpoint in $SRV.STATS.
type Status struct {
	Chunks      int64      `json:"chunks"`
	Processed   int64      `json:"processed"`    // items
	Errors      int64      `json:"errors"`       // items with an error slot
	InFlight    int        `json:"in_flight"`    // chunks held
	Average     int64      `json:"avg_per_item"` // nanoseconds
	Rate        float64    `json:"rate"`         // items per second, last minute
	P50         int64      `json:"p50"`          // nanoseconds per item, last minute
	P99         int64      `json:"p99"`
	Concurrency int        `json:"concurrency"`
	Each        bool       `json:"each"` // concurrency counts items
	Lane        bool       `json:"lane"`
	State       wire.State `json:"state"`
	Reason      string     `json:"reason,omitempty"` // why waiting, or what is denied
	Redelivered int64      `json:"redelivered"`
	GivenUp     int64      `json:"given_up"`
	Dead        int64      `json:"dead"`
	Stages      int        `json:"stages"` // 0 if not a flow
	Rebinds     int64      `json:"rebinds"`
}

// Status returns the endpoint's state and counts.
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
	for _, p := range append([]*Puller{e.Work}, e.More...) {
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

// lane reports whether calls are read separately. Until a node creates their consumer they come with chunks.
func (e *Server) lane() bool {
	state, _ := e.Calls.Life.State()
	return state == wire.StateListening
}

const (
	// latencyWindow and latencyWindows make up the last minute.
	latencyWindow  = 10 * time.Second
	latencyWindows = 6
	// latencySteps is the number of buckets per doubling. Quantiles are exact to half a step, 6 %.
	latencySteps   = 8
	latencyBuckets = 64 * latencySteps
)

// latency tracks an endpoint's items and their times over the last minute, in a logarithmic histogram per window. A
// chunk takes one lock, regardless of its size.
//
// It is safe for concurrent use.
type latency struct {
	mu      sync.Mutex
	start   time.Time // of the first window; zero before the first chunk
	windows [latencyWindows]window
}

type window struct {
	number   int64 // counted from start
	items    int64 // processed
	answered int64
	buckets  [latencyBuckets]int64
}

type pace struct {
	rate     float64 // answered items per second
	p50, p99 time.Duration
}

func (l *latency) add(now time.Time, items, answered int, took time.Duration) {
	if items <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start.IsZero() {
		l.start = now.Add(-took)
	}
	number := l.number(now)
	w := &l.windows[number%latencyWindows]
	if w.number != number {
		*w = window{number: number}
	}
	w.items += int64(items)
	w.answered += int64(answered)
	w.buckets[bucketOf(took/time.Duration(items))] += int64(items)
}

// number returns the window of a time. mu must be held.
func (l *latency) number(now time.Time) int64 { return max(0, int64(now.Sub(l.start)/latencyWindow)) }

func (l *latency) pace(now time.Time) pace {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start.IsZero() {
		return pace{}
	}
	newest := l.number(now)
	var sum window
	for i := range l.windows {
		w := &l.windows[i]
		if w.number <= newest-latencyWindows || w.number > newest {
			continue
		}
		sum.items += w.items
		sum.answered += w.answered
		for b, n := range w.buckets {
			sum.buckets[b] += n
		}
	}
	if sum.items == 0 {
		return pace{}
	}
	oldest := l.start.Add(time.Duration(max(0, newest-latencyWindows+1)) * latencyWindow)
	// The rate of a new instance is taken over at least a second.
	span := max(now.Sub(oldest), time.Second)
	return pace{rate: float64(sum.answered) / span.Seconds(), p50: sum.quantile(50), p99: sum.quantile(99)}
}

// quantile returns the time that percent of the items did not exceed.
func (w *window) quantile(percent int64) time.Duration {
	rank := (w.items*percent + 99) / 100
	for b, n := range w.buckets {
		if rank -= n; rank <= 0 {
			return middleOf(b)
		}
	}
	return 0 // there are no items
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < latencySteps {
		return int(v)
	}
	octave := bits.Len64(v) - 1 // at least 3
	step := v >> (octave - 3) & (latencySteps - 1)
	return (octave-2)*latencySteps + int(step)
}

func middleOf(bucket int) time.Duration {
	if bucket < 2*latencySteps { // 1 ns wide
		return time.Duration(bucket)
	}
	shift := bucket/latencySteps - 1
	low := uint64(latencySteps+bucket%latencySteps) << shift
	return time.Duration(low + 1<<shift/2)
}
