package tracker_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// call is an operation of the package that may report completion.
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

// outcome is what two racing calls reported.
type outcome struct {
	first, second bool
	secondErr     error
}

func (o outcome) completions() int {
	n := 0
	for _, completed := range []bool{o.first, o.second} {
		if completed {
			n++
		}
	}
	return n
}

// race runs first in a transaction that it holds open, starts second, waits until PostgreSQL says that second is
// waiting for first, and only then ends first. That second waited is part of the assertion: without a meeting there was
// no race.
func (b *bench) race(first, second call, end func(context.Context, pgx.Tx) error) outcome {
	b.Helper()
	ctx := b.Context()
	var got outcome
	holder, waiter := b.begin(), b.begin()
	got.first = must(first(ctx, holder))(b)

	done := make(chan struct{})
	go func() {
		defer close(done)
		got.second, got.secondErr = second(ctx, waiter)
	}()
	b.waitsFor(waiter.Conn().PgConn().PID(), holder.Conn().PgConn().PID())
	if err := end(ctx, holder); err != nil {
		b.Fatal(err)
	}
	<-done
	if got.secondErr != nil {
		if err := waiter.Rollback(ctx); err != nil {
			b.Fatal(err)
		}
		return got
	}
	b.commit(waiter)
	return got
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// waitsFor returns once the backend waiter waits for a lock that the backend holder has.
func (b *bench) waitsFor(waiter, holder uint32) {
	b.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	deadline := time.After(time.Minute)
	for {
		var blocked bool
		err := b.pool.QueryRow(b.Context(), `SELECT $2::int = ANY (pg_blocking_pids($1::int))`,
			int(waiter), int(holder)).Scan(&blocked)
		if err != nil {
			b.Fatal(err)
		}
		if blocked {
			return
		}
		select {
		case <-poll.C:
		case <-deadline:
			b.Fatal("the second call never waited for the first: they do not race")
		}
	}
}

func commits(ctx context.Context, tx pgx.Tx) error   { return tx.Commit(ctx) }
func rollsBack(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }

// inTurn makes the calls one at a time, each in a transaction of its own.
func (b *bench) inTurn(calls ...call) {
	b.Helper()
	for _, c := range calls {
		b.in(func(tx pgx.Tx) error {
			_, err := c(b.Context(), tx)
			return err
		})
	}
}

// counted checks that the batch row says what its groups say.
func (b *bench) counted(id uuid.UUID) {
	b.Helper()
	var groups, open int
	var items int64
	err := b.pool.QueryRow(b.Context(), `
		SELECT count(*), count(*) FILTER (WHERE bit_count(pending) > 0), coalesce(sum(size), 0)
		FROM tracker_group WHERE batch_id = $1`, id).Scan(&groups, &open, &items)
	if err != nil {
		b.Fatal(err)
	}
	if got := b.get(id); got.Groups != groups || got.OpenGroups != open || got.Items != items {
		b.Errorf("%d groups, %d of them open, %d items; the batch says %+v", groups, open, items, got)
	}
}

func sealed(id uuid.UUID) []call { return []call{sealing(id)} }

func TestForcedRaces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sizes  []int
		before func(id uuid.UUID) []call
		first  func(id uuid.UUID) call
		second func(id uuid.UUID) call
		want   outcome
		state  tracker.State
	}{
		"seal, then the last ack": {
			sizes:  []int{3},
			first:  sealing,
			second: func(id uuid.UUID) call { return acking(id, whole(0, 3)) },
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"the last ack, then seal": {
			sizes:  []int{3},
			first:  func(id uuid.UUID) call { return acking(id, whole(0, 3)) },
			second: sealing,
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"acks of the last two groups, upwards": {
			before: sealed, sizes: []int{3, 4},
			first:  func(id uuid.UUID) call { return acking(id, whole(0, 3)) },
			second: func(id uuid.UUID) call { return acking(id, whole(1, 4)) },
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"acks of the last two groups, downwards": {
			before: sealed, sizes: []int{3, 4},
			first:  func(id uuid.UUID) call { return acking(id, whole(1, 4)) },
			second: func(id uuid.UUID) call { return acking(id, whole(0, 3)) },
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"acks of the two halves of the last group": {
			before: sealed, sizes: []int{4},
			first:  func(id uuid.UUID) call { return acking(id, some(0, 0, 1)) },
			second: func(id uuid.UUID) call { return acking(id, some(0, 2, 3)) },
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"the last ack, twice": {
			before: sealed, sizes: []int{4},
			first:  func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			second: func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			want:   outcome{first: true}, state: tracker.StateCompleted,
		},
		"the last ack, then rearm": {
			before: sealed, sizes: []int{4},
			first:  func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			second: func(id uuid.UUID) call { return rearming(id, some(0, 1)) },
			want:   outcome{first: true}, state: tracker.StateSealed,
		},
		"rearm of another group, then the last ack": {
			before: sealed, sizes: []int{4, 4},
			first:  func(id uuid.UUID) call { return rearming(id, some(1, 1)) },
			second: func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			state:  tracker.StateSealed,
		},
		"rearm, then an early ack of what it rearms": {
			sizes:  []int{4},
			before: func(id uuid.UUID) []call { return []call{acking(id, whole(0, 4)), sealing(id)} },
			first:  func(id uuid.UUID) call { return rearming(id, some(0, 1)) },
			second: func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			want:   outcome{second: true}, state: tracker.StateCompleted,
		},
		"rearm, then rearm": {
			sizes:  []int{4},
			before: func(id uuid.UUID) []call { return []call{acking(id, whole(0, 4)), sealing(id)} },
			first:  func(id uuid.UUID) call { return rearming(id, some(0, 1)) },
			second: func(id uuid.UUID) call { return rearming(id, some(0, 2)) },
			state:  tracker.StateSealed,
		},
		"cancel, then the last ack": {
			before: sealed, sizes: []int{4},
			first:  cancelling,
			second: func(id uuid.UUID) call { return acking(id, whole(0, 4)) },
			state:  tracker.StateCancelled,
		},
		"seal, then seal": {
			sizes: []int{}, first: sealing, second: sealing,
			want: outcome{first: true}, state: tracker.StateCompleted,
		},
		"add, then an ack": {
			sizes:  []int{3},
			first:  func(id uuid.UUID) call { return adding(id, 5, 5, 5) },
			second: func(id uuid.UUID) call { return acking(id, whole(0, 3)) },
			state:  tracker.StateOpen,
		},
		"add, then rearm": {
			sizes:  []int{3, 3},
			before: func(id uuid.UUID) []call { return []call{acking(id, whole(0, 3))} },
			first:  func(id uuid.UUID) call { return adding(id, 5, 5, 5) },
			second: func(id uuid.UUID) call { return rearming(id, some(0, 1)) },
			state:  tracker.StateOpen,
		},
		"add, then seal": {
			sizes:  []int{},
			first:  func(id uuid.UUID) call { return adding(id, 5) },
			second: sealing, state: tracker.StateSealed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.open(tc.sizes...)
			if tc.before != nil {
				b.inTurn(tc.before(id)...)
			}
			got := b.race(tc.first(id), tc.second(id), commits)
			if got != tc.want {
				t.Errorf("got %+v, want %+v; %v", got, tc.want, got.secondErr)
			}
			if batch := b.get(id); batch.State != tc.state {
				t.Errorf("the batch is left as %+v", batch)
			}
			b.counted(id)
		})
	}
}

func TestAddBehindSealIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open()
	got := b.race(sealing(id), adding(id, 5), commits)
	var state *tracker.StateError
	if !got.first || !asState(got.secondErr, &state) || state.State != tracker.StateCompleted {
		t.Errorf("got %+v", got)
	}
	if batch := b.get(id); batch.Groups != 0 {
		t.Errorf("a group slipped in: %+v", batch)
	}
}

// TestRolledBackRacers ends the first call with a rollback: the second then decides as if it had been alone, and no one
// hangs.
func TestRolledBackRacers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(3)
	if got := b.race(sealing(id), acking(id, whole(0, 3)), rollsBack); got != (outcome{}) {
		t.Errorf("ack behind a seal that was rolled back: %+v", got)
	}
	if !b.seal(id) {
		t.Error("the next seal did not complete the batch")
	}
	id = b.open(3)
	if got := b.race(acking(id, whole(0, 3)), sealing(id), rollsBack); got != (outcome{}) {
		t.Errorf("seal behind an ack that was rolled back: %+v", got)
	}
	if got := b.ack(id, whole(0, 3)); !got.Completed {
		t.Errorf("the next ack did not complete the batch: %+v", got)
	}
}

// TestAcksShareNoRow holds an ack open, and acks other groups of the same batch under a lock_timeout that would end any
// wait: only acks that empty a group may meet.
func TestAcksShareNoRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(10, 10, 10)
	held := b.begin()
	must(acking(id, some(0, 1))(t.Context(), held))(t)
	b.in(func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '1ms'`); err != nil {
			return err
		}
		_, err := tracker.AckMasks(t.Context(), tx, id, []tracker.Ack{some(1, 1), whole(2, 10)})
		return err
	})
	b.in(func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '1ms'`); err != nil {
			return err
		}
		_, err := tracker.Seal(t.Context(), tx, id)
		return err
	})
	b.commit(held)
}
