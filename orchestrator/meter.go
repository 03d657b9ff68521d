package orchestrator

import (
	"time"

	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Meter measures what a node does, beside what its [Stats] count. Its methods are called from several goroutines at
// once and must not block.
type Meter interface {
	// Took is told how long something took that was done.
	Took(what Timing, d time.Duration)
	// Happened is told of something that happened n times. Of is the endpoint, unless Event says otherwise.
	Happened(what Event, of string, n int)
	// Settled is told of what a transaction settled.
	Settled(of []settle.Settled)
}

// Timing is something that takes a time.
type Timing int

// What takes a time.
const (
	TimingClaim      Timing = iota // a transaction that brought work
	TimingPublish                  // of a request, from its claim until the stream has it
	TimingRecord                   // a transaction that recorded replies, or what the node has fetched
	TimingCompletion               // of a run, from its last reply's arrival until the event that says so is published
)

// Event is something that happens, most often to requests.
type Event int

// What happens.
const (
	EventSent        Event = iota // a request: the stream has it, or the node has begun to work on a chunk itself
	EventAgain                    // the same, when it is not the first attempt
	EventRedelivered              // a message of its reply was delivered again
	EventQuarantined              // a message of its reply was put aside; of: the reason
	EventDead                     // it was kept as a dead letter
	EventCompleted                // a run was completed; of: OutcomeClean or OutcomeFailures
	EventLoaded                   // items of a run were read; of nothing
	EventLoadedBytes              // the bytes of these, as they are stored; of nothing
)

// What becomes of a run.
const (
	OutcomeClean    = "clean"    // no item failed
	OutcomeFailures = "failures" // some did
)

// noMeter measures nothing.
type noMeter struct{}

func (noMeter) Took(Timing, time.Duration)  {}
func (noMeter) Happened(Event, string, int) {}
func (noMeter) Settled([]settle.Settled)    {}

// Leading is what a node says of its leading.
type Leading struct {
	Epoch  int64 // of the lease
	Duties []inspect.DutyPulse
}

// Leading returns what there is to say while this node leads; nil when it does not.
func (n *Node) Leading() *Leading {
	lease := n.lease.Load()
	if lease == nil {
		return nil
	}
	l := &Leading{Epoch: lease.Epoch, Duties: make([]inspect.DutyPulse, 0, len(n.duties))}
	for _, d := range n.duties {
		l.Duties = append(l.Duties, d.pulse())
	}
	return l
}

// pulses is nil while the node does not lead.
func (l *Leading) pulses() []inspect.DutyPulse {
	if l == nil {
		return nil
	}
	return l.Duties
}

// measureSent tells of a request that is sent, or of a chunk that the node works on.
func measureSent(m Meter, a *assignment) {
	m.Happened(EventSent, a.endpoint, 1)
	if a.Attempt > 1 {
		m.Happened(EventAgain, a.endpoint, 1)
	}
}

// measureRecording tells of replies that are recorded.
func measureRecording(m Meter, read []reading, took time.Duration) {
	m.Took(TimingRecord, took)
	for i := range read {
		if about, err := read[i].msg.Metadata(); err == nil && about.NumDelivered > 1 {
			m.Happened(EventRedelivered, read[i].answer.Endpoint, 1)
		}
	}
}

// cameAt is when the newest of some replies came into its stream, as its server's clock has it, but not after now.
func cameAt(read []reading) (at time.Time) {
	for i := range read {
		if about, err := read[i].msg.Metadata(); err == nil && about.Timestamp.After(at) {
			at = about.Timestamp
		}
	}
	if now := time.Now(); at.IsZero() || at.After(now) {
		return now
	}
	return at
}

// loadedAtOnce is how many items are counted together.
const loadedAtOnce = 1000

// counted has a meter told of the items that are read.
func counted(m Meter, next func(*start.LoadItem) error) func(*start.LoadItem) error {
	items, size := 0, 0
	return func(item *start.LoadItem) error {
		err := next(item)
		if err == nil {
			items, size = items+1, size+len(item.Payload)
		}
		if items > 0 && (err != nil || items == loadedAtOnce) {
			m.Happened(EventLoaded, "", items)
			m.Happened(EventLoadedBytes, "", size)
			items, size = 0, 0
		}
		return err
	}
}
