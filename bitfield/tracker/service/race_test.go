package service_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

// racesVariable asks for more races of a seal with the last ack than the suite has time for.
const racesVariable = "TRANCHE_TRACKER_RACES"

// openManySQL opens batches of one group of two items, the first of which is acknowledged.
const openManySQL = `
WITH b AS (
    INSERT INTO tracker_batch (id, owner, state, groups, open_groups, items)
    SELECT id, 'service', 'open', 1, 1, 2 FROM unnest($1::uuid[]) AS id RETURNING id
), s AS (
    INSERT INTO tracker_service (batch_id, owner, open_idle, sealed_idle, keep, reap_at)
    SELECT id, 'test', '1 day', '1 day', '1 day', tranche_now() + interval '1 day' FROM b
)
INSERT INTO tracker_group (batch_id, grp, size, pending)
SELECT id, 0, 2, set_bit(B'0'::bit(8192), 1, 1) FROM b`

// meeting is how a seal and the last ack meet.
type meeting int

const (
	sealFirst meeting = iota // the ack is sent while the seal's transaction is open
	ackFirst                 // the other way round
	atOnce                   // no one waits
	meetings
)

// TestSealRacesTheLastAck lets the seal and the last ack of a batch meet, over and over, in both orders and in none:
// exactly one of them reports completion, and there is one event.
func TestSealRacesTheLastAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	races := 900
	if more := os.Getenv(racesVariable); more != "" {
		n, err := strconv.Atoi(more)
		if err != nil {
			t.Fatalf("%s: %v", racesVariable, err)
		}
		races = n
	}
	ids := make([]uuid.UUID, races)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	b.exec(openManySQL, ids)
	var told [meetings][2]atomic.Int64 // by the seal, by the ack
	pairs := errgroup.Group{}
	pairs.SetLimit(2)
	for i, id := range ids {
		pairs.Go(func() error {
			m := meeting(i) % meetings
			bySeal, byAck, err := b.meet(m, id)
			if err != nil || bySeal == byAck {
				return fmt.Errorf("race %d, meeting %d: completed by the seal %v, by the ack %v: %w", i, m, bySeal, byAck, err)
			}
			if bySeal {
				told[m][0].Add(1)
			} else {
				told[m][1].Add(1)
			}
			return nil
		})
	}
	if err := pairs.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`SELECT count(*) FROM run_event WHERE kind = 'tracker.completed'`); n != races {
		t.Errorf("%d events of %d batches", n, races)
	}
	if n := b.count(`SELECT count(DISTINCT run_id) FROM run_event`); n != races {
		t.Errorf("%d batches have an event, of %d", n, races)
	}
	if told[sealFirst][0].Load() != 0 || told[ackFirst][1].Load() != 0 {
		t.Error("the one who came first completed a batch: the two did not meet in that order")
	}
	t.Logf("%d races; completed by seal, by ack, at once: %d, %d", races, told[atOnce][0].Load(), told[atOnce][1].Load())
}

// meet runs the two calls in transactions of their own, and says which of them reported completion.
func (b *bench) meet(m meeting, id uuid.UUID) (bySeal, byAck bool, err error) {
	open := make(chan struct{}) // the first transaction has made its call
	wait := func(mine meeting) {
		if m != mine && m != atOnce {
			<-open
		}
	}
	var once sync.Once
	made := func() { once.Do(func() { close(open) }) }
	both := errgroup.Group{}
	both.Go(func() error {
		defer made()
		wait(sealFirst)
		return b.try(func(ctx context.Context, tx pgx.Tx) (err error) {
			bySeal, err = service.Seal(ctx, tx, id)
			made()
			return err
		})
	})
	both.Go(func() error {
		defer made()
		wait(ackFirst)
		return b.try(func(ctx context.Context, tx pgx.Tx) error {
			acked, err := service.Ack(ctx, tx, []service.BatchAck{items(id, some(0, 1))})
			made()
			byAck = err == nil && acked[0].Completed
			return err
		})
	})
	err = both.Wait()
	return bySeal, byAck, err
}

// behind runs call while first is open and not committed, waits until PostgreSQL says that call waits for first, and
// ends first then. That it waited is part of the assertion.
func (b *bench) behind(
	first pgx.Tx, call func(ctx context.Context, tx pgx.Tx) error, end func(context.Context) error,
) error {
	b.Helper()
	second := b.begin()
	done := make(chan error, 1)
	go func() {
		err := call(b.Context(), second)
		if err == nil {
			err = second.Commit(b.Context())
		}
		done <- err
	}()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	deadline := time.After(time.Minute)
	for blocked := false; !blocked; {
		if err := b.pool.QueryRow(b.Context(), `SELECT $2::int = ANY (pg_blocking_pids($1::int))`,
			int(second.Conn().PgConn().PID()), int(first.Conn().PgConn().PID())).Scan(&blocked); err != nil {
			b.Fatal(err)
		}
		select {
		case <-poll.C:
		case <-deadline:
			b.Fatal("the second call never waited for the first: they do not race")
		}
	}
	if err := end(b.Context()); err != nil {
		b.Fatal(err)
	}
	return <-done
}

const commits = "the first commits"

// ends are how the first of two transactions ends.
func ends() map[string]func(tx pgx.Tx) func(context.Context) error {
	return map[string]func(tx pgx.Tx) func(context.Context) error{
		commits:               func(tx pgx.Tx) func(context.Context) error { return tx.Commit },
		"the first goes back": func(tx pgx.Tx) func(context.Context) error { return tx.Rollback },
	}
}

// TestTwoProducersAddTheSame has the second producer come while the first is not committed, with the same key.
func TestTwoProducersAddTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range ends() {
		id := b.open()
		tx := b.begin()
		one, err := service.Add(t.Context(), tx, id, 9000, "page 7")
		if err != nil {
			t.Fatal(err)
		}
		var two service.Added
		err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
			two, err = service.Add(ctx, tx, id, 9000, "page 7")
			return err
		}, end(tx))
		if one.Existing = name == commits; err != nil || two != one {
			t.Errorf("%s: the second got %+v, %v; want %+v", name, two, err, one)
		}
		if got := b.get(id); got.Items != 9000 || got.Groups != 2 || got.Pending != 9000 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestTwoOpenTheSame does the same with an owner's key.
func TestTwoOpenTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range ends() {
		r := service.OpenRequest{Owner: "o", Key: name}
		tx := b.begin()
		one, err := service.Open(t.Context(), tx, r)
		if err != nil {
			t.Fatal(err)
		}
		var two service.Opened
		err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
			two, err = service.Open(ctx, tx, r)
			return err
		}, end(tx))
		if same := name == commits; err != nil || two.Existing != same || (two.ID == one.ID) != same {
			t.Errorf("%s: %+v and %+v, %v", name, one, two, err)
		}
	}
	if n := b.count(`SELECT count(*) FROM tracker_batch`); n != 2 {
		t.Errorf("%d batches, want 2", n)
	}
}

// TestKilledBetweenAckAndCommit ends the connection of an ack that completed a batch before it could commit.
func TestKilledBetweenAckAndCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(3)
	b.seal(id)
	tx := b.begin()
	acked, err := service.Ack(t.Context(), tx, []service.BatchAck{failed("E", id, first(0, 3))})
	if err != nil || !acked[0].Completed {
		t.Fatalf("%+v, %v", acked, err)
	}
	err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) error {
		acked, err = service.Ack(ctx, tx, []service.BatchAck{items(id, first(0, 2))})
		return err
	}, func(ctx context.Context) error {
		_, err := b.pool.Exec(ctx, `SELECT pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
		return err
	})
	if err != nil || acked[0] != (service.Acked{Newly: 2}) {
		t.Errorf("the one behind it: %+v, %v", acked, err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the killed transaction was committed")
	}
	if got := b.get(id); got.Failed != 0 || got.Pending != 1 || len(b.events(id)) != 0 {
		t.Errorf("a killed ack left %+v", got)
	}
	if acked = b.ack(failed("E", id, first(0, 3))); acked[0] != (service.Acked{Newly: 1, Completed: true}) {
		t.Errorf("the next ack: %+v", acked)
	}
	if got := b.get(id); got.Failed != 1 || got.Done != 2 || len(b.events(id)) != 1 {
		t.Errorf("at the end: %+v, %+v", got, b.events(id))
	}
}

// TestPurgeBehindALateAck deletes a batch while an ack of it is not committed: nothing is left behind.
func TestPurgeBehindALateAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(9000)
	tx := b.begin()
	if _, err := service.Ack(t.Context(), tx, []service.BatchAck{failed("E", id, some(0, 1), some(1, 1))}); err != nil {
		t.Fatal(err)
	}
	b.in(func(ctx context.Context, tx pgx.Tx) error { return service.Delete(ctx, tx, id) })
	var rows int
	err := b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err = service.Purge(ctx, tx, 100)
		return err
	}, tx.Commit)
	if err != nil || rows != 5 {
		t.Errorf("%d rows were deleted, %v: two groups, two masks and the batch", rows, err)
	}
	if n := b.count(`SELECT (SELECT count(*) FROM tracker_group) + (SELECT count(*) FROM tracker_failed)`); n != 0 {
		t.Errorf("%d rows are left behind", n)
	}
}

// TestWholeGroupsRaceMasks lets an ack of everything meet acks by masks, of several batches in one call: no one waits
// in a circle, and each item is acknowledged once.
func TestWholeGroupsRaceMasks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const groups = 40
	ids := []uuid.UUID{b.open(groups * 8192), b.open(groups * 8192)}
	for _, id := range ids {
		b.seal(id)
	}
	calls := [][]service.BatchAck{
		{all(ids[1]), all(ids[0])},
		{{Batch: ids[0], All: true, Code: "E1"}, items(ids[1], some(groups-1, 1))},
		{items(ids[1], first(3, 8192), first(1, 100)), {Batch: ids[1], Whole: []tracker.Span{{First: 0, Last: 5}}}},
		{
			failed("E2", ids[0], first(groups-1, 8192), first(0, 8192)),
			{Batch: ids[0], Whole: []tracker.Span{{First: 7, Last: 9}}},
		},
	}
	var newly, completed atomic.Int64
	together := errgroup.Group{}
	for _, call := range calls {
		together.Go(func() error {
			acked, err := b.tryAck(call...)
			for _, a := range acked {
				newly.Add(a.Newly)
				if a.Completed {
					completed.Add(1)
				}
			}
			return err
		})
	}
	if err := together.Wait(); err != nil {
		t.Fatal(err)
	}
	if newly.Load() != 2*groups*8192 || completed.Load() != 2 {
		t.Errorf("%d items acknowledged, %d completions", newly.Load(), completed.Load())
	}
	for _, id := range ids {
		got := b.get(id)
		if got.Pending != 0 || got.Done+got.Failed != groups*8192 || got.State != tracker.StateCompleted ||
			len(b.events(id)) != 1 {
			t.Errorf("%+v", got)
		}
	}
}
