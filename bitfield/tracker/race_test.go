package tracker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// call is an operation that may report completion.
type call func(ctx context.Context, tx pgx.Tx) (completed bool, err error)

func sealing(id uuid.UUID) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) { return tracker.Seal(ctx, tx, id) }
}

func acking(id uuid.UUID, acks ...tracker.Ack) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		acked, err := tracker.AckMasks(ctx, tx, id, acks)
		return acked.Completed, err
	}
}

func rearming(id uuid.UUID, items ...tracker.Ack) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		_, err := tracker.Rearm(ctx, tx, id, items)
		return false, err
	}
}

func cancelling(id uuid.UUID) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) { return false, tracker.Cancel(ctx, tx, id) }
}

func adding(id uuid.UUID, sizes ...int) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		_, err := tracker.AddGroups(ctx, tx, id, sizes)
		return false, err
	}
}

// behind runs second in a separate transaction while that of first is open, waits until PostgreSQL says that it waits
// for first, and ends first then. That it waited is part of the assertion: without a meeting there was no race.
func (b *bench) behind(
	first pgx.Tx, second func(context.Context, pgx.Tx) error, end func(context.Context) error,
) error {
	b.Helper()
	tx := b.begin()
	done := make(chan error, 1)
	go func() {
		err := second(b.Context(), tx)
		if err == nil {
			err = tx.Commit(b.Context())
		} else {
			_ = tx.Rollback(b.Context())
		}
		done <- err
	}()
	waiter, holder := int(tx.Conn().PgConn().PID()), int(first.Conn().PgConn().PID())
	testenv.Until(b, time.Minute, "the second call waits for the first", func() bool {
		return b.count(`SELECT ($2::int = ANY (pg_blocking_pids($1::int)))::int`, waiter, holder) == 1
	})
	testenv.NoError(b, end(b.Context()))
	return <-done
}

// outcome is what two racing calls reported.
type outcome struct{ first, second bool }

// race runs second behind first, which commits unless it is to go back.
func (b *bench) race(first, second call, back bool) (got outcome, err error) {
	b.Helper()
	tx := b.begin()
	got.first, err = first(b.Context(), tx)
	testenv.NoError(b, err)
	end := tx.Commit
	if back {
		end = tx.Rollback
	}
	err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
		got.second, err = second(ctx, tx)
		return err
	}, end)
	return got, err
}

func (b *bench) inTurn(calls ...call) {
	b.Helper()
	for _, c := range calls {
		in(b, c)
	}
}

// meeting is two calls of which the second waits for the first, and what comes of it.
type meeting struct {
	sizes         []int
	first, second func(id uuid.UUID) call
	want          outcome
	state         tracker.State
	before        []func(id uuid.UUID) call
	back, refused bool // the first goes back; the second is refused
}

func meetings() map[string]meeting {
	type of = func(id uuid.UUID) call
	ack := func(acks ...tracker.Ack) of { return func(id uuid.UUID) call { return acking(id, acks...) } }
	rearm := func(acks ...tracker.Ack) of { return func(id uuid.UUID) call { return rearming(id, acks...) } }
	add := func(sizes ...int) of { return func(id uuid.UUID) call { return adding(id, sizes...) } }
	sealed, done := []of{sealing}, []of{ack(first(0, 4)), sealing}
	neither, one, two := outcome{}, outcome{first: true}, outcome{second: true}
	const open, seal, completed = tracker.StateOpen, tracker.StateSealed, tracker.StateCompleted
	return map[string]meeting{
		"seal, then the last ack": {[]int{3}, sealing, ack(first(0, 3)), two, completed, nil, false, false},
		"the last ack, then seal": {[]int{3}, ack(first(0, 3)), sealing, two, completed, nil, false, false},
		"a seal that goes back":   {[]int{3}, sealing, ack(first(0, 3)), neither, open, nil, true, false},
		"an ack that goes back":   {[]int{3}, ack(first(0, 3)), sealing, neither, seal, nil, true, false},
		"acks of the last two groups, upwards": {
			[]int{3, 4}, ack(first(0, 3)), ack(first(1, 4)), two, completed, sealed, false, false},
		"acks of the last two groups, downwards": {
			[]int{3, 4}, ack(first(1, 4)), ack(first(0, 3)), two, completed, sealed, false, false},
		"acks of the two halves of the last group": {
			[]int{4}, ack(some(0, 0, 1)), ack(some(0, 2, 3)), two, completed, sealed, false, false},
		"the last ack, twice":      {[]int{4}, ack(first(0, 4)), ack(first(0, 4)), one, completed, sealed, false, false},
		"the last ack, then rearm": {[]int{4}, ack(first(0, 4)), rearm(some(0, 1)), one, seal, sealed, false, false},
		"rearm of another group, then the last ack": {
			[]int{4, 4}, rearm(some(1, 1)), ack(first(0, 4)), neither, seal, sealed, false, false},
		"rearm, then an early ack of what it rearms": {
			[]int{4}, rearm(some(0, 1)), ack(first(0, 4)), two, completed, done, false, false},
		"rearm, then rearm": {[]int{4}, rearm(some(0, 1)), rearm(some(0, 2)), neither, seal, done, false, false},
		"cancel, then the last ack": {
			[]int{4}, cancelling, ack(first(0, 4)), neither, tracker.StateCancelled, sealed, false, false},
		"seal, then seal":  {nil, sealing, sealing, one, completed, nil, false, false},
		"seal, then add":   {nil, sealing, add(5), one, completed, nil, false, true},
		"add, then an ack": {[]int{3}, add(5, 5, 5), ack(first(0, 3)), neither, open, nil, false, false},
		"add, then rearm": {
			[]int{4, 3}, add(5, 5, 5), rearm(some(0, 1)), neither, open, []of{ack(first(0, 4))}, false, false},
		"add, then seal": {nil, add(5), sealing, neither, seal, nil, false, false},
	}
}

func TestForcedRaces(t *testing.T) {
	t.Parallel()
	all := setup(t) // batches are apart
	for name, tc := range meetings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bench{TB: t, pool: all.pool}
			id := b.run(tc.sizes...)
			for _, before := range tc.before {
				b.inTurn(before(id))
			}
			got, err := b.race(tc.first(id), tc.second(id), tc.back)
			_, refused := errors.AsType[*tracker.StateError](err)
			if got != tc.want || refused != tc.refused || (err != nil) != refused {
				t.Errorf("got %+v, want %+v; %v", got, tc.want, err)
			}
			row := b.row(id)
			groups := b.count(`SELECT count(*) FROM tracker_group WHERE batch_id = $1`, id)
			open := b.count(`SELECT count(*) FROM tracker_group WHERE batch_id = $1 AND bit_count(pending) > 0`, id)
			if row.State != tc.state || row.Groups != groups || row.OpenGroups != open {
				t.Errorf("%d groups, %d of them open; the batch is left as %+v", groups, open, row)
			}
		})
	}
}

// TestAcksShareNoRow holds an ack open, and acks other groups of the same batch under a lock_timeout that would end any
// wait: only acks that empty a group may meet.
func TestAcksShareNoRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.run(10, 10, 10)
	testenv.Must(acking(id, some(0, 1))(t.Context(), b.begin()))(t)
	for _, c := range []call{acking(id, some(1, 1), first(2, 10)), sealing(id)} {
		in(b, func(ctx context.Context, tx pgx.Tx) (bool, error) {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
				return false, err
			}
			return c(ctx, tx)
		})
	}
}

// together runs the calls at the same moment, each in a transaction of its own, and returns how often completion was
// reported.
func (b *bench) together(calls ...call) int64 {
	b.Helper()
	var completions atomic.Int64
	group := errgroup.Group{}
	for _, c := range calls {
		group.Go(func() error {
			completed, err := try(b, c)
			if completed {
				completions.Add(1)
			}
			return err
		})
	}
	testenv.NoError(b, group.Wait())
	return completions.Load()
}

// TestAcksInAnyOrderNeverDeadlock lets several callers ack overlapping groups, given in random order, while the batch
// is sealed: no call fails, and exactly one completes. So again with what is rearmed.
func TestAcksInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 20 {
		id := b.run(3, 3, 3, 3)
		acks := []tracker.Ack{first(0, 3), first(1, 3), first(2, 3), first(3, 3)}
		calls := []call{sealing(id)}
		for range 3 {
			rand.Shuffle(len(acks), func(i, j int) { acks[i], acks[j] = acks[j], acks[i] })
			calls = append(calls, acking(id, slices.Clone(acks)...))
		}
		testenv.MustSame(t, b.together(calls...), 1, "round %d: reports of completion", round)
		b.inTurn(rearming(id, some(round%4, 1)))
		testenv.MustSame(t, b.together(calls[1:]...), 1, "round %d: reports of the next", round)
	}
}

// TestTwoDoTheSame has a second caller open, and add, under the same key while the first has not committed.
func TestTwoDoTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, back := range map[string]bool{"the first commits": false, "the first goes back": true} {
		r := tracker.OpenRequest{Owner: "o", Key: name}
		var opened [2]tracker.Opened
		open := func(i int) call {
			return func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
				opened[i], err = tracker.OpenTracker(ctx, tx, r)
				return false, err
			}
		}
		_, err := b.race(open(0), open(1), back)
		if err != nil || opened[1].Existing == back || (opened[0].ID == opened[1].ID) == back {
			t.Errorf("%s: opened %+v, %v", name, opened, err)
		}
		id := opened[1].ID
		var added [2]tracker.Added
		add := func(i int) call {
			return func(ctx context.Context, tx pgx.Tx) (_ bool, err error) {
				added[i], err = tracker.AddItems(ctx, tx, id, 9000, "page 7")
				return false, err
			}
		}
		_, err = b.race(add(0), add(1), back)
		if added[0].Existing = !back; err != nil || added[0] != added[1] {
			t.Errorf("%s: added %+v, %v", name, added, err)
		}
		if got := b.get(id); got.Items != 9000 || got.Groups != 2 || got.Pending != 9000 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM tracker_batch`), 2, "batches")
}

// TestPurgeBehindALateAck deletes a tracker while an ack of it is not committed: nothing is left behind.
func TestPurgeBehindALateAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(9000)
	tx := b.begin()
	late := []tracker.ItemsAck{failed("E", id, some(0, 1), some(1, 1))}
	testenv.Must(tracker.AckItems(t.Context(), tx, late))(t)
	testenv.NoError(t, b.tryDelete(id))
	var rows int
	err := b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err = tracker.Purge(ctx, tx, 100)
		return err
	}, tx.Commit)
	if err != nil || rows != 5 {
		t.Errorf("%d rows were deleted, %v: two groups, two masks and the batch", rows, err)
	}
	testenv.Same(t, b.count(`SELECT (SELECT count(*) FROM tracker_group) + (SELECT count(*) FROM tracker_failed)`), 0,
		"rows are left behind")
}

// TestWholeGroupsRaceMasks lets an ack of everything meet acks by masks, of several trackers in one call: no one waits
// in a circle, and each item is acknowledged once.
func TestWholeGroupsRaceMasks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const groups = 40
	ids := []uuid.UUID{b.open(groups * 8192), b.open(groups * 8192)}
	var newly atomic.Int64
	var calls []call
	for _, acks := range [][]tracker.ItemsAck{
		{all(ids[1]), all(ids[0])},
		{{Batch: ids[0], All: true, Code: "E1"}, items(ids[1], some(groups-1, 1))},
		{items(ids[1], first(3, 8192), first(1, 100)), whole(ids[1], 0, 5)},
		{failed("E2", ids[0], first(groups-1, 8192), first(0, 8192)), whole(ids[0], 7, 9)},
	} {
		calls = append(calls, func(ctx context.Context, tx pgx.Tx) (bool, error) {
			acked, err := tracker.AckItems(ctx, tx, acks)
			for _, a := range acked {
				newly.Add(int64(a.Newly))
			}
			return false, err
		})
	}
	b.together(calls...)
	testenv.Same(t, newly.Load(), 2*groups*8192, "items acknowledged")
	for _, id := range ids {
		got := b.get(id)
		if got.Pending != 0 || got.Done+got.Failed != groups*8192 || !b.seal(id) || len(b.events(id)) != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestSealRacesTheLastAck lets the seal and the last ack of a tracker meet, in both orders, and over and over in none:
// exactly one of them reports completion, and there is one event.
func TestSealRacesTheLastAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	both := func(id uuid.UUID) (seal, ack call) {
		return func(ctx context.Context, tx pgx.Tx) (bool, error) { return tracker.SealTracker(ctx, tx, id) },
			func(ctx context.Context, tx pgx.Tx) (bool, error) {
				acked, err := tracker.AckItems(ctx, tx, []tracker.ItemsAck{items(id, some(0, 0))})
				return err == nil && acked[0].Completed, err
			}
	}
	const races = 50
	for range races {
		testenv.MustSame(t, b.together(both(b.open(1))), 1, "calls completed it")
	}
	for i := range 2 {
		first, second := both(b.open(1))
		if i == 1 {
			first, second = second, first
		}
		testenv.Same(t, testenv.Must(b.race(first, second, false))(t), (outcome{second: true}),
			"the one who came second was to complete it")
	}
	testenv.Same(t, b.count(`SELECT count(DISTINCT run_id) + 1000 * count(*) FROM run_event`), 1001*(races+2),
		"trackers with one event")
}
