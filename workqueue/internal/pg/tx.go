package pg

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Later queues a statement in a transaction: it is sent with the next one, or the COMMIT, and runs before it. Its
// result is not checked: only an error fails the transaction. args must stay unchanged.
func Later(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if p, ok := tx.(*pipelined); ok && !p.closed {
		p.waiting = append(p.waiting, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		return nil
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// Leave is [Later] for the statements of a batch whose results are not checked.
func Leave(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) error {
	for _, q := range batch.QueuedQueries {
		if err := Later(ctx, tx, q.SQL, q.Arguments...); err != nil {
			return err
		}
	}
	return nil
}

// flush sends queued statements before something that bypasses the queue, like COPY.
func flush(ctx context.Context, tx pgx.Tx) error {
	p, ok := tx.(*pipelined)
	if !ok || p.closed || len(p.waiting) == 0 {
		return nil
	}
	waiting := &pgx.Batch{QueuedQueries: p.waiting}
	p.waiting = nil
	return p.conn.SendBatch(ctx, waiting).Close()
}

// pipelined is a transaction that waits for PostgreSQL only where its user does. BEGIN, and statements queued by
// [Later], are sent with the next statement, and at the end with the COMMIT. PostgreSQL runs them in order and skips
// everything after a failed one, including the COMMIT, so a transaction is committed entirely or not at all. Its
// flushes are whole messages up to a Sync, which a pooler in transaction mode keeps on one connection from BEGIN to
// COMMIT. If the answer to the COMMIT is lost, the outcome is unknown, as always.
type pipelined struct {
	conn    *pgx.Conn
	waiting []*pgx.QueuedQuery
	atFirst int // how many of them are not the user's
	closed  bool
}

var _ pgx.Tx = (*pipelined)(nil)

// Begin starts a transaction in which each statement sees other commits, regardless of the default.
const Begin = "begin isolation level read committed"

// NewPipelined returns a transaction on a connection that sends the statement settings after BEGIN, if not empty.
func NewPipelined(ctx context.Context, conn *pgx.Conn, settings string) pgx.Tx {
	p := &pipelined{conn: conn, waiting: []*pgx.QueuedQuery{{SQL: Begin}}}
	if settings != "" {
		p.waiting = append(p.waiting, &pgx.QueuedQuery{SQL: settings, Arguments: []any{Until(ctx)}})
	}
	p.atFirst = len(p.waiting)
	return p
}

// begun reports whether PostgreSQL may be in the transaction.
func (p *pipelined) begun() bool { return p.conn.PgConn().TxStatus() != 'I' }

// Commit sends queued statements and commits. A transaction without statements costs nothing.
func (p *pipelined) Commit(ctx context.Context) error {
	if p.closed {
		return pgx.ErrTxClosed
	}
	if !p.begun() && len(p.waiting) == p.atFirst {
		p.closed = true
		return nil
	}
	tag, err := p.Exec(ctx, "commit")
	p.closed = true
	switch {
	case err != nil && p.begun(): // an earlier statement failed
		return errors.Join(err, p.rollback(ctx))
	case err == nil && tag.String() == "ROLLBACK": // a statement had failed, and f returned nil anyway
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback undoes what was done, if anything.
func (p *pipelined) Rollback(ctx context.Context) error {
	if p.closed {
		return pgx.ErrTxClosed
	}
	p.closed = true
	if !p.begun() {
		return nil
	}
	return p.rollback(ctx)
}

// rollback closes a connection that cannot be rolled back.
func (p *pipelined) rollback(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, "rollback"); err != nil {
		return errors.Join(err, p.conn.Close(ctx))
	}
	return nil
}

// SendBatch sends queued statements before the batch; their errors become the batch's.
func (p *pipelined) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if p.closed {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	n := len(p.waiting)
	if n == 0 || b.Len() == 0 {
		return p.conn.SendBatch(ctx, b)
	}
	results := behind(p.conn.SendBatch(ctx, &pgx.Batch{QueuedQueries: append(p.waiting, b.QueuedQueries...)}), n)
	p.waiting = nil
	return results
}

// behind skips the results of statements sent before a batch.
func behind(results pgx.BatchResults, n int) pgx.BatchResults {
	for range n {
		if _, err := results.Exec(); err != nil {
			break // the results keep it
		}
	}
	return results
}

// Exec runs a statement after the queued ones.
func (p *pipelined) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	switch {
	case p.closed:
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	case len(p.waiting) == 0:
		return p.conn.Exec(ctx, sql, args...)
	}
	return execBehind(p.SendBatch(ctx, one(sql, args)))
}

func one(sql string, args []any) *pgx.Batch {
	return &pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{{SQL: sql, Arguments: args}}}
}

func execBehind(results pgx.BatchResults) (pgconn.CommandTag, error) {
	tag, err := results.Exec()
	return tag, cmp.Or(err, results.Close())
}

// Query runs a statement that returns rows, after the queued ones.
func (p *pipelined) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !p.closed && len(p.waiting) == 0 {
		return p.conn.Query(ctx, sql, args...)
	}
	return queryBehind(p.SendBatch(ctx, one(sql, args)))
}

func queryBehind(results pgx.BatchResults) (pgx.Rows, error) {
	rows, err := results.Query()
	first := &firstRows{Rows: rows, results: results}
	if err != nil {
		first.Close()
	}
	return first, err
}

// QueryRow runs a statement that returns a row, after the queued ones.
func (p *pipelined) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !p.closed && len(p.waiting) == 0 {
		return p.conn.QueryRow(ctx, sql, args...)
	}
	return FirstRow(p.Query(ctx, sql, args...))
}

// CopyFrom writes rows, after the queued statements.
func (p *pipelined) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (int64, error) {
	if p.closed {
		return 0, pgx.ErrTxClosed
	}
	if err := flush(ctx, p); err != nil {
		return 0, err
	}
	return p.conn.CopyFrom(ctx, table, columns, rows)
}

var errPlainTx = errors.New("a transaction of the store has no savepoints, large objects and prepared statements")

// Begin is refused: the store nests no transactions.
func (p *pipelined) Begin(context.Context) (pgx.Tx, error) { return nil, errPlainTx }

// Prepare is refused: a pooler would not know the statement.
func (p *pipelined) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errPlainTx
}

func (p *pipelined) LargeObjects() pgx.LargeObjects { panic(errPlainTx) }

// Conn returns the connection; direct use must come after [flush].
func (p *pipelined) Conn() *pgx.Conn { return p.conn }

// firstRows are the rows of a statement that was sent with others.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

// Next advances to the next row, and closes the rows after the last.
func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close frees the connection for the next statement.
func (r *firstRows) Close() {
	r.Rows.Close()
	r.err = cmp.Or(r.err, r.results.Close())
}

// Err is complete once the rows are closed.
func (r *firstRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// FirstRow converts the result of Query to that of QueryRow.
func FirstRow(rows pgx.Rows, err error) pgx.Row { return firstRow{rows, err} }

type firstRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the row and closes it. Without a row it returns pgx.ErrNoRows.
func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	switch {
	case r.err != nil:
		return r.err
	case !r.rows.Next():
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// RowQuerier is a pool or a transaction, for one row or many.
type RowQuerier interface {
	Querier
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
