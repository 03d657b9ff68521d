package pg

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Later has a statement done in a transaction without waiting for it: it travels with the next one, or with the COMMIT,
// and comes before it. It is for what needs no look at what came of it, since nothing tells: what PostgreSQL refuses
// fails the transaction, and a statement that touches no row does not. args must not change any more.
func Later(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if p, ok := tx.(*pipelined); ok && !p.closed {
		p.waiting = append(p.waiting, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		return nil
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// Leave is [Later] for the statements of a batch, of which no one looks at the results.
func Leave(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) error {
	for _, q := range batch.QueuedQueries {
		if err := Later(ctx, tx, q.SQL, q.Arguments...); err != nil {
			return err
		}
	}
	return nil
}

// flush does what waits in a transaction, for what goes past it: a COPY travels alone.
func flush(ctx context.Context, tx pgx.Tx) error {
	p, ok := tx.(*pipelined)
	if !ok || p.closed || len(p.waiting) == 0 {
		return nil
	}
	waiting := &pgx.Batch{QueuedQueries: p.waiting}
	p.waiting = nil
	return p.conn.SendBatch(ctx, waiting).Close()
}

// pipelined is a transaction that waits for PostgreSQL only where its user does. BEGIN, and what is left to [Later],
// travel in one flush with the next statement, and at the end with the COMMIT. PostgreSQL does them in their order and
// passes over what follows one that failed, the COMMIT among them; so a transaction is committed as a whole or not at
// all, as ever. Its flushes are whole messages up to a Sync, which a pooler in transaction mode keeps on one connection
// from BEGIN to COMMIT. When the answer to the COMMIT is lost no one knows how it ended, as ever too.
type pipelined struct {
	conn    *pgx.Conn
	waiting []*pgx.QueuedQuery
	atFirst int // how much of that no one asked for
	closed  bool
}

var _ pgx.Tx = (*pipelined)(nil)

// Begin begins a transaction of which each statement sees what others have committed, whatever the database has for a
// default.
const Begin = "begin isolation level read committed"

// NewPipelined returns a transaction on a connection that follows each BEGIN by the statement settings, if any.
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

// Commit does what waits, and commits. A transaction that has asked nothing of PostgreSQL costs it nothing.
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
	case err != nil && p.begun(): // what came before it was refused
		return errors.Join(err, p.rollback(ctx))
	case err == nil && tag.String() == "ROLLBACK": // something had failed, and f returned nil anyway
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback takes back what was done, if anything was.
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

// rollback closes a connection that cannot be brought to rest.
func (p *pipelined) rollback(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, "rollback"); err != nil {
		return errors.Join(err, p.conn.Close(ctx))
	}
	return nil
}

// SendBatch sends what waits in front of the batch. An error of it is the batch's.
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

// behind passes over the results of what was sent in front of a batch.
func behind(results pgx.BatchResults, n int) pgx.BatchResults {
	for range n {
		if _, err := results.Exec(); err != nil {
			break // the results keep it
		}
	}
	return results
}

// Exec runs a statement, behind what waits.
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

// Query runs a statement that returns rows, behind what waits.
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

// QueryRow runs a statement that returns a row, behind what waits.
func (p *pipelined) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !p.closed && len(p.waiting) == 0 {
		return p.conn.QueryRow(ctx, sql, args...)
	}
	return FirstRow(p.Query(ctx, sql, args...))
}

// CopyFrom writes rows, after what waits.
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

// Begin is refused: no transaction of the store is nested.
func (p *pipelined) Begin(context.Context) (pgx.Tx, error) { return nil, errPlainTx }

// Prepare is refused: a pooler would not know the statement.
func (p *pipelined) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errPlainTx
}

// LargeObjects are not used.
func (p *pipelined) LargeObjects() pgx.LargeObjects { panic(errPlainTx) }

// Conn is the connection; whoever uses it by itself does so after [flush].
func (p *pipelined) Conn() *pgx.Conn { return p.conn }

// firstRows are the rows of a statement that others travelled with.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

// Next goes to the next row, and closes the rows behind the last.
func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close makes the connection free for the next statement.
func (r *firstRows) Close() {
	r.Rows.Close()
	r.err = cmp.Or(r.err, r.results.Close())
}

// Err is complete once the rows are closed.
func (r *firstRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// FirstRow is the row that a pool's QueryRow gives of what its Query does.
func FirstRow(rows pgx.Rows, err error) pgx.Row { return firstRow{rows, err} }

type firstRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the row and closes it. Without one it returns pgx.ErrNoRows.
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

// RowQuerier is a pool or a transaction, for one row.
type RowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
