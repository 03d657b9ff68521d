package database

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// connections is a store's connections, except those for sessions. Some are reserved, so that exhausting the
// ordinary ones blocks neither the revoking of tokens nor the leader tasks.
type connections struct {
	ordinary, credentials, tasks *pgxpool.Pool

	settings string // sent with each statement outside a transaction, see [pg.Wrapped]; empty: nothing
	begins   bool   // see [pg.Wrapped]
}

type reservedKey struct{}

type reserved int

const (
	reservedForCredentials reserved = iota + 1
	reservedForLeaderTasks
)

// ForCredentials returns a context whose statements use the connections reserved for credentials. Use it for short
// statements about permissions that need no other connection to finish.
func ForCredentials(ctx context.Context) context.Context {
	return context.WithValue(ctx, reservedKey{}, reservedForCredentials)
}

// ForLeader returns a context whose statements use the connections reserved for leader tasks, else ordinary ones.
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

// statements returns the context's pool, sending the settings along.
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

// Query, QueryRow, Exec, SendBatch and BeginTx are a pool's, with [again]: outside transactions run only statements
// that read or may be repeated. After the first row nothing is repeated.
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

// firstRead are rows whose first row has been read.
type firstRead struct {
	pgx.Rows

	found bool
	begun bool
}

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

// SendBatch is a pool's. Close, which calls the batch's functions, repeats it.
func (c *connections) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	send := func() pgx.BatchResults {
		sent := &pgx.Batch{} // a batch remembers its connection's statements
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

// Connections returns how many ordinary connections a store may use.
func (s *DB) Connections() int { return int(s.Pool.ordinary.Config().MaxConns) }

// PoolUse is one pool of a store.
type PoolUse struct {
	Name string // purpose of its connections
	*pgxpool.Stat
}

// Pools returns the pools of a store, each once.
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
