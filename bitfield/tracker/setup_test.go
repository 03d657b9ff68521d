package tracker_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// bench holds a database of the test's own, and says fatal what would otherwise be an error to return.
type bench struct {
	testing.TB
	pool *pgxpool.Pool
}

func TestMain(m *testing.M) { testenv.Main(m) }

func setup(t testing.TB) *bench {
	t.Helper()
	return &bench{TB: t, pool: testenv.Pool(t)}
}

// in runs f in a transaction of its own.
func (b *bench) in(f func(tx pgx.Tx) error) {
	b.Helper()
	if err := pgx.BeginFunc(b.Context(), b.pool, f); err != nil {
		b.Fatal(err)
	}
}

// begin starts a transaction that the test ends by hand; what it leaves open is rolled back.
func (b *bench) begin() pgx.Tx {
	b.Helper()
	tx, err := b.pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (b *bench) commit(tx pgx.Tx) {
	b.Helper()
	if err := tx.Commit(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// open makes a batch with groups of the given sizes.
func (b *bench) open(sizes ...int) uuid.UUID {
	b.Helper()
	id := uuid.New()
	b.in(func(tx pgx.Tx) error {
		if err := tracker.Open(b.Context(), tx, id, "test"); err != nil || len(sizes) == 0 {
			return err
		}
		_, err := tracker.AddGroups(b.Context(), tx, id, sizes)
		return err
	})
	return id
}

func (b *bench) seal(id uuid.UUID) (completed bool) {
	b.Helper()
	b.in(func(tx pgx.Tx) (err error) {
		completed, err = tracker.Seal(b.Context(), tx, id)
		return err
	})
	return completed
}

func (b *bench) ack(id uuid.UUID, acks ...tracker.Ack) (acked tracker.Acked) {
	b.Helper()
	b.in(func(tx pgx.Tx) (err error) {
		acked, err = tracker.AckMasks(b.Context(), tx, id, acks)
		return err
	})
	return acked
}

func (b *bench) rearm(id uuid.UUID, items ...tracker.Ack) (generation int) {
	b.Helper()
	b.in(func(tx pgx.Tx) (err error) {
		generation, err = tracker.Rearm(b.Context(), tx, id, items)
		return err
	})
	return generation
}

func (b *bench) cancel(id uuid.UUID) {
	b.Helper()
	b.in(func(tx pgx.Tx) error { return tracker.Cancel(b.Context(), tx, id) })
}

func (b *bench) get(id uuid.UUID) tracker.Batch {
	b.Helper()
	batch, err := tracker.Get(b.Context(), b.pool, id)
	if err != nil {
		b.Fatal(err)
	}
	return batch
}

// refused runs f in a transaction that is committed in spite of its error, as a careless caller would, and returns the
// error: what was refused must have left nothing behind.
func (b *bench) refused(f func(tx pgx.Tx) error) error {
	b.Helper()
	tx := b.begin()
	err := f(tx)
	if err == nil {
		b.Fatal("it was not refused")
	}
	b.commit(tx)
	return err
}

// whole is an ack of the first n items of a group.
func whole(group, n int) tracker.Ack { return tracker.Ack{Group: group, Mask: bitfield.Full(n)} }

// some is an ack of single items of a group.
func some(group int, items ...int) tracker.Ack {
	return tracker.Ack{Group: group, Mask: bitfield.Of(items...)}
}
