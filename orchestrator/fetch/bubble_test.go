package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/dispatch"
	"github.com/tranchehq/tranche/workqueue"
	dispatchstore "github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// world is a store with slices of a few items that a worker has claimed, in a bubble.
type world struct {
	*testing.T
	*Worker
	mu       sync.Mutex
	errs     []error // of the next commits; then all succeed
	recorded []settle.Answer
	given    []string // why slices were given back, and for how long
	jobs     map[workqueue.SliceID]dispatch.Assignment
	reset    bool                      // slices are not the node's any more
	parts    []dispatchstore.PartInput // of each item
	held     chan struct{}             // nil, or what commits wait for
}

func (w *world) EachInput(_ context.Context, want dispatchstore.InputRequest, f func(dispatchstore.Input) bool) error {
	for bit := range want.Mask.All() {
		f(dispatchstore.Input{Item: dispatchstore.Item{Ordinal: want.Block.Ordinal(bit), Key: fmt.Appendf(nil, "C%d", bit)},
			Parts: w.parts})
	}
	return nil
}

func (w *world) StillClaimed(_ context.Context, _ workqueue.SessionID, of []workqueue.SliceID,
) ([]workqueue.SliceID, error) {
	if w.reset {
		return nil, nil
	}
	return of, nil
}

func (w *world) TriedAlone(context.Context, workqueue.SliceID) (bool, error) { return false, nil }

func (w *world) BeginAlone(context.Context, workqueue.SessionID, workqueue.SliceID) (bool, error) {
	return true, nil
}

func (w *world) Split(context.Context, workqueue.SessionID, workqueue.SliceID, []bitfield.Set, time.Duration, string,
) (*workqueue.Slice, error) {
	return nil, errors.New("nothing is to be cut")
}

// Postpone has a suspect come back to the worker in its time.
func (w *world) Postpone(ctx context.Context, _ workqueue.SessionID, id workqueue.SliceID, in time.Duration, why error,
) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = append(w.given, why.Error())
	if errors.Is(why, errAlone) {
		time.AfterFunc(in, func() { w.Take(w.Context(), w.jobs[id]) })
	}
	return ctx.Err()
}

func (w *world) Record(_ context.Context, batch []core.Recording) (out settle.Recorded, apart bool, err error) {
	if w.held != nil {
		<-w.held
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) > 0 {
		err, w.errs = w.errs[0], w.errs[1:]
	}
	for i := range batch {
		if err == nil {
			w.recorded = append(w.recorded, batch[i].Answer)
		}
	}
	return out, len(batch) > 1 && workqueue.Refused(err), err
}

func (w *world) Seen(settle.Recorded, time.Time) {}

// outcome writes what is recorded, a word for each answer: how many slots it has, and the code of its failure.
func (w *world) outcome() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var words []string
	for _, a := range w.recorded {
		word := fmt.Sprint(len(a.Slots))
		if a.Failure != nil {
			word += "+" + a.Failure.Code
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// take has the worker take n slices of ten items, which it returns.
func (w *world) take(n int, change func(*workqueue.Slice)) {
	for range n {
		a := dispatch.Assignment{Slice: workqueue.Slice{ID: workqueue.NewSliceID(), Mask: bitfield.Full(10), Attempt: 1},
			Session: w.node.Session(), Endpoint: "local:f", Claimed: time.Now(),
			Work: workqueue.StepWork{Kind: workqueue.KindLocal, Name: "f", Timeout: callTimeout,
				Inputs: make([]workqueue.StepInput, len(w.parts))}}
		if change != nil {
			change(&a.Slice)
		}
		w.jobs[a.ID] = a
		w.Take(w.Context(), a)
	}
	synctest.Wait()
}

// callTimeout is what a call may take.
const callTimeout = 10 * time.Second

// working runs a test in a bubble with a worker that has one function, and four hands for it.
func working(t *testing.T, f fetch.Fetcher, test func(*world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, jobs: map[workqueue.SliceID]dispatch.Assignment{}}
		k := &core.Core{Log: zaptest.NewLogger(t), Meter: core.NoMeter{}, Wakes: make(chan struct{}, 1)}
		k.SetSession(workqueue.NewSessionID())
		w.Worker = New(k, w, Config{Locals: map[string]fetch.Fetcher{"f": f}, LocalWorkers: 4, Recorders: 2, RecordBatch: 8})
		w.store, w.claims, w.outcomes = w, w, w
		end := w.Start(t.Context())
		test(w)
		end()
	})
}

func answer(_ context.Context, item *fetch.Item) (fetch.Part, error) { return fetch.JSON(item.Key) }

// A call that does not come back costs the item that it is at, and the rest of the chunk an attempt; it is counted
// until it comes back. One that is taken from the node ends at the next look.
func TestCallsThatDoNotComeBack(t *testing.T) {
	var hold chan struct{}
	var ended chan error
	var w *world
	working(t, fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
		switch {
		case w.reset:
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return fetch.Part{}, ctx.Err()
		case item.Key == "C5":
			<-hold // whatever becomes of ctx
		}
		return answer(ctx, item)
	}), func(world *world) {
		w, hold, ended = world, make(chan struct{}), make(chan error, 1)
		w.take(1, nil)
		<-time.After(callTimeout + hangTimeout - 1)
		if got, n := w.outcome(), w.node.Stats.Hung.Load(); got != "" || n != 0 {
			t.Errorf("before its time is over %q is recorded, and %d hang", got, n)
		}
		<-time.After(1)
		got, n := w.outcome(), w.node.Stats.Hung.Load()
		if got != "6+deadline" || n != 1 || w.recorded[0].Slots[5].Err.Code != core.CodeDeadline {
			t.Errorf("%q is recorded, and %d hang; want an error of the sixth item and of the rest", got, n)
		}
		close(hold)
		if synctest.Wait(); w.node.Stats.Hung.Load() != 0 {
			t.Error("a call that has come back is still counted")
		}
		w.reset = true
		w.take(1, nil)
		<-time.After(quickChunk + 1)
		w.Tend(w.Context())
		testenv.Is(t, <-ended, errTaken, "the call of a slice that was withdrawn ended with")
	})
}

// Results are kept while PostgreSQL is unavailable, and recorded once; those that it refuses fail by themselves, and
// those of a session that is over are dropped.
func TestResultsAreKept(t *testing.T) {
	working(t, fetch.Each(answer), func(w *world) {
		gone, refused := errors.New("no connection"), &pgconn.PgError{Code: "22021"}
		for _, tc := range []struct {
			errs  []error
			slots string
			took  time.Duration // at most
		}{
			{nil, "10", 0},
			{[]error{gone, gone, gone}, "10", recordAgain * 7},
			{[]error{refused}, "0+refused", 0},
			{[]error{refused, refused}, "", 0},
		} {
			w.recorded, w.errs = nil, tc.errs
			w.take(1, nil)
			<-time.After(tc.took)
			testenv.Same(t, w.outcome(), tc.slots, "%v: recorded", tc.errs)
		}
		w.recorded, w.held = nil, make(chan struct{})
		w.take(1, nil) // its commit waits
		w.errs = []error{gone}
		w.node.SetSession(workqueue.NewSessionID())
		close(w.held)
		<-time.After(recordAgain)
		if got := w.outcome(); got != "" || w.node.Stats.Stale.Load() != 1 || w.node.Stats.RecordedAgain.Load() != 4 {
			t.Errorf("%q is recorded for a session that is over; %d are stale", got, w.node.Stats.Stale.Load())
		}
	})
}

// What a function fails with is the failure of the chunk, and says itself whether it may pass: what is unknown may.
func TestAFunctionSaysHowItFails(t *testing.T) {
	var fails error
	working(t, fetch.Func(func(context.Context, *fetch.Request) ([]fetch.Slot, error) { return nil, fails }),
		func(w *world) {
			for _, c := range []struct {
				err  error
				want workqueue.SlotError
			}{
				{errors.New("connection refused"),
					workqueue.SlotError{Code: "handler_error", Message: "connection refused", Retry: true}},
				{endpoints.Retry("too_many_requests", "later"),
					workqueue.SlotError{Code: "too_many_requests", Message: "later", Retry: true}},
				{endpoints.Fail("bad_document", "it cannot be read"),
					workqueue.SlotError{Code: "bad_document", Message: "it cannot be read"}},
			} {
				w.recorded, fails = nil, c.err
				w.take(1, nil)
				if got := w.outcome(); got != "0+"+c.want.Code || *w.recorded[0].Failure != c.want {
					t.Errorf("%v: %q is recorded: %+v; want %+v", c.err, got, w.recorded, c.want)
				}
			}
		})
}

// An item whose parts in pieces are more than a node holds fails before they are read.
func TestAnItemOfTooManyBytes(t *testing.T) {
	working(t, fetch.Each(answer), func(w *world) {
		large := dispatchstore.PartInput{Large: uuid.NullUUID{Valid: true}, Ref: dispatchstore.PartRef{Bytes: maxResult}}
		w.parts = []dispatchstore.PartInput{large, large, {Data: []byte("1")}}
		w.take(1, func(s *workqueue.Slice) { s.Mask = bitfield.Full(1) })
		testenv.Same(t, w.outcome(), "0+item_too_large", "recorded")
	})
}

// A suspect has its node for itself until it is recorded. Were the next one to begin before, and end the node, the
// first would be begun and not recorded: it would be taken for what ended it.
func TestASuspectBeginsOnceTheOneBeforeIsRecorded(t *testing.T) {
	working(t, fetch.Each(answer), func(w *world) {
		w.held = make(chan struct{})
		w.take(2, func(s *workqueue.Slice) { s.Suspect = true })
		<-time.After(4*alonePause + 1)
		synctest.Wait()
		again := slices.Repeat([]string{errAlone.Error()}, 5)
		if n := w.node.Stats.Fetches.Load(); n != 1 || !slices.Equal(w.given, again) {
			t.Errorf("%d have begun before the first is recorded; given back for %q", n, w.given)
		}
		close(w.held)
		<-time.After(alonePause)
		if got := w.outcome(); got != "10 10" || len(w.given) != 5 {
			t.Errorf("%q is recorded; given back for %q", got, w.given)
		}
	})
}

// No more chunks are worked on together than there are hands. What waits for one too long is given back, and nothing is
// claimed ahead until chunks are quick again; a node without the function leaves it to others for a while.
func TestHandsAreFew(t *testing.T) {
	var goOn chan struct{}
	working(t, fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		<-goOn
		return fetch.Each(answer).Fetch(ctx, req)
	}), func(w *world) {
		goOn = make(chan struct{})
		room := func() int { return w.Room(workqueue.KindLocal, "local:f") }
		testenv.Same(t, room(), 4, "there is room for")
		w.take(7, nil)
		if n := w.node.Stats.Fetches.Load(); n != 4 || room() != 0 || w.AtWork() != 4 {
			t.Errorf("%d are worked on, with room for %d more", n, room())
		}
		<-time.After(time.Second)
		close(goOn)
		if got := w.outcome(); got != strings.TrimSpace(strings.Repeat("10 ", 7)) || room() < 4 {
			t.Errorf("%q is recorded, and there is room for %d", got, room())
		}
		goOn = make(chan struct{})
		w.take(6, nil)
		<-time.After(queueTimeout + 1)
		w.Tend(w.Context())
		testenv.SameList(t, w.given, slices.Repeat([]string{errWaited.Error()}, 2), "given back for")
		close(goOn)
		synctest.Wait()
		w.cfg.Locals = map[string]fetch.Fetcher{"g": nil}
		w.given = nil
		w.take(1, nil)
		if len(w.given) != 1 || !strings.HasSuffix(w.given[0], "it has no function f; it has g") || room() != 0 {
			t.Errorf("given back for %q, and there is room for %d", w.given, room())
		}
		<-time.After(fetcherRest)
		if synctest.Wait(); room() == 0 {
			t.Error("it is not retried")
		}
	})
}
