package autotune

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Sample is what was seen of an endpoint since the sample before.
type Sample struct {
	At     time.Time     // when the window ended, by one clock for all samples
	Window time.Duration // the time in which Ended ended
	Ended  []Ended

	Live   int // requests in progress that the controller's limit counts, the claimed ones included
	Others int // requests in progress at the endpoint beside them
	// Queued are the requests that wait for a service, InHands those that services have been handed. Known is false when
	// no one could say.
	Queued, InHands int
	Known           bool
	// Places are the requests that services say they work on at once, all together; 0: no one says.
	Places int
	// Demand says that there is more to do than is in progress.
	Demand bool
	// Ceiling bounds requests in progress from outside the controller; 0: nothing does.
	Ceiling int
	// Paused says that nothing is sent at the moment, for reasons of others: nothing can be learned.
	Paused bool

	InFlightAuto bool // how many requests are in progress, and how fast, is the controller's to choose

	ChunkAuto bool          // the size of requests is the controller's to choose
	ChunkTime time.Duration // what a request may take
	ChunkMax  int           // the most items that it may hold; 0: 8192
}

// Ended are requests of about one size that came to an end in the same way.
type Ended struct {
	Requests int
	Items    int // in all of them
	Done     int // of those, with an outcome, good or bad, that stands
	Refused  int // of those, refused because it was too much
	Code     string
	// Timed of the requests said how long the service worked on them: Took in all.
	Timed int
	Took  time.Duration
	// Clocked of the requests were in progress for a time that is known: Stay in all.
	Clocked int
	Stay    time.Duration
}

// tally is what a few samples have in common.
type tally struct {
	window          time.Duration
	samples         int
	requests, items int // answered requests and their items
	done            int
	refused         int // items
	timedOut        int // requests
	failed          int // requests that failed as a whole, timedOut included
	timed           int
	took            time.Duration
	clocked         int
	stay            time.Duration
	live            int // these are sums over the samples
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

// perSecond is how much of n there was a second.
func (t *tally) perSecond(n int) float64 {
	if t.window <= 0 {
		return 0
	}
	return float64(n) / t.window.Seconds()
}

// throughput is the items done a second by Little's law: what is in flight by the time for which it is.
func (t *tally) throughput() float64 {
	if t.requests == 0 || t.timeInSystem() <= 0 {
		return 0
	}
	return t.mean(t.live) / t.timeInSystem().Seconds() * float64(t.done) / float64(t.requests)
}

// mean is a sum over the samples as one of them has it.
func (t *tally) mean(sum int) float64 {
	if t.samples == 0 {
		return 0
	}
	return float64(sum) / float64(t.samples)
}

// busy is how many requests services worked on at once. When they do not say how long they worked, it is what was in
// their hands.
func (t *tally) busy() float64 {
	inHands := t.mean(t.inHands)
	if t.timed == 0 || t.window <= 0 {
		return inHands
	}
	busy := t.took.Seconds() / t.window.Seconds() * float64(t.requests) / float64(t.timed)
	return min(busy, inHands) // what ended in the window was begun before it
}

// service is how long a service works on a request.
func (t *tally) service() time.Duration {
	if t.timed > 0 {
		return t.took / time.Duration(t.timed)
	}
	if t.requests == 0 {
		return 0
	}
	return time.Duration(t.mean(t.inHands) * float64(t.window) / float64(t.requests))
}

// timeInSystem is how long a request is in progress.
func (t *tally) timeInSystem() time.Duration {
	if t.clocked > 0 {
		return t.stay / time.Duration(t.clocked)
	}
	if t.requests == 0 {
		return 0
	}
	return time.Duration(t.mean(t.live) * float64(t.window) / float64(t.requests))
}

// wait is how long a request waits before a service works on it.
func (t *tally) wait() time.Duration {
	if t.requests == 0 {
		return 0
	}
	waiting := max(0, t.mean(t.queued+t.inHands)-t.busy())
	return time.Duration(waiting * float64(t.window) / float64(t.requests))
}

// Kind is what the error code of a request, or of an item in it, says about the pace.
type Kind int

// The kinds of error codes.
const (
	// Other says nothing about the pace.
	Other Kind = iota
	// Throttled means that the service refuses work because it is too much at the moment.
	Throttled
	// TimedOut means that no answer came in time.
	TimedOut
	// TooBig means that the request was more than the service can deal with at once.
	TooBig
)

// KindOf returns what a code says.
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
