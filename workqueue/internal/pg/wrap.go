package pg

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wrapped does each statement, or batch, in one flush with its settings: behind a pooler, which takes a connection away
// after it, it brings them along. The flush is one transaction, so that settings that last as long as that hold for it.
type Wrapped struct {
	On interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
	Settings string // as those of [NewPipelined]
	// Begins says that the transaction has to say how it reads: see [Begin]. A statement that fails costs its connection
	// then.
	Begins bool
}

// Until is how long a statement may still take by ctx, in milliseconds, and 0 for ever: what PostgreSQL is to end by
// itself once nobody waits for it. It takes no more than 24.8 days for a time-out.
func Until(ctx context.Context) string {
	end, ok := ctx.Deadline()
	if !ok {
		return "0"
	}
	return strconv.FormatInt(min(max(time.Until(end).Milliseconds(), 1), math.MaxInt32), 10)
}

// SendBatch is that of a connection.
func (w Wrapped) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	all, before := &pgx.Batch{}, 1
	if w.Begins {
		all.Queue(Begin)
		before++
	}
	all.Queue(w.Settings, Until(ctx))
	all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
	if w.Begins {
		all.Queue("commit")
	}
	return behind(w.On.SendBatch(ctx, all), before)
}

// Exec is that of a connection.
func (w Wrapped) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return execBehind(w.SendBatch(ctx, one(sql, args)))
}

// Query is that of a connection. How it is to be planned is left out: behind a pooler no plan is kept.
func (w Wrapped) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	args = slices.DeleteFunc(slices.Clone(args), func(arg any) bool { _, is := arg.(pgx.QueryExecMode); return is })
	return queryBehind(w.SendBatch(ctx, one(sql, args)))
}

// QueryRow is that of a connection.
func (w Wrapped) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return FirstRow(w.Query(ctx, sql, args...))
}
