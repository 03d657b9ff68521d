package tracker_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
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

// try runs f in a transaction of its own, which is rolled back with its error.
func try[T any](b *bench, f func(ctx context.Context, tx pgx.Tx) (T, error)) (out T, err error) {
	err = pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error {
		out, err = f(b.Context(), tx)
		return err
	})
	return out, err
}

func in[T any](b *bench, f func(ctx context.Context, tx pgx.Tx) (T, error)) T {
	b.Helper()
	return testenv.Must(try(b, f))(b)
}

// nothing is what a call returns that returns an error only.
type nothing struct{}

// begin starts a transaction that the test ends by hand; what it leaves open is rolled back.
func (b *bench) begin() pgx.Tx {
	b.Helper()
	tx := testenv.Must(b.pool.Begin(b.Context()))(b)
	b.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	testenv.Must(b.pool.Exec(b.Context(), sql, args...))(b)
}

func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	return testenv.Number(b, b.pool, sql, args...)
}

// run makes a batch like a run's, with groups of the given sizes.
func (b *bench) run(sizes ...int) uuid.UUID {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) (uuid.UUID, error) {
		id := uuid.New()
		if err := tracker.Open(ctx, tx, id, "run"); err != nil || len(sizes) == 0 {
			return id, err
		}
		_, err := tracker.AddGroups(ctx, tx, id, sizes)
		return id, err
	})
}

// row is a batch as its row tells it.
type row struct {
	State                          tracker.State
	Generation, Groups, OpenGroups int
	Items                          int64
	Completed                      bool
}

func (b *bench) row(id uuid.UUID) (r row) {
	b.Helper()
	testenv.NoError(b, b.pool.QueryRow(b.Context(), `SELECT state, generation, groups, open_groups, items,
		completed_at IS NOT NULL FROM tracker_batch WHERE id = $1`, id).Scan(&r.State, &r.Generation, &r.Groups,
		&r.OpenGroups, &r.Items, &r.Completed))
	return r
}

// pending is what the groups of a batch say is pending.
func (b *bench) pending(id uuid.UUID) (missing []tracker.Range) {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), `SELECT grp, pending FROM tracker_group WHERE batch_id = $1 ORDER BY grp`, id)
	testenv.NoError(b, err)
	var group int
	var set bitfield.Set
	if _, err := pgx.ForEachRow(rows, []any{&group, pgbits.Into(&set)}, func() error {
		for lo, hi := range set.Ranges() {
			missing = append(missing, tracker.Range{Group: group, Lo: lo, Hi: hi})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return missing
}

// open opens a tracker with the given numbers of items, each of an add of its own.
func (b *bench) open(items ...int64) uuid.UUID {
	b.Helper()
	return b.openAs(tracker.OpenRequest{Owner: "test"}, items...)
}

func (b *bench) openAs(r tracker.OpenRequest, items ...int64) uuid.UUID {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) (uuid.UUID, error) {
		opened, err := tracker.OpenTracker(ctx, tx, r)
		for _, n := range items {
			if err == nil {
				_, err = tracker.AddItems(ctx, tx, opened.ID, n, "")
			}
		}
		return opened.ID, err
	})
}

func (b *bench) add(id uuid.UUID, n int64, key string) (tracker.Added, error) {
	return try(b, func(ctx context.Context, tx pgx.Tx) (tracker.Added, error) {
		return tracker.AddItems(ctx, tx, id, n, key)
	})
}

func (b *bench) trySeal(id uuid.UUID) (completed bool, err error) {
	return try(b, func(ctx context.Context, tx pgx.Tx) (bool, error) { return tracker.SealTracker(ctx, tx, id) })
}

func (b *bench) seal(id uuid.UUID) (completed bool) {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) (bool, error) { return tracker.SealTracker(ctx, tx, id) })
}

func (b *bench) tryAck(acks ...tracker.ItemsAck) ([]tracker.Acked, error) {
	return try(b, func(ctx context.Context, tx pgx.Tx) ([]tracker.Acked, error) { return tracker.AckItems(ctx, tx, acks) })
}

func (b *bench) ack(acks ...tracker.ItemsAck) []tracker.Acked {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) ([]tracker.Acked, error) { return tracker.AckItems(ctx, tx, acks) })
}

func (b *bench) tryDelete(id uuid.UUID) error {
	_, err := try(b, func(ctx context.Context, tx pgx.Tx) (nothing, error) {
		return nothing{}, tracker.DeleteTracker(ctx, tx, id)
	})
	return err
}

func (b *bench) purge(limit int) (rows int) {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) (int, error) { return tracker.Purge(ctx, tx, limit) })
}

func (b *bench) get(id uuid.UUID) tracker.Info {
	b.Helper()
	return testenv.Must(tracker.Get(b.Context(), b.pool, id))(b)
}

func (b *bench) reap(limit int) tracker.Reaped {
	b.Helper()
	return in(b, func(ctx context.Context, tx pgx.Tx) (tracker.Reaped, error) { return tracker.Reap(ctx, tx, limit) })
}

// age makes all that happened to a tracker older, and has the reaper look at it.
func (b *bench) age(id uuid.UUID, by time.Duration) {
	b.Helper()
	b.exec(`UPDATE tracker_batch SET active_at = active_at - $2::interval, completed_at = completed_at - $2::interval
		WHERE id = $1`, id, by)
	b.exec(`UPDATE tracker_service SET active_at = active_at - $2::interval, expired_at = expired_at - $2::interval,
		reap_at = reap_at - $2::interval WHERE batch_id = $1`, id, by)
}

const day = 24 * time.Hour

// event is what the outbox has of a tracker.
type event struct {
	Kind                         string
	Batch                        uuid.UUID
	Owner                        string
	Key                          *string
	Items, Done, Failed, Pending int64
	Codes                        map[string]int64
}

func (b *bench) events(id uuid.UUID) (events []event) {
	b.Helper()
	rows, err := b.pool.Query(b.Context(), `SELECT kind, payload FROM run_event WHERE run_id = $1 ORDER BY at`, id)
	testenv.NoError(b, err)
	var kind string
	var doc []byte
	if _, err = pgx.ForEachRow(rows, []any{&kind, &doc}, func() error {
		var e event
		if err := json.Unmarshal(doc, &e); err != nil || e.Kind != kind || e.Batch != id {
			b.Errorf("event %s of %s says %s: %v", kind, id, doc, err)
		}
		events = append(events, e)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return events
}

func first(group, n int) tracker.Ack { return tracker.Ack{Group: group, Mask: bitfield.Full(n)} }

func some(group int, items ...int) tracker.Ack {
	return tracker.Ack{Group: group, Mask: bitfield.Of(items...)}
}

// items names items of a tracker that are done.
func items(id uuid.UUID, acks ...tracker.Ack) tracker.ItemsAck {
	return tracker.ItemsAck{Batch: id, Items: acks}
}

// failed names items of a tracker that failed.
func failed(code string, id uuid.UUID, acks ...tracker.Ack) tracker.ItemsAck {
	return tracker.ItemsAck{Batch: id, Items: acks, Code: code}
}

// whole names groups of a tracker.
func whole(id uuid.UUID, first, last int) tracker.ItemsAck {
	return tracker.ItemsAck{Batch: id, Whole: []tracker.Span{{First: first, Last: last}}}
}

func all(id uuid.UUID) tracker.ItemsAck { return tracker.ItemsAck{Batch: id, All: true} }
