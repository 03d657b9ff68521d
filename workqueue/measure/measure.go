// Package measure reads what is measured of the whole, for graphs and alerts: how much there is of what, how old the
// oldest of it is, and how full the database is. It judges nothing and names no run, no item and no message.
//
// What it reads is cheap whatever there is: runs under way, live slices and blocks with ready items are found by their
// partial indexes, letters are counted up to a number, and no finished run is looked at.
package measure

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/database"
)

// Store is the database for who measures. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Reading is what was found at about one moment. Ages are seconds by the database's clock; 0: there is none.
type Reading struct {
	Runs       []Runs
	Overdue    int64 // open runs that were not sealed in time
	Endpoints  []Endpoint
	Collectors []Collector
	Schedules  Schedules
	Leftovers  Leftovers
	Nodes      Nodes
	Database   Database
	Tables     []Table
}

// statementLimit bounds what each statement of a reading may take.
const statementLimit = 2 * time.Second

// limitStatements bounds them in the transaction.
const limitStatements = `SELECT set_config('statement_timeout', $1, true)`

// Read reads all of it, in one transaction that locks nothing.
func (s Store) Read(ctx context.Context) (*Reading, error) {
	r := &Reading{}
	tx, err := s.db.Pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it changes nothing
	b := &pgx.Batch{}
	b.Queue(limitStatements, strconv.FormatInt(statementLimit.Milliseconds(), 10))
	rows(b, &r.Runs, runs)
	row(b, []any{&r.Overdue}, overdue)
	rows(b, &r.Endpoints, endpoints)
	rows(b, &r.Collectors, collectors, MaxCounted)
	d, l := &r.Schedules, &r.Leftovers
	row(b, []any{&d.Overdue, &d.OldestDue, &d.Unstarted, &d.Failing, &d.Late}, schedules)
	row(b, []any{&l.Letters, &l.Quarantined, &l.Events}, leftovers, MaxCounted)
	row(b, []any{&r.Nodes.Alive, &r.Nodes.Dead}, nodes, deadWindow)
	of := &r.Database
	row(b, []any{&of.Bytes, &of.Connections, &of.MaxConnections, &of.OldestTransaction}, size)
	rows(b, &r.Tables, tables)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	return r, nil
}

// rows adds a query whose rows become a list.
func rows[T any](b *pgx.Batch, into *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(found pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(found, pgx.RowToStructByPos[T])
		return err
	})
}

// row adds a query of one row.
func row(b *pgx.Batch, into []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(found pgx.Row) error { return found.Scan(into...) })
}
