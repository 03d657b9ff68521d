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
