package service_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
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
func (b *bench) try(f func(ctx context.Context, tx pgx.Tx) error) error {
	return pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error { return f(b.Context(), tx) })
}

func (b *bench) in(f func(ctx context.Context, tx pgx.Tx) error) {
	b.Helper()
	if err := b.try(f); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) begin() pgx.Tx {
	b.Helper()
	tx, err := b.pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// open makes a batch with the given numbers of items, each of an Add of its own.
func (b *bench) open(items ...int64) uuid.UUID {
	b.Helper()
	return b.openAs(service.OpenRequest{Owner: "test"}, items...)
}

func (b *bench) openAs(r service.OpenRequest, items ...int64) (id uuid.UUID) {
	b.Helper()
	b.in(func(ctx context.Context, tx pgx.Tx) error {
		opened, err := service.Open(ctx, tx, r)
		if err != nil {
			return err
		}
		id = opened.ID
		for _, n := range items {
			if _, err := service.Add(ctx, tx, id, n, ""); err != nil {
				return err
			}
		}
		return nil
	})
	return id
}

func (b *bench) add(id uuid.UUID, n int64, key string) (added service.Added, err error) {
	err = b.try(func(ctx context.Context, tx pgx.Tx) error {
		added, err = service.Add(ctx, tx, id, n, key)
		return err
	})
	return added, err
}

func (b *bench) seal(id uuid.UUID) (completed bool) {
	b.Helper()
	b.in(func(ctx context.Context, tx pgx.Tx) (err error) {
		completed, err = service.Seal(ctx, tx, id)
		return err
	})
	return completed
}

func (b *bench) tryAck(acks ...service.BatchAck) (acked []service.Acked, err error) {
	err = b.try(func(ctx context.Context, tx pgx.Tx) error {
		acked, err = service.Ack(ctx, tx, acks)
		return err
	})
	return acked, err
}

func (b *bench) ack(acks ...service.BatchAck) []service.Acked {
	b.Helper()
	acked, err := b.tryAck(acks...)
	if err != nil {
		b.Fatal(err)
	}
	return acked
}

func (b *bench) get(id uuid.UUID) service.Info {
	b.Helper()
	info, err := service.Get(b.Context(), b.pool, id)
	if err != nil {
		b.Fatal(err)
	}
	return info
}

func (b *bench) reap(limit int) (reaped service.Reaped) {
	b.Helper()
	b.in(func(ctx context.Context, tx pgx.Tx) (err error) {
		reaped, err = service.Reap(ctx, tx, limit)
		return err
	})
	return reaped
}

// exec changes what only time changes.
func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	return testenv.Number(b, b.pool, sql, args...)
}

// event is what the outbox has of a batch.
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
	if err != nil {
		b.Fatal(err)
	}
	var kind string
	var doc []byte
	_, err = pgx.ForEachRow(rows, []any{&kind, &doc}, func() error {
		var e event
		if err := json.Unmarshal(doc, &e); err != nil {
			return err
		}
		if e.Kind != kind || e.Batch != id {
			b.Errorf("event %s of %s says %s", kind, id, doc)
		}
		events = append(events, e)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return events
}

// some is an ack of single items of a group.
func some(group int, items ...int) tracker.Ack {
	return tracker.Ack{Group: group, Mask: bitfield.Of(items...)}
}

// first is an ack of the first n items of a group.
func first(group, n int) tracker.Ack { return tracker.Ack{Group: group, Mask: bitfield.Full(n)} }

// items names items of a batch that are done.
func items(id uuid.UUID, acks ...tracker.Ack) service.BatchAck {
	return service.BatchAck{Batch: id, Items: acks}
}

// failed names items of a batch that failed.
func failed(code string, id uuid.UUID, acks ...tracker.Ack) service.BatchAck {
	return service.BatchAck{Batch: id, Items: acks, Code: code}
}

func all(id uuid.UUID) service.BatchAck { return service.BatchAck{Batch: id, All: true} }
