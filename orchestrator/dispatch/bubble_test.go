package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// world is everything around a dispatcher, in a bubble.
type world struct {
	ownWork
	queue
	claims

	*testing.T
	mu     sync.Mutex
	begun  time.Time
	looks  []time.Duration // since then
	claim  func(step workqueue.Step) dispatch.Claimed
	steps  []workqueue.Step // with work
	due    time.Time        // when a slice comes due
	held   int              // how often the marking as sent finds slices held
	marked []workqueue.Sent
	given  []workqueue.SliceID // claims that were abandoned
	acks   []error             // what JetStream answers; nil: it has the request; then all are acknowledged
	deaf   atomic.Bool         // the server, on a connection that stands
}

func (w *world) IsConnected() bool { return true }

func (w *world) FlushWithContext(ctx context.Context) error {
	if w.deaf.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (w *world) Tend(context.Context)        {}
func (w *world) Full(keys []string) []string { return keys }

func (w *world) RunnableSteps(_ context.Context, s dispatch.Search) (found dispatch.Found, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks = append(w.looks, time.Since(w.begun))
	for _, step := range w.steps {
		if !slices.Contains(s.Skip, dispatch.StepRef{Step: step}) {
			found.Steps = append(found.Steps, dispatch.Runnable{Step: step, Kind: workqueue.KindEndpoint, Endpoint: "e"})
		}
	}
	return found, nil
}

func (w *world) ClaimAll(_ context.Context, reqs []dispatch.ClaimRequest, _ int) (all []dispatch.Claimed, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range reqs {
		all = append(all, w.claim(reqs[i].Step))
	}
	return all, nil
}

func (w *world) NextDue(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, w.due.Sub(now))
}

func (w *world) dispatcher() *Dispatcher {
	w.begun = time.Now()
	return &Dispatcher{queue: w, claims: w, link: w, own: w, endpoints: w, streams: w, after: after{w: w},
		pending: semaphore.NewWeighted(maxPendingBytes),
		node: &core.Core{Log: zaptest.NewLogger(w), NC: &nats.Conn{}, JS: broker{w: w}, Wakes: make(chan struct{}, 1),
			Meter: core.NoMeter{}},
		cfg: Config{Poll: 500 * time.Millisecond, ClaimSlices: 4}}
}

// after implements follower.
type after struct {
	core.OutcomeObserver

	w *world
}

func (a after) NextDue(now time.Time) time.Duration { return a.w.NextDue(now) }

// claiming runs a claimer in a bubble until the test ends, and returns the items that it hands out.
func claiming(t *testing.T, w *world, test func(d *Dispatcher, handed *[]time.Duration)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w.T = t
		d := w.dispatcher()
		lanes := core.NewLanes[Assignment](d.cfg.ClaimSlices)
		c := newClaimer(d, lanes, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var handed []time.Duration
		publishers := lanes.Work(1, func(lane <-chan Assignment) {
			for range lane {
				w.mu.Lock()
				handed = append(handed, time.Since(w.begun))
				w.mu.Unlock()
			}
		})
		var claimer sync.WaitGroup
		claimer.Go(func() { c.run(ctx) })
		test(d, &handed)
		cancel()
		claimer.Wait()
		lanes.Close()
		publishers.Wait()
	})
}

// A step with a rate is claimed of at that rate by itself, without anything that wakes the node; one that someone else
// holds is looked at again and keeps no other waiting.
func TestRatesAndLocksAreWaitedFor(t *testing.T) {
	const apart, n = 70 * time.Millisecond, 20
	var next time.Time
	var locked, left = 0, n
	w := &world{steps: []workqueue.Step{1, 2}}
	w.claim = func(step workqueue.Step) dispatch.Claimed {
		switch wait := time.Until(next); {
		case step == 1:
			locked++
			return dispatch.Claimed{Bound: dispatch.BoundBusy}
		case wait > 0:
			return dispatch.Claimed{Bound: dispatch.BoundStep, Wait: wait}
		}
		if left--; left == 0 {
			w.steps = w.steps[:1]
		}
		next = time.Now().Add(apart)
		return dispatch.Claimed{Slices: []workqueue.Slice{{Mask: bitfield.Full(300)}}, Bound: dispatch.BoundStep, Wait: apart}
	}
	claiming(t, w, func(_ *Dispatcher, handed *[]time.Duration) {
		<-time.After(n * apart)
		synctest.Wait()
		for i, at := range *handed {
			testenv.Same(t, at, time.Duration(i)*apart, "slice %d was handed out after", i)
		}
		if len(*handed) != n || locked < int(n*apart/busyWait) {
			t.Errorf("%d of %d slices were handed out, and the locked step was asked %d times", len(*handed), n, locked)
		}
	})
}

// A node without work looks less and less often, as soon as it is woken or a slice comes due, and not at all while the
// server that left a publication unanswered is not heard.
func TestIdleNodesLook(t *testing.T) {
	w := &world{}
	claiming(t, w, func(d *Dispatcher, _ *[]time.Duration) {
		poll := d.cfg.Poll
		looks := func(during time.Duration) int {
			w.mu.Lock()
			w.looks = nil
			w.mu.Unlock()
			<-time.After(during)
			synctest.Wait()
			return len(w.looks)
		}
		looks(idlePolls * idlePolls * poll) // until it is used to it
		if n := looks(100 * poll); n < 100/idlePolls || n > 2*100/idlePolls+1 {
			t.Errorf("it looked %d times in %s", n, 100*poll)
		}
		d.node.Wake()
		testenv.Same(t, looks(time.Nanosecond), 1, "looks when woken")
		w.mu.Lock()
		w.due = time.Now().Add(31 * time.Millisecond)
		w.mu.Unlock()
		d.node.Wake()
		if looks(poll / 2); len(w.looks) < 2 || w.begun.Add(w.looks[1]) != w.due {
			t.Errorf("it looked after %v, at a slice that came due at %s", w.looks, w.due.Sub(w.begun))
		}
		w.deaf.Store(true)
		d.doubted.Store(true)
		<-time.After(idlePolls * poll)
		d.node.Wake()
		if n, asked := looks(100*poll), d.node.Stats.Unreachable.Load(); n != 0 || asked < 10 {
			t.Errorf("it looked %d times for work that it could not publish, and asked the server %d times", n, asked)
		}
		w.deaf.Store(false)
		if n := looks(poll + reachWait); n == 0 {
			t.Error("it did not look again within a poll")
		}
	})
}

func (w *world) MarkSent(_ context.Context, sent []workqueue.Sent) (left []workqueue.Sent, err error) {
	if w.held > 0 {
		w.held--
		return sent, nil
	}
	w.marked = append(w.marked, sent...)
	return nil, nil
}

func (w *world) GiveUpClaim(_ context.Context, _ workqueue.SessionID, id workqueue.SliceID) error {
	w.given = append(w.given, id)
	return nil
}

func (w *world) Ensure(context.Context, string) (int64, error) { return 1, nil }
func (w *world) Now() (int64, <-chan struct{})                 { return 1, nil }
func (w *world) Suspect(string)                                {}

// broker is JetStream as far as requests are published.
type broker struct {
	jetstream.JetStream

	w *world
}

// PublishMsgAsync implements jetstream.JetStream.
func (s broker) PublishMsgAsync(*nats.Msg, ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	f := future{ok: make(chan *jetstream.PubAck, 1), err: make(chan error, 1)}
	if len(s.w.acks) == 0 {
		f.ok <- &jetstream.PubAck{Sequence: 7}
		return f, nil
	}
	if err := s.w.acks[0]; err != nil {
		time.AfterFunc(AckTimeout, func() { f.err <- err })
	} else {
		f.ok <- &jetstream.PubAck{Sequence: 7}
	}
	s.w.acks = s.w.acks[1:]
	return f, nil
}

type future struct {
	jetstream.PubAckFuture

	ok  chan *jetstream.PubAck
	err chan error
}

func (f future) Ok() <-chan *jetstream.PubAck { return f.ok }
func (f future) Err() <-chan error            { return f.err }

// What is acknowledged is marked as sent, by a node that stops as well, also when others hold it for a while. What is
// not acknowledged is published again under its id; after half the life of its claim it is abandoned.
func TestAcknowledgements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := slices.Repeat([]error{jetstream.ErrAsyncPublishTimeout}, 100)
		for _, tc := range []struct {
			acks          []error
			held          int
			marked, given int
			took          time.Duration
		}{
			{nil, 0, 3, 0, 0},
			{nil, 5, 3, 0, 5 * markAgain},
			{failed[:2], 0, 3, 0, AckTimeout},
			{failed, 0, 0, 3, dispatch.DefaultClaimTTL/2 + AckTimeout/2},
		} {
			w := &world{T: t, acks: tc.acks, held: tc.held}
			d := w.dispatcher()
			published := make(chan publication, 3)
			ends := 0
			for range 3 {
				p := publication{Assignment: Assignment{Slice: workqueue.Slice{ID: workqueue.SliceID(uuid.New())},
					Endpoint: "e", Claimed: time.Now()}, request: &wire.RequestBuilder{},
					msg: nats.NewMsg("tranche.work.e"), published: func(error) { ends++ }}
				testenv.NoError(t, d.send(t.Context(), &p))
				published <- p
			}
			close(published) // the node stops
			d.confirm(t.Context(), published)
			took := time.Since(w.begun)
			if len(w.marked) != tc.marked || len(w.given) != tc.given || ends != 3 || took < tc.took ||
				took > tc.took+AckTimeout || d.doubted.Load() != (tc.acks != nil) {
				t.Errorf("%+v: %d are marked as sent, %d abandoned, %d have ended, after %s; the server is doubted: %t", tc,
					len(w.marked), len(w.given), ends, took, d.doubted.Load())
			}
		}
		w := &world{T: t, acks: slices.Clone(failed)}
		d := w.dispatcher()
		ctx, cut := context.WithTimeout(t.Context(), time.Second)
		defer cut()
		published := make(chan publication, 1)
		p := publication{Assignment: Assignment{Endpoint: "e", Claimed: time.Now()}, msg: nats.NewMsg("tranche.work.e"),
			published: func(error) {}}
		testenv.NoError(t, d.send(ctx, &p))
		published <- p
		close(published)
		if d.confirm(ctx, published); time.Since(w.begun) != time.Second || len(w.given) != 0 {
			t.Errorf("a node that is cut off ends after %s, and gives %d claims up", time.Since(w.begun), len(w.given))
		}
	})
}
