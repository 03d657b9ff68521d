// Package pginbox makes a service's database writes happen once, even if a chunk is delivered twice.
//
//	inbox, err := pginbox.New(pool, pginbox.Config{})
//	err = inbox.Create(ctx)
//	err = endpoints.HandleList(svc, "interest", book, endpoints.Wrap(inbox.Once()))
//
//	func book(ctx context.Context, chunk *endpoints.Chunk[account, booking]) error {
//	    _, err := pginbox.Tx(ctx).Exec(ctx, `INSERT INTO bookings …`)
//	    …
//	}
//
// # Guarantees
//
// A chunk's handler runs in one transaction. In it, the inbox claims the chunk's items before the handler and stores
// their answers after it; answers are sent only after the commit. So an item's writes and its answer are committed
// together or not at all, and a repeated item, in any chunk, is answered from the table without the handler. A
// delivery that overlaps another waits for its end.
//
// An error, panic or timeout of the handler, or a failed commit, rolls back the whole chunk and applies to all its
// items. If a commit's outcome is unknown, the chunk fails and is retried; if it had committed, the retry is answered
// from the table. Deadlocks and serialization failures are such errors. Claims of overlapping chunks do not deadlock,
// since they are made in order of ordinals.
//
// # What is stored
//
// The inbox stores results and permanent errors. An item left out or answered with Retry is not stored and will be
// retried, but its writes are committed with the rest: use a savepoint (Tx(ctx).Begin), or write only for items with
// a final answer. As permanent errors are stored, retry_codes of a plan or collector do not run the handler again.
//
// The key consists of the endpoint, the stage, and the parts of [endpoints.ItemInfo.IdempotencyKey]: run, step,
// ordinal, generation, a hash of the item's key, and stack. A rerun has another generation and does the work again; if
// that is wrong, use a key in the service's own tables.
//
// Each stage of a flow is stored separately. An item sent to the next stage has no answer to store: when the stage is
// repeated its handler sees the item again, and [Done] reports that its earlier writes are committed.
//
// # Limits
//
// It does not support HandleEach, whose items run in parallel: they fail with an error. Old entries are removed only
// by [Inbox.Prune].
//
// An Inbox is safe for concurrent use. The transaction belongs to the chunk: use it from one goroutine at a time. It
// stays open while the handler runs, so do not wait for other services there; use a flow.
package pginbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DefaultTable is the default of Config.Table.
const DefaultTable = "tranche_inbox"

// Config configures an Inbox.
type Config struct {
	// Table stores the answers: a name or schema.name of letters, digits and _, at most 50 characters each. Endpoints
	// and services may share it. Default tranche_inbox.
	Table string
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,49}\.)?[A-Za-z_][A-Za-z0-9_]{0,49}$`)

// Inbox stores the answers to items in a table of the service's database.
type Inbox struct {
	pool  *pgxpool.Pool
	table string // quoted
	sql   statements
}

// New returns an inbox on the pool of the service's own tables, which the caller closes.
func New(pool *pgxpool.Pool, config Config) (*Inbox, error) {
	config.Table = cmp.Or(config.Table, DefaultTable)
	switch {
	case pool == nil:
		return nil, errors.New("new inbox: the pool is nil")
	case !tableName.MatchString(config.Table):
		return nil, fmt.Errorf("new inbox: Config.Table is %.120q; use name or schema.name, of A-Z a-z 0-9 _, "+
			"at most 50 characters each", config.Table)
	}
	table := pgx.Identifier(strings.Split(config.Table, ".")).Sanitize()
	return &Inbox{pool: pool, table: table, sql: statementsFor(table)}, nil
}

// Create creates the table if it is missing. All instances may call it at each start. If services may not create
// tables, run [Schema] as another user; the service needs SELECT, INSERT, UPDATE and DELETE.
func (i *Inbox) Create(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, i.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockCreation, i.table); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, i.sql.create)
		return err
	})
	if err != nil {
		return fmt.Errorf("create inbox %s: %w", i.table, err)
	}
	return nil
}

// pruneRuns is the number of runs pruned in one transaction.
const pruneRuns = 256

// Prune deletes entries older than olderThan and returns their number. Choose more than the longest run with retries:
// an item repeated after that is processed again.
func (i *Inbox) Prune(ctx context.Context, olderThan time.Duration) (int64, error) {
	if olderThan < 0 {
		return 0, fmt.Errorf("prune inbox %s: the age is %s; it must not be negative", i.table, olderThan)
	}
	rows, err := i.pool.Query(ctx, i.sql.selectOldRuns, olderThan)
	if err != nil {
		return 0, fmt.Errorf("prune inbox %s: %w", i.table, err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		return 0, fmt.Errorf("prune inbox %s: %w", i.table, err)
	}
	var pruned int64
	for len(runs) > 0 {
		n := min(len(runs), pruneRuns)
		tag, err := i.pool.Exec(ctx, i.sql.deleteOld, runs[:n], olderThan)
		if err != nil {
			return pruned, fmt.Errorf("prune inbox %s: %w", i.table, err)
		}
		pruned += tag.RowsAffected()
		runs = runs[n:]
	}
	return pruned, nil
}

// Schema creates the table if it is missing.
//
// A row without result and code is an item that a flow's stage sent on. Claim and answer write each row twice in one
// transaction; the fill factor leaves space for the second version.
const Schema = `
CREATE TABLE IF NOT EXISTS tranche_inbox (
    run          uuid NOT NULL,
    place        text NOT NULL,
    generation   int NOT NULL,
    ordinal      int NOT NULL,
    key_hash     bigint NOT NULL,
    result       bytea,
    content_type text,
    code         text,
    message      text,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run, place, generation, ordinal, key_hash),
    CHECK (result IS NULL OR code IS NULL),
    CHECK ((code IS NULL) = (message IS NULL)),
    CHECK (content_type IS NULL OR result IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)`

// lockCreation serializes creation, because IF NOT EXISTS is not safe for concurrent use.
const lockCreation = `SELECT pg_advisory_xact_lock(hashtext('tranche_inbox'), hashtext($1))`

// claim inserts rows for unclaimed items. It waits for concurrent claims on the primary key; ORDER BY prevents
// deadlocks between overlapping chunks. A node's database that lost commits may give an ordinal to another item.
const claim = `
INSERT INTO tranche_inbox (run, place, generation, ordinal, key_hash)
SELECT $1, $2, $3, asked.ordinal, asked.hash FROM unnest($4::int[], $5::bigint[]) AS asked (ordinal, hash)
ORDER BY asked.ordinal
ON CONFLICT DO NOTHING
RETURNING ordinal`

// recall reads stored items by primary key. It locks nothing: an existing row is final.
const recall = `
SELECT ordinal, result, content_type, code, message
FROM tranche_inbox JOIN unnest($4::int[], $5::bigint[]) AS asked (ordinal, key_hash) USING (ordinal, key_hash)
WHERE run = $1 AND place = $2 AND generation = $3`

// remember stores answers. The claims have locked the rows.
const remember = `
UPDATE tranche_inbox AS inbox
SET result = answer.result, content_type = answer.content_type, code = answer.code, message = answer.message
FROM unnest($4::int[], $5::bigint[], $6::bytea[], $7::text[], $8::text[], $9::text[])
    AS answer (ordinal, key_hash, result, content_type, code, message)
WHERE inbox.run = $1 AND inbox.place = $2 AND inbox.generation = $3 AND inbox.ordinal = answer.ordinal
    AND inbox.key_hash = answer.key_hash`

// forget removes the claims of items to be retried. They are locked already.
const forget = `
DELETE FROM tranche_inbox AS inbox USING unnest($4::int[], $5::bigint[]) AS item (ordinal, key_hash)
WHERE inbox.run = $1 AND inbox.place = $2 AND inbox.generation = $3 AND inbox.ordinal = item.ordinal
    AND inbox.key_hash = item.key_hash`

// selectOldRuns scans the table; it is too rare to need an index.
const selectOldRuns = `SELECT DISTINCT run FROM tranche_inbox WHERE at < now() - $1::interval`

// deleteOld finds rows by primary key. It does not see uncommitted claims.
const deleteOld = `DELETE FROM tranche_inbox WHERE run = ANY($1::uuid[]) AND at < now() - $2::interval`

type statements struct {
	create, claim, recall, remember, forget, selectOldRuns, deleteOld string
}

func statementsFor(table string) statements {
	of := func(statement string) string { return strings.ReplaceAll(statement, DefaultTable, table) }
	return statements{
		create: of(Schema), claim: of(claim), recall: of(recall), remember: of(remember), forget: of(forget),
		selectOldRuns: of(selectOldRuns), deleteOld: of(deleteOld),
	}
}

type chunkKey struct{}

// Tx returns the chunk's transaction, given a handler's context or one derived from it. It panics for other contexts,
// as a write outside the transaction would defeat the inbox. Only the inbox commits and rolls back; Begin creates a
// savepoint.
func Tx(ctx context.Context) pgx.Tx {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	if !ok {
		panic("pginbox.Tx: the context is not of a handler that an inbox wraps; register it with " +
			"endpoints.Wrap(inbox.Once()), and pass the handler's context on")
	}
	return handlersTx{c.tx}
}

// Done reports whether an earlier execution of this flow stage sent the item on and committed its writes. The stage
// must then send it on again without writing. Done is false for other endpoints and contexts.
func Done(ctx context.Context, ordinal int) bool {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	return ok && c.done[ordinal]
}

// handlersTx is a transaction that the handler cannot end.
type handlersTx struct{ pgx.Tx }

var errNotYours = errors.New("the inbox ends the chunk's transaction: return an error to roll back, nil to commit")

func (handlersTx) Commit(context.Context) error { return errNotYours }

func (handlersTx) Rollback(context.Context) error { return errNotYours }
