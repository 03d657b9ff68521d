package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestLoadNamesBothPlacesOfADuplicate(t *testing.T) {
	t.Parallel()
	big := storetest.Names(storetest.Several)
	far := slices.Clone(big)
	far[32_900] = "C7"
	apart := slices.Clone(big)
	apart[32_950] = "C32800"
	for name, tc := range map[string]struct {
		keys          []string
		first, second int
	}{
		"in a run of one batch":            {[]string{"a", "b", "c", "b"}, 1, 3},
		"next to each other":               {[]string{"a", "a"}, 0, 1},
		"across batches":                   {far, 7, 32_900},
		"in the second of several batches": {apart, 32_800, 32_950},
	} {
		subtest(t, name, func(b *bench) {
			_, err := b.TryLoad(storetest.Request(), storetest.Keys(tc.keys...))
			dup := testenv.As[*workqueue.DuplicateKeyError](b, err, "the load")
			want := workqueue.DuplicateKeyError{Key: tc.keys[tc.second], First: workqueue.Ordinal(tc.first),
				Second: workqueue.Ordinal(tc.second), FirstLine: tc.first + 2, SecondLine: tc.second + 2}
			testenv.Same(b, *dup, want, "error")
			text := fmt.Sprintf("line %d: key %q is on line %d", want.SecondLine, want.Key, want.FirstLine)
			testenv.Says(b, err, text, "the error")
			b.WantNothing()
		})
	}
}

func TestLoadSkipsOrAllowsDuplicates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ repeat, base int }{"one batch": {3, 100}, "several": {2, 17_000}} {
		subtest(t, name, func(b *bench) {
			var all []string
			for range tc.repeat {
				all = append(all, storetest.Names(tc.base)...)
			}
			req := storetest.Chunked(500)
			req.OnDuplicate = start.DuplicateSkip
			loaded, err := b.TryLoad(req, storetest.Keys(all...))
			if err != nil || loaded.Items != int64(tc.base) || loaded.Skipped != int64(len(all)-tc.base) {
				b.Fatalf("skip: %+v, %v", loaded, err)
			}
			distinct := b.Number(`SELECT count(DISTINCT item_key) FROM work_queue WHERE run_id = $1 AND ordinal < $2`,
				loaded.Run, tc.base)
			testenv.Same(b, distinct, tc.base, "different keys that skip kept")
			req.OnDuplicate = start.DuplicateAllow
			loaded, err = b.TryLoad(req, storetest.Keys(all...))
			if err != nil || loaded.Items != int64(len(all)) || loaded.Skipped != 0 {
				b.Fatalf("allow: %+v, %v", loaded, err)
			}
			b.Check()
			b.Finish(loaded.Run)
			b.WantState(loaded.Run, "completed", 1)
			b.Check()
		})
	}
}

// A source that breaks, or a load that is called off, leaves nothing; also when much of it was written already.
func TestLoadIsAllOrNothing(t *testing.T) {
	t.Parallel()
	broken := errors.New("line 17: broken")
	for name, size := range map[string]int{"small": 16, "large": 70_000} {
		subtest(t, name, func(b *bench) {
			source := storetest.Keys(storetest.Names(size)...)
			_, err := b.TryLoad(storetest.Request(), func(item *start.LoadItem) error {
				if err := source(item); err != nil {
					return broken
				}
				return nil
			})
			testenv.Is(b, err, broken, "error")
			b.WantNothing()

			ctx, cancel := context.WithCancel(b.Context())
			source = storetest.Keys(storetest.Names(size)...)
			_, err = start.New(b.Store).Load(ctx, storetest.Request(), func(item *start.LoadItem) error {
				err := source(item)
				if err != nil {
					cancel()
				}
				return err
			})
			cancel()
			testenv.Fails(b, err, "a load that was called off succeeded")
			b.WantNothing()
		})
	}
}

func TestLoadRefusesWhatCannotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.TryLoad(storetest.Request(), storetest.Keys())
	testenv.Fails(t, err, "a run without items was loaded")
	b.WantNothing()
	largest := strings.Repeat("x", start.MaxParamBytes-len(`{"name": "", }`))
	params := func(name, value string) func(*start.LoadRequest) {
		return func(r *start.LoadRequest) { r.Params = map[string]string{name: value} }
	}
	for name, spoil := range map[string]func(*start.LoadRequest){
		"too large":     params("name", largest+"x"),
		"NUL":           params("name", "a\x00"),
		"not UTF-8":     params("\xff", "a"),
		"no steps":      func(r *start.LoadRequest) { r.Steps = nil },
		"no plan":       func(r *start.LoadRequest) { r.Plan = "" },
		"bad duplicate": func(r *start.LoadRequest) { r.OnDuplicate = "maybe" },
		"chunk":         func(r *start.LoadRequest) { r.Steps[0].Chunk = 8193 },
		"in flight":     func(r *start.LoadRequest) { r.Steps[0].InFlight = 0 },
		"spec":          func(r *start.LoadRequest) { r.Spec = []byte("{") },
		"barrier":       func(r *start.LoadRequest) { r.Steps[0].Barrier = true }, // that waits for nothing
	} {
		req := storetest.Request()
		spoil(&req)
		_, err := b.TryLoad(req, storetest.Keys("a"))
		testenv.Fails(t, err, "%s: loaded", name)
	}
	b.WantNothing()
	req := storetest.Request()
	params("name", largest)(&req)
	b.Load(req, 1)
}

func TestLoadIsIdempotentByKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.IdempotencyKey, req.Spec = "year-end-2026", []byte(`{"chunk":4}`)
	const callers = 8
	results := make([]start.Loaded, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { results[i], errs[i] = b.TryLoad(req, storetest.Keys(storetest.Names(50)...)) })
	}
	wg.Wait()
	made := 0
	for i := range callers {
		testenv.MustSame(t, errs[i], nil, "caller %d", i)
		if !results[i].Existing {
			made++
		}
		if results[i].Run != results[0].Run || results[i].Items != 50 {
			t.Errorf("caller %d got %+v, the first %+v", i, results[i], results[0])
		}
	}
	if made != 1 || b.Number(`SELECT count(*) FROM batchrun`) != 1 {
		t.Errorf("%d callers made a run", made)
	}
	again, err := b.TryLoad(req, func(*start.LoadItem) error {
		t.Error("the items of a known run were read")
		return io.EOF
	})
	if err != nil || !again.Existing || again.Run != results[0].Run {
		t.Errorf("a later call got %+v, %v", again, err)
	}
	b.Check()
}

// What was read of a load is kept with its key: the key with anything else is refused, however many blocks it has.
func TestIdempotencyKeyWithOtherContent(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"in one transaction": 50, "in parts": storetest.Several} {
		subtest(t, name, func(b *bench) {
			req := storetest.Request()
			req.IdempotencyKey, req.Params = "k", map[string]string{"year": "2026"}
			req.Content = &start.Content{Said: map[string]string{"on_duplicate": "error"}, Items: true}
			first := testenv.Must(b.TryLoad(req, storetest.Keys(storetest.Names(n)...)))(b)
			if again, err := b.TryLoad(req, storetest.Keys(storetest.Names(n)...)); err != nil || !again.Existing ||
				again.Run != first.Run {
				b.Errorf("the same again: %+v, %v", again, err)
			}
			swapped := storetest.Names(n)
			swapped[0], swapped[1] = swapped[1], swapped[0]
			refused := func(what string, req start.LoadRequest, keys func(*start.LoadItem) error) {
				_, err := b.TryLoad(req, keys)
				if _, ok := errors.AsType[*workqueue.ConflictError](err); !ok || !strings.Contains(err.Error(), what) ||
					!strings.Contains(err.Error(), first.Run.String()) {
					b.Errorf("want %q: %v", what, err)
				}
			}
			refused("other keys, payloads or in another order", req, storetest.Keys(swapped...))
			refused("then, ", req, storetest.Keys(storetest.Names(n+1)...))
			further := req
			further.Spec = []byte(`{"chunk":5}`)
			refused(`key "k" has started run `+first.Run.String()+" with other content: the plan's chunk (none then, 5 now)",
				further, storetest.Keys(storetest.Names(n)...))
			further = req
			further.Params = map[string]string{"year": "2027"}
			refused(`parameter year ("2026" then, "2027" now)`, further, storetest.Keys(storetest.Names(n)...))
			further = req
			further.Content = &start.Content{Said: map[string]string{"on_duplicate": "skip"}, Items: true}
			refused(`on_duplicate ("error" then, "skip" now)`, further, storetest.Keys(storetest.Names(n)...))
			_, err := start.New(b.Store).TryLoad(b.Context(), further, b.TempDir(), storetest.Keys(storetest.Names(n)...))
			_ = testenv.As[*workqueue.ConflictError](b, err, "a trial")
			b.Check()
		})
	}
}

// No one claims of a run that is still loading, and nothing of it shows as an item.
func TestLoadShowsNothingBeforeTheSeal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	source := storetest.Keys(storetest.Names(2 * storetest.Several)...)
	count := 0
	loaded := testenv.Must(b.TryLoad(storetest.Chunked(500), func(item *start.LoadItem) error {
		if count++; count%storetest.Several == 0 {
			if found, err := dispatch.New(b.Store).RunnableSteps(t.Context(), dispatch.Search{}); err != nil ||
				len(found.Steps) > 0 {
				t.Errorf("before the seal %v, %v can be claimed of", found.Steps, err)
			}
			b.Check()
		}
		return source(item)
	}))(t)
	found, err := dispatch.New(b.Store).RunnableSteps(t.Context(), dispatch.Search{})
	if err != nil || len(found.Steps) != 1 || found.Steps[0].Run != loaded.Run {
		t.Errorf("after the seal %v, %v", found.Steps, err)
	}
	b.WantTally(loaded.Run, storetest.Tally{Ready: 2 * storetest.Several})
	last := b.Number(`SELECT ordinal FROM work_queue WHERE run_id = $1 AND item_key = $2`, loaded.Run,
		"C"+strconv.Itoa(2*storetest.Several-1))
	testenv.Same(t, last, 2*storetest.Several-1, "the last item has ordinal")
	b.Check()
}

// abandoned is a load that has written items and whose node is gone.
func (b *bench) abandoned(name string) {
	b.Helper()
	req := storetest.Request()
	req.Name, req.Session = name, b.Open()
	gate := make(chan error)
	l := b.goLoad(req, gated(heavy(20), 20, gate))
	b.Cleanup(func() { close(gate); _, _ = l.wait() })
	testenv.NoError(b, <-gate)
	b.Expire(req.Session)
}

// Payloads may be so large that what is deleted together takes too long: it is rolled back, and would be indefinitely.
func TestClearingTakesFewerRowsWhenTheyTakeTooLong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.abandoned("large")
	b.Exec(`CREATE FUNCTION takes_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 3 THEN
			RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
		END IF;
		RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER takes_long AFTER DELETE ON work_queue REFERENCING OLD TABLE AS gone
		FOR EACH STATEMENT EXECUTE FUNCTION takes_long()`)
	testenv.Same(t, len(testenv.Must(start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead()))(t)), 1, "cleared")
	b.WantNothing()
}

func TestALoadThatCannotBeClearedKeepsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.abandoned("stuck")
	b.abandoned("free")
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON batchrun FOR EACH ROW WHEN (OLD.name = 'stuck')
		EXECUTE FUNCTION refuse()`)
	cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead())
	if err == nil || !strings.Contains(err.Error(), "not this one") || len(cleared) != 1 {
		t.Errorf("cleared %v, %v; want one run, and the other's error", cleared, err)
	}
	testenv.Same(t, b.rowsOf("free"), 0, "items are left of the other")
	b.Exec(`DROP TRIGGER refuse ON batchrun`)
	testenv.Same(t, len(testenv.Must(start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead()))(t)), 1, "then cleared")
	b.WantNothing()
}

// A run of several batches of which nothing fits ended with its seal.
func TestRunOfInvalidItemsOnlyCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	next := storetest.Keys(storetest.Names(storetest.Several)...)
	loaded := testenv.Must(b.TryLoad(storetest.Request(), func(item *start.LoadItem) error {
		err := next(item)
		item.Invalid = "x"
		return err
	}))(t)
	b.WantState(loaded.Run, "completed", 1)
	b.WantCounts(loaded.Run, 0, storetest.Several)
	b.WantCompletions(loaded.Run, 1)
	testenv.Same(t, len(loaded.Completions), 1, "completions")
	for i, lost := range []string{"", ", started_at = tranche_now()"} { // the completion; the start, too
		b.Exec(`DELETE FROM run_event WHERE kind = 'completed'; UPDATE batchrun SET state = 'running'` + lost)
		tx := testenv.Must(b.Pool.Begin(t.Context()))(t)
		again := testenv.Must(settle.Complete(t.Context(), tx, loaded.Run))(t)
		testenv.NoError(t, tx.Commit(t.Context()))
		testenv.Same(t, again[0].Event.ID == loaded.Completions[0].Event.ID, i == 0, "%d: the event is the lost one", i)
	}
	b.Check()
}

func TestTooManyInvalidItemsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	i := 0
	_, err := b.TryLoad(storetest.Request(), func(item *start.LoadItem) error {
		item.Key, item.Payload, item.Invalid = fmt.Sprint("C", i), []byte(`{}`), "y"
		i++
		return nil
	})
	var many *workqueue.SettingError
	if !errors.As(err, &many) || b.Number(`SELECT count(*) FROM batchrun`) != 0 {
		t.Errorf("got %v", err)
	}
}

// What is invalid says nothing about how the sample of a canary does: no one was asked about it.
func TestInvalidItemsAreNoCanary(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string]struct {
		sample int
		want   control.CanaryVerdict
		hold   string
	}{
		"some of the sample": {30, control.CanaryPassed, ""},
		"all of it": {1, control.CanaryWaiting,
			"canary by tranche: no item of its canary was requested"},
	} {
		req := storetest.Chunked(10)
		req.Canary, req.CanaryAutoApprove = c.sample, true
		next, i := storetest.Keys(storetest.Names(90)...), 0
		run := testenv.Must(b.TryLoad(req, func(item *start.LoadItem) error {
			err := next(item)
			if err == nil && (c.sample == 1 && i < 89 || i%3 == 0) {
				item.Invalid = "balance: it is missing"
			}
			i++
			return err
		}))(t).Run
		b.Record(storetest.Wholes(b.Claim(run, storetest.Plenty))...)
		b.wantCanary(run, c.want)
		b.wantHold(run, c.hold)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	b.Check()
}

// A run that is started in a transaction of someone else is there with that one's rows or not at all, whatever ends it.
func TestLoadWithinATransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`CREATE TABLE own (n integer)`)
	begin := func() pgx.Tx {
		tx := testenv.Must(b.Pool.Begin(t.Context()))(t)
		testenv.Must(tx.Exec(t.Context(), `INSERT INTO own VALUES (1)`))(t)
		return tx
	}
	load := func(tx pgx.Tx, key string, keys ...string) (start.Loaded, error) {
		req := storetest.Request()
		req.Session, req.IdempotencyKey = b.Session, key
		return start.New(b.Store).LoadTx(t.Context(), tx, req, storetest.Keys(keys...))
	}
	own := func(want int) {
		t.Helper()
		testenv.Same(t, b.Number(`SELECT count(*) FROM own`), want, "own rows")
	}
	many := storetest.Names(storetest.Several)
	tx := begin()
	testenv.Must(load(tx, "", many...))(t)
	b.WantNothing()
	testenv.NoError(t, tx.Rollback(t.Context()))
	tx = begin()
	testenv.Must(load(tx, "", many...))(t)
	b.Exec(`SELECT pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
	testenv.Fails(t, tx.Commit(t.Context()), "a connection that ended has committed")
	b.WantNothing()
	own(0)
	tx = begin()
	_, err := load(tx, "", append(many, "C7")...)
	testenv.Says(t, err, `key "C7" is on line`, "a duplicate in another batch")
	testenv.NoError(t, tx.Commit(t.Context())) // the caller's rows stay
	b.WantNothing()
	own(1)
	tx = begin()
	ctx, cancel := context.WithCancel(t.Context())
	next := storetest.Keys(many...)
	_, err = start.New(b.Store).LoadTx(ctx, tx, storetest.Request(), func(item *start.LoadItem) error {
		if err := next(item); err != nil {
			cancel() // after batches were written
			return err
		}
		return nil
	})
	testenv.Is(t, err, context.Canceled, "the load")
	testenv.NoError(t, tx.Commit(t.Context()))
	b.WantNothing()
	own(2)

	tx = begin()
	first := testenv.Must(load(tx, "k", many...))(t)
	testenv.NoError(t, tx.Commit(t.Context()))
	testenv.Same(t, first.Items, int64(len(many)), "items")
	again := begin()
	known, err := load(again, "k")
	if err != nil || !known.Existing || known.Run != first.Run {
		t.Errorf("the same key again: %+v, %v", known, err)
	}
	testenv.NoError(t, again.Rollback(t.Context()))
	for key, end := range map[string]func(pgx.Tx) error{
		"committed":   func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"rolled back": func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
	} {
		one, two := begin(), begin()
		was := testenv.Must(load(one, key, "a"))(t)
		var got start.Loaded
		var wait sync.WaitGroup
		wait.Go(func() { got, err = load(two, key, "a") })
		b.Until("the second waits for the first", func() bool { return b.Waiters() == 1 })
		testenv.NoError(t, end(one))
		wait.Wait()
		if err != nil || got.Existing != (key == "committed") || got.Existing != (got.Run == was.Run) {
			t.Errorf("%s: %+v, %v", key, got, err)
		}
		testenv.NoError(t, two.Commit(t.Context()))
		b.Finish(got.Run)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE sealed_at IS NOT NULL`), 3, "runs")
	b.Check()
}

// loading is a load on a goroutine of its own.
type loading struct {
	run  start.Loaded
	err  error
	done chan struct{}
}

func (b *bench) goLoad(req start.LoadRequest, next func(*start.LoadItem) error) *loading {
	l := &loading{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.run, l.err = start.New(b.Store).Load(b.Context(), req, next)
	}()
	return l
}

func (l *loading) wait() (start.Loaded, error) {
	<-l.done
	return l.run, l.err
}

// gated holds items back, from the i-th on, until the gate is open; then it continues, or fails with an error. It tells
// the gate that it has come there: all batches are written by then, except two that may be on their way.
func gated(next func(*start.LoadItem) error, i int, gate chan error) func(*start.LoadItem) error {
	return func(item *start.LoadItem) error {
		if i--; i == -1 {
			gate <- nil
			if err := <-gate; err != nil {
				return err
			}
		}
		return next(item)
	}
}

func (b *bench) rowsOf(name string) int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id WHERE r.name = $1`, name)
}

// Two loading nodes fall asleep. While the leader clears the load of one, the other wakes up and seals its run: the
// leader, who had seen it as abandoned, leaves it alone.
func TestClearingLeavesALoadAloneThatWakesUpAndSeals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	const items = 20
	asleep, awake := make(chan error), make(chan error)
	begin := func(name string, gate chan error) (workqueue.SessionID, *loading) {
		req := storetest.Request()
		req.Name, req.Session = name, b.Open()
		l := b.goLoad(req, gated(heavy(items), items, gate))
		testenv.NoError(b, <-gate)
		b.Until("all is written", func() bool { return b.rowsOf(name) == items })
		return req.Session, l
	}
	first, stays := begin("stays asleep", asleep)
	second, wakes := begin("wakes up", awake)
	if cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), lease); err != nil || len(cleared) > 0 {
		t.Errorf("cleared %v, %v although their nodes live", cleared, err)
	}
	b.Expire(first)
	b.Expire(second)
	_, err := session.New(b.Store).Heartbeat(t.Context(), first, time.Hour, nil)
	testenv.Is(t, err, workqueue.ErrSessionLost, "the heartbeat of a session that is over")
	release := b.HoldRows(`SELECT 1 FROM batchrun WHERE name = 'stays asleep' FOR UPDATE`)
	var cleared []workqueue.RunID
	var clearErr error
	clearing := make(chan struct{})
	go func() {
		defer close(clearing)
		cleared, clearErr = start.New(b.Store).ClearAbandonedLoads(t.Context(), lease)
	}()
	b.Until("the leader is at the first load", func() bool { return b.Waiters() == 1 })
	close(awake)
	loaded, err := wakes.wait()
	testenv.MustSame(t, err, nil, "the load that woke up")
	release()
	<-clearing
	if clearErr != nil || len(cleared) != 1 || cleared[0] == loaded.Run {
		t.Errorf("cleared %v, %v; want the other run than %s", cleared, clearErr, loaded.Run)
	}
	close(asleep)
	_, err = stays.wait()
	testenv.Is(t, err, workqueue.ErrSessionLost, "the load that slept on")
	if n := b.Number(`SELECT count(*) FROM batchrun`); n != 1 || b.rowsOf("wakes up") != items {
		t.Errorf("%d runs are left, and %d items of %d", n, b.rowsOf("wakes up"), items)
	}
	b.WantState(loaded.Run, "running", 1)
	if sealed, err := start.New(b.Store).ClearLoad(t.Context(), loaded.Run); !sealed || err != nil {
		t.Errorf("clear the sealed run: sealed %v, %v", sealed, err)
	}
	b.Check()
	b.Finish(loaded.Run)
	b.WantState(loaded.Run, "completed", 1)
}

// A load that is being undone still has its idempotency key. A start with the key must wait, and is never
// told of a run that will be gone.
func TestKeyOfALoadThatIsTakenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.IdempotencyKey, req.Session = "k", b.Session
	broken := errors.New("the upload broke")
	gate := make(chan error)
	failing := b.goLoad(req, gated(heavy(20), 19, gate))
	testenv.NoError(b, <-gate)
	wantStateError := func(when string) {
		t.Helper()
		loaded, err := b.TryLoad(req, few(4))
		if _, ok := errors.AsType[*workqueue.StateError](err); !ok || loaded.Existing {
			t.Errorf("while the load %s: %+v, %v; want a StateError", when, loaded, err)
		}
	}
	wantStateError("is in progress")
	release := b.HoldRows(`SELECT 1 FROM work_queue LIMIT 1 FOR UPDATE`)
	gate <- broken
	b.Until("the load is being undone", func() bool {
		return b.Number(`SELECT count(*) FROM batchrun WHERE state = 'cancelled'`) == 1 && b.Waiters() == 1
	})
	wantStateError("is being undone")
	release()
	_, err := failing.wait()
	testenv.Is(t, err, broken, "the load ended with")
	b.WantNothing()
	loaded, err := b.TryLoad(req, few(4))
	if err != nil || loaded.Existing {
		t.Errorf("afterwards: %+v, %v; want a new run", loaded, err)
	}
	b.Check()
}
