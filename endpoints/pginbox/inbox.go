// Package pginbox commits a service's own database work once, although a chunk may arrive twice.
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
// A chunk's handler runs in one transaction. In the same one the inbox claims the chunk's items before the handler and
// stores their answers after it, and only when that has committed do the answers leave. So an item's writes and its
// answer are there together or not at all, and an item that comes again, in the same chunk or another one, is answered
// from memory: the handler does not see it. A delivery that overlaps with one still at work waits for its end.
//
// An error, a panic or a time-out of the handler undoes the whole chunk, and so does a commit that fails; the error
// speaks for all its items, answered or not. When the outcome of a commit is not known the chunk counts as failed: it
// will be retried, and if it had committed, that is answered from memory. Deadlocks and serialization failures are
// such errors, too; chunks that overlap cannot deadlock by their claims, which are made in the order of the ordinals.
//
// # What is remembered
//
// Results, binary ones too, and errors that are not retryable. An item that the handler left out or answered by Retry
// is forgotten, to be retried, but what the handler has written for it is committed with the rest: undo it with a
// savepoint (Tx(ctx).Begin), or write only for items that get a final answer.
//
// The key is the endpoint and stage, the stack of endpoints that wait for it, and the item's run, step, ordinal and
// generation: what [endpoints.ItemInfo.IdempotencyKey] says. A re-run of a run has another generation, so it does the
// work again; where that is wrong, the service needs a key of its own in its own tables.
//
// In a flow each stage has a memory of its own. An item that a stage sends on has no answer to remember: when the stage
// comes again, its handler sees the item again, and [Done] says that what it wrote before is committed.
//
// # Not its job
//
// It does not work with HandleEach, whose items run at the same time, each for itself: they are answered with an error
// that says so. Memory is pruned when the service calls [Inbox.Prune], and not by itself.
//
// # Concurrency
//
// An Inbox is safe for concurrent use. The transaction is the chunk's: use it from one goroutine at a time. It is open
// while the handler runs, so do not wait in there for other services: that is what flows are for.
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

// DefaultTable is Config.Table when it is not set.
const DefaultTable = "tranche_inbox"

// Config describes an inbox.
type Config struct {
	// Table is where answers are remembered: a name, or schema.name, of letters, digits and _, at most 50 characters
	// each. Several endpoints and services may share it. Default tranche_inbox.
	Table string
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,49}\.)?[A-Za-z_][A-Za-z0-9_]{0,49}$`)

// Inbox remembers the answers to items in a table of the service's own database.
type Inbox struct {
	pool  *pgxpool.Pool
	table string // quoted
	sql   statements
}

// New returns an inbox. The pool is that of the service's own tables, and stays the caller's.
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

// Create makes the table where there is none. It may be called by many instances at once, at each start. Where services
// may not create tables, run [Schema] as someone who may; the service then needs SELECT, INSERT, UPDATE and DELETE.
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

// pruneRuns is how many runs are pruned in one transaction.
const pruneRuns = 256

// Prune forgets what was remembered longer than olderThan ago, and returns how many items that were. Choose it longer
// than a run can take, with its retries and re-issues: an item that comes again after its memory is gone is done again.
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

// Schema makes the table. It does nothing where there is one.
//
// A row with neither result nor code is an item that a stage of a flow has sent on. Rows are written twice in their
// transaction, by the claim and by the answer, so pages keep room for the second version.
const Schema = `
CREATE TABLE IF NOT EXISTS tranche_inbox (
    run          uuid NOT NULL,
    place        text NOT NULL,
    generation   int NOT NULL,
    ordinal      int NOT NULL,
    result       bytea,
    content_type text,
    code         text,
    message      text,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run, place, generation, ordinal),
    CHECK (result IS NULL OR code IS NULL),
    CHECK ((code IS NULL) = (message IS NULL)),
    CHECK (content_type IS NULL OR result IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)`

// lockCreation keeps instances from creating the table at the same time, which IF NOT EXISTS does not bear.
const lockCreation = `SELECT pg_advisory_xact_lock(hashtext('tranche_inbox'), hashtext($1))`

// claim inserts the rows of the items that no one has claimed. It waits for whoever is at one of them, by the lock of
// the primary key; ORDER BY is why two chunks that overlap wait for each other in one direction only.
const claim = `
INSERT INTO tranche_inbox (run, place, generation, ordinal)
SELECT $1, $2, $3, asked.ordinal FROM unnest($4::int[]) AS asked (ordinal) ORDER BY asked.ordinal
ON CONFLICT DO NOTHING
RETURNING ordinal`

// recall reads what is remembered of items, by the primary key. Nothing is locked: a row that is there is final.
const recall = `
SELECT ordinal, result, content_type, code, message FROM tranche_inbox
WHERE run = $1 AND place = $2 AND generation = $3 AND ordinal = ANY($4::int[])`

// remember stores the answers. The rows are locked already, by their claims.
const remember = `
UPDATE tranche_inbox AS inbox
SET result = answer.result, content_type = answer.content_type, code = answer.code, message = answer.message
FROM unnest($4::int[], $5::bytea[], $6::text[], $7::text[], $8::text[])
    AS answer (ordinal, result, content_type, code, message)
WHERE inbox.run = $1 AND inbox.place = $2 AND inbox.generation = $3 AND inbox.ordinal = answer.ordinal`

// forget removes the claims of items that are to be retried. They are locked already.
const forget = `
DELETE FROM tranche_inbox
WHERE run = $1 AND place = $2 AND generation = $3 AND ordinal = ANY($4::int[])`

// selectOldRuns reads the whole table, which is done rarely enough to go without an index.
const selectOldRuns = `SELECT DISTINCT run FROM tranche_inbox WHERE at < now() - $1::interval`

// deleteOld finds the rows by the primary key. A row that is claimed is not visible to it.
const deleteOld = `DELETE FROM tranche_inbox WHERE run = ANY($1::uuid[]) AND at < now() - $2::interval`

// statements are the constants with the name of an inbox's table.
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

// Tx returns the transaction of the chunk, given the context of a handler that an inbox wraps, or one made from it. It
// panics with any other: to write outside of the transaction is what the inbox is there to prevent. The inbox commits
// and rolls back; Begin makes a savepoint.
func Tx(ctx context.Context) pgx.Tx {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	if !ok {
		panic("pginbox.Tx: the context is not of a handler that an inbox wraps; register it with " +
			"endpoints.Wrap(inbox.Once()), and pass the handler's context on")
	}
	return handlersTx{c.tx}
}

// Done reports whether a stage of a flow has been through with an item before: it sent the item on, what it wrote for
// it is committed, and then the chunk came again. The stage must send the item on again and not write again. For items
// of endpoints that are not flows it is false, and with a context that Tx does not take.
func Done(ctx context.Context, ordinal int) bool {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	return ok && c.done[ordinal]
}

// handlersTx is a transaction that only the inbox may end.
type handlersTx struct{ pgx.Tx }

// errNotYours is the same for both ends of a transaction.
var errNotYours = errors.New("the inbox ends the chunk's transaction: return an error to roll back, nil to commit")

func (handlersTx) Commit(context.Context) error { return errNotYours }

func (handlersTx) Rollback(context.Context) error { return errNotYours }
