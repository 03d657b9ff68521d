package autotune

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Sample is what was seen of an endpoint since the previous sample.
type Sample struct {
	At     time.Time     // end of the window, by one clock for all samples
	Window time.Duration // in which Ended ended
	Ended  []Ended

	Live   int // requests in progress under the controller's limit, including claimed ones
	Others int // other requests in progress at the endpoint
	// Queued requests wait for a service, InHands were delivered to one. Known is false if that is unknown.
	Queued, InHands int
	Known           bool
	// Places is the concurrency that all services report together; 0: unknown.
	Places int
	// Demand means that there is more work than in progress.
	Demand bool
	// Ceiling is an external limit of requests in progress; 0: none.
	Ceiling int
	// Paused means that nothing is sent for an external reason: nothing can be learned.
	Paused bool

	InFlightAuto bool // the controller decides the requests in progress, and the rate

	ChunkAuto bool          // the controller decides the size of requests
	ChunkTime time.Duration // wanted time of a request
	ChunkMax  int           // largest number of its items; 0: 8192
}

// Ended are requests of about one size that ended in the same way.
type Ended struct {
	Requests int
	Items    int // of all of them
	Done     int // items with a final outcome, good or bad
	Refused  int // items refused because of the load
	Code     string
	// Timed is the number of requests whose service reported its time: Took in total.
	Timed int
	Took  time.Duration
	// Clocked is the number of requests whose time in progress is known: Stay in total.
	Clocked int
	Stay    time.Duration
}

// tally adds up samples.
type tally struct {
	window          time.Duration
	samples         int
	requests, items int // answered requests and their items
	done            int
	refused         int // items
	timedOut        int // requests
	failed          int // requests that failed entirely, including timedOut
	timed           int
	took            time.Duration
	clocked         int
	stay            time.Duration
	live            int // this and the following: sums over the samples
	queued, inHands int
	others          int
}

func tallyOf(s *Sample) tally {
	t := tally{window: s.Window, samples: 1, live: s.Live, queued: s.Queued, inHands: s.InHands, others: s.Others}
	for _, e := range s.Ended {
		t.done += e.Done
		switch KindOf(e.Code) {
		case TimedOut:
			t.timedOut += e.Requests
		case Throttled:
			t.refused += e.Items - e.Done
		case TooBig, Other:
			t.refused += e.Refused
		}
		if e.Code != "" {
			t.failed += e.Requests
			continue
		}
		t.requests += e.Requests
		t.items += e.Items
		t.timed += e.Timed
		t.took += e.Took
		t.clocked += e.Clocked
		t.stay += e.Stay
	}
	return t
}

func (t *tally) add(o tally) {
	t.window += o.window
	t.samples += o.samples
	t.requests += o.requests
	t.items += o.items
	t.done += o.done
	t.refused += o.refused
	t.timedOut += o.timedOut
	t.failed += o.failed
	t.timed += o.timed
	t.took += o.took
	t.clocked += o.clocked
	t.stay += o.stay
	t.live += o.live
	t.queued += o.queued
	t.inHands += o.inHands
	t.others += o.others
}

func (t *tally) perSecond(n int) float64 {
	if t.window <= 0 {
		return 0
	}
	return float64(n) / t.window.Seconds()
}

// throughput returns the items done per second by Little's law: items in flight by the time for which they are.
func (t *tally) throughput() float64 {
	if t.requests == 0 || t.timeInSystem() <= 0 {
		return 0
	}
	return t.mean(t.live) / t.timeInSystem().Seconds() * float64(t.done) / float64(t.requests)
}

func (t *tally) mean(sum int) float64 {
	if t.samples == 0 {
		return 0
	}
	return float64(sum) / float64(t.samples)
}

// busy returns how many requests services process concurrently, or, if they do not report their time, hold.
func (t *tally) busy() float64 {
	inHands := t.mean(t.inHands)
	if t.timed == 0 || t.window <= 0 {
		return inHands
	}
	busy := t.took.Seconds() / t.window.Seconds() * float64(t.requests) / float64(t.timed)
	return min(busy, inHands) // what ended in the window began before it
}

func (t *tally) service() time.Duration {
	if t.timed > 0 {
		return t.took / time.Duration(t.timed)
	}
	if t.requests == 0 {
		return 0
	}
	return time.Duration(t.mean(t.inHands) * float64(t.window) / float64(t.requests))
}

// timeInSystem returns how long a request is in progress.
func (t *tally) timeInSystem() time.Duration {
	if t.clocked > 0 {
		return t.stay / time.Duration(t.clocked)
	}
	if t.requests == 0 {
		return 0
	}
	return time.Duration(t.mean(t.live) * float64(t.window) / float64(t.requests))
}

func (t *tally) wait() time.Duration {
	if t.requests == 0 {
		return 0
	}
	waiting := max(0, t.mean(t.queued+t.inHands)-t.busy())
	return time.Duration(waiting * float64(t.window) / float64(t.requests))
}

// Kind is what the error code of a request, or of an item, means for the pace.
type Kind int

// The kinds of error codes.
const (
	// Other means nothing for the pace.
	Other Kind = iota
	// Throttled means that the service refuses work because of the load.
	Throttled
	// TimedOut means that the answer was too late.
	TimedOut
	// TooBig means that the service cannot process a request of that size.
	TooBig
)

// KindOf returns the kind of a code.
func KindOf(code string) Kind {
	if workqueue.Throttled(code) {
		return Throttled
	}
	switch code {
	case "deadline", "timeout", "504":
		return TimedOut
	case "too_big", "too_large", "payload_too_large", "chunk_too_large", "413", "held_too_large", "state_too_large",
		"query_too_large", "too_many_deliveries", "out_of_memory":
		return TooBig
	default:
		return Other
	}
}
