package consume

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// stallPatience is how long messages may wait at the server while a pull is open and nothing comes.
const stallPatience = 5 * time.Second

// errStalled ends a pull that the watchdog has given up.
var errStalled = errors.New("messages wait at the server, and none is sent to an open pull")

// watchdog notices a pull that is open while messages wait and none comes: the server has forgotten it, or something in
// between has. The server's heartbeats do not tell, for they may go on. It goes by what the server says of the consumer
// anyway, so it bites at the second such word that is at least its patience after the first.
//
// It is safe for concurrent use.
type watchdog struct {
	Patience time.Duration
	stalled  chan struct{} // gets a value when the open pull is to be given up
	came     atomic.Int64  // messages, in all

	Mu    sync.Mutex
	Open  bool
	since time.Time // when messages were first seen to wait for the pull, with nothing coming; zero: they were not
	count int64     // came, at that time
}

func newWatchdog() *watchdog {
	return &watchdog{Patience: stallPatience, stalled: make(chan struct{}, 1)}
}

// opened notes that a pull is open from now on, until closed is called.
func (w *watchdog) opened() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Open, w.since = true, time.Time{}
	select {
	case <-w.stalled: // it was about the pull before
	default:
	}
}

func (w *watchdog) closed() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Open = false
}

// look takes what the server says of the consumer.
func (w *watchdog) look(now time.Time, info *jetstream.ConsumerInfo) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	count := w.came.Load()
	switch {
	case !w.Open || !deliverable(info):
		w.since = time.Time{}
	case w.since.IsZero() || count != w.count:
		w.since, w.count = now, count
	case now.Sub(w.since) >= w.Patience:
		w.since = time.Time{}
		select {
		case w.stalled <- struct{}{}:
		default:
		}
	}
}

// deliverable reports whether the server should be sending.
func deliverable(info *jetstream.ConsumerInfo) bool {
	full := info.Config.MaxAckPending > 0 && info.NumAckPending >= info.Config.MaxAckPending
	return info.NumPending > 0 && !info.Paused && !full
}
