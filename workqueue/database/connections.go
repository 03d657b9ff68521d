package database

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// connections is those that a store has beside the ones for sessions. Whoever takes all of the ordinary ones must keep
// no one from revoking his token, nor the leader from its leader tasks: these have some that no one else takes.
type connections struct {
	ordinary, credentials, tasks *pgxpool.Pool

	settings string // what each statement outside of a transaction brings along, see [pg.Wrapped]; empty: nothing
	begins   bool   // also
}

type reservedKey struct{}

// reserved is for whom a context's statements are.
type reserved int

const (
	reservedForCredentials reserved = iota + 1
	reservedForLeaderTasks
)

// ForCredentials returns a context whose statements take the connections that are kept for credentials. It is for short
// ones about who may do what, of which none needs another connection to end.
func ForCredentials(ctx context.Context) context.Context {
	return context.WithValue(ctx, reservedKey{}, reservedForCredentials)
}

// ForLeader returns a context whose statements take the connections that are kept for the leader tasks, and ordinary
// ones while these are taken.
func ForLeader(ctx context.Context) context.Context {
	return context.WithValue(ctx, reservedKey{}, reservedForLeaderTasks)
}

// Of returns the pool for a statement.
func (c *connections) Of(ctx context.Context) *pgxpool.Pool {
	switch whose, _ := ctx.Value(reservedKey{}).(reserved); whose {
	case reservedForCredentials:
		return c.credentials
	case reservedForLeaderTasks:
		if stat := c.tasks.Stat(); stat.AcquiredConns() < stat.MaxConns() {
			return c.tasks
		}
	}
	return c.ordinary
}

// Acquire takes a connection, which the caller releases.
func (c *connections) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return c.Of(ctx).Acquire(ctx)
}

// statements does them on the pool for a context, with the settings that they bring along.
func (c *connections) statements(ctx context.Context) interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
} {
	if c.settings == "" {
		return c.Of(ctx)
	}
	return pg.Wrapped{On: c.Of(ctx), Settings: c.settings, Begins: c.begins}
}

// Query, QueryRow, Exec, SendBatch and BeginTx are a pool's, and [again]: outside of a transaction stands only what
// reads, or may be done twice. Once there is a row, nothing is done again.
func (c *connections) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	err = again(ctx, func() error {
		if rows, err = c.statements(ctx).Query(ctx, sql, args...); err != nil { //nolint:sqlclosecheck // they are returned
			return err
		}
		first := &firstRead{Rows: rows, found: rows.Next()}
		rows = first
		return rows.Err()
	})
	return rows, err
}

// firstRead are rows of which the first, if there is one, has been read.
type firstRead struct {
	pgx.Rows

	found bool
	begun bool
}

// Next is that of rows.
func (r *firstRead) Next() bool {
	if !r.begun {
		r.begun = true
		return r.found
	}
	return r.Rows.Next()
}

// QueryRow is a pool's.
func (c *connections) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return pg.FirstRow(c.Query(ctx, sql, args...))
}

// Exec is a pool's.
func (c *connections) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = again(ctx, func() error {
		tag, err = c.statements(ctx).Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// SendBatch is a pool's. The batch is done again by Close, which calls the functions that it has.
func (c *connections) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	send := func() pgx.BatchResults {
		sent := &pgx.Batch{} // a batch remembers the statements of the connection that it was sent on
		for _, q := range b.QueuedQueries {
			q := *q
			sent.QueuedQueries = append(sent.QueuedQueries, &q)
		}
		return c.statements(ctx).SendBatch(ctx, sent)
	}
	return &batchAgain{BatchResults: send(), ctx: ctx, send: send}
}

type batchAgain struct {
	pgx.BatchResults

	ctx  context.Context //nolint:containedctx // that of the batch
	send func() pgx.BatchResults
}

// Close is that of the results of a batch.
func (r *batchAgain) Close() error {
	results := r.BatchResults
	return again(r.ctx, func() error {
		if results == nil {
			results = r.send()
		}
		defer func() { results = nil }()
		return results.Close()
	})
}

// BeginTx is a pool's.
func (c *connections) BeginTx(ctx context.Context, options pgx.TxOptions) (tx pgx.Tx, err error) {
	if c.settings != "" {
		options.BeginQuery = "begin"
		if options.IsoLevel != "" {
			options.BeginQuery += " isolation level " + string(options.IsoLevel)
		}
		options.BeginQuery += " " + string(options.AccessMode) + "; " +
			strings.ReplaceAll(c.settings, "$1", "'"+pg.Until(ctx)+"'")
	}
	err = again(ctx, func() error {
		tx, err = c.Of(ctx).BeginTx(ctx, options)
		return err
	})
	return tx, err
}

// Connections is how many of its ordinary connections a store may take at once.
func (s *DB) Connections() int { return int(s.Pool.ordinary.Config().MaxConns) }

// PoolUse is one pool of a store.
type PoolUse struct {
	Name string // what its connections are for
	*pgxpool.Stat
}

// Pools returns the pools that a store has, each once.
func (s *DB) Pools() []PoolUse {
	var all []PoolUse
	seen := map[*pgxpool.Pool]bool{}
	for _, p := range []struct {
		name string
		pool *pgxpool.Pool
	}{
		{"ordinary", s.Pool.ordinary}, {"tasks", s.Pool.tasks}, {"credentials", s.Pool.credentials},
		{"sessions", s.Sessions},
	} {
		if !seen[p.pool] {
			seen[p.pool] = true
			all = append(all, PoolUse{p.name, p.pool.Stat()})
		}
	}
	return all
}
