package startup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/backoff"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Times of a start that waits for NATS and the streams. What may pass by itself is waited for as long as it takes.
const (
	// refusedPatience is for what a server that is starting, or being set up, may say and take back.
	refusedPatience = 5 * time.Second
	// peersPatience is for the other servers of a cluster to come up.
	peersPatience = 2 * time.Minute
	// What is waited for is said at once, and again after pauses that double.
	saidFirst, saidPause = 5 * time.Second, 5 * time.Minute
	// settingsTimeout bounds what the wait itself asks the database.
	settingsTimeout = 2 * time.Second
)

// obstacle is why a node has not begun.
type obstacle struct {
	kind     string        // what it is, whatever its details
	waiting  string        // for what, in words
	end      string        // what does not pass by itself, with the remedy; empty: it may pass
	patience time.Duration // with the end
	first    bool          // it ends only the first start of all: later ones may be mended by tranche streams set
}

// Wait tells what a start waits for, and ends it when that does not mend itself.
type Wait struct {
	At      string              // of NATS
	From    string              // what says so; empty: it is the private one
	NC      func() *nats.Conn   // required; it may return nil while there is none
	Store   func() *database.DB // required; likewise
	Say     func(what string)   // required: tells people what is waited for
	Trouble *Troubles           // required
	Now     func() time.Time    // required

	mu    sync.Mutex
	dial  error // of the last try to connect that came to nothing
	kind  string
	since time.Time
	next  time.Time // when it is said again
	gaps  backoff.Doubling
}

// Hear has the wait told why NATS cannot be connected to.
func (w *Wait) Hear() nats.Option {
	return func(o *nats.Options) error {
		told := o.ReconnectErrCB
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			if told != nil {
				told(nc, err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dial = err
		}
		return nil
	}
}

// Where is NATS, and who says so.
func (w *Wait) Where() string {
	if w.From == "" {
		return w.At
	}
	return w.At + " (" + w.From + ")"
}

// Waits is [orchestrator.Config.Waits].
func (w *Wait) Waits(what string, err error) error {
	w.Trouble.Note("cannot "+what, err)
	o := w.judge(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	if o.kind != w.kind {
		w.kind, w.since, w.next = o.kind, now, now
		w.gaps = backoff.Doubling{First: saidFirst, Longest: saidPause}
	}
	if o.end != "" && now.Sub(w.since) >= o.patience && (!o.first || w.unset()) {
		return errors.New(o.end)
	}
	if !now.Before(w.next) {
		w.next = now.Add(w.gaps.Next())
		w.Say(o.waiting)
	}
	return nil
}

// unset takes back settings of the streams that were never brought about: the next start gives others. It reports
// whether that is so; when the streams have been once, an operator can set others while this node waits.
func (w *Wait) unset() bool {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	taken, err := session.New(w.Store()).UnsetStreams(ctx)
	return err == nil && taken
}

// judge says what an error means for the start.
func (w *Wait) judge(err error) obstacle {
	nc := w.NC()
	if !nc.IsConnected() {
		w.mu.Lock()
		dial := w.dial
		w.mu.Unlock()
		if last := nc.LastError(); last != nil {
			dial = last
		}
		return w.unconnected(dial)
	}
	if o, ok := w.byJetStream(err); ok {
		return o
	}
	if why, coming := database.Coming(err); coming {
		return obstacle{kind: why, waiting: fmt.Sprintf("PostgreSQL, which %s: %v", why, err)}
	}
	return obstacle{kind: "streams", waiting: fmt.Sprintf("the session and the streams: %v", err)}
}

// set is what is set for the streams; the zero value, which is as they come, when that cannot be read.
func (w *Wait) set() session.StreamSettings {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	set, _ := session.New(w.Store()).StreamsSet(ctx) // zero
	return set
}

// Needs is what the streams take on each server that keeps them, once they are full.
func (w *Wait) Needs() int64 {
	set := w.set()
	return nodestreams.StreamConfig(&set.StreamValues).Bytes()
}
