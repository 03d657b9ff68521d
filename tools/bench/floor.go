package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	floorCommit = 500   // results a commit
	floorPage   = 8_000 // items a read; a multiple of floorCommit
)

// The floor's tables: work_queue and work_part with what any solution needs, and nothing else.
const floorSchema = `
CREATE TABLE item (
    run_id   uuid    NOT NULL,
    ordinal  integer NOT NULL,
    item_key text    COLLATE "C" NOT NULL,
    payload  text    NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);
CREATE TABLE part (
    run_id  uuid    NOT NULL,
    ordinal integer NOT NULL,
    result  text    NOT NULL,
    PRIMARY KEY (run_id, ordinal)
)`

const floorRead = `SELECT ordinal, item_key, payload FROM item
WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3 ORDER BY ordinal`

// floor is the yardstick: what an engineer writes with pgx who needs no coordination at all. One connection, one
// goroutine.
//
//  1. One CopyFrom (one commit) puts n items into a table with a primary key (run, ordinal) and no other index.
//  2. They are read in order, 8,000 by primary key at a time, by CollectRows into structs.
//  3. Each read's payloads go, as the results, into a second table with a primary key (run, ordinal), by CopyFrom in
//     commits of 500.
//
// What it leaves out is what a batch system is for: finding an item by key, claiming, retries, errors, several
// workers, progress, and a service outside the database. CopyFrom asks for the columns' types at every commit; see
// [floorRaw] for a client without such costs.
type floor struct {
	pg    *cluster
	input items
}

func (f floor) name() string { return "floor" }
func (f floor) size() int    { return f.input.n }

func (f floor) measure(ctx context.Context) (sample, error) {
	return f.pg.onFloor(ctx, "floor", floorSchema, f.input.n, f.load, f.work)
}

// onFloor loads items on one connection and works on them, from lo to hi-1, page by page.
func (pg *cluster) onFloor(ctx context.Context, name, schema string, n int,
	load func(context.Context, *pgx.Conn, uuid.UUID) error,
	work func(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) error,
) (sample, error) {
	return pg.onConnection(ctx, name, schema, n, func(conn *pgx.Conn, run uuid.UUID) error {
		if err := load(ctx, conn, run); err != nil {
			return err
		}
		for lo := 0; lo < n; lo += floorPage {
			if err := work(ctx, conn, run, lo, min(lo+floorPage, n)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f floor) load(ctx context.Context, conn *pgx.Conn, run uuid.UUID) error {
	next := 0
	columns := []string{"run_id", "ordinal", "item_key", "payload"}
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"item"}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		if next == f.input.n {
			return nil, nil
		}
		i := next
		next++
		return []any{run, int32(i), string(f.input.appendKey(nil, i)), string(f.input.appendPayload(nil, i))}, nil
	}))
	if err != nil {
		return fmt.Errorf("copy items: %w", err)
	}
	return nil
}

// pgxItem is a row of floorRead.
type pgxItem struct {
	Ordinal      int32
	Key, Payload string
}

func (f floor) work(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) error {
	page, err := readFloor(ctx, conn, run, lo, hi)
	if err != nil {
		return err
	}
	for ; len(page) > 0; page = page[min(floorCommit, len(page)):] {
		if err := copyResults(ctx, conn, run, "part", page[:min(floorCommit, len(page))]); err != nil {
			return err
		}
	}
	return nil
}

// readFloor reads the items lo to hi-1.
func readFloor(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) ([]pgxItem, error) {
	rows, err := conn.Query(ctx, floorRead, run, lo, hi)
	if err != nil {
		return nil, fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pgxItem])
	if err != nil {
		return nil, fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	if len(page) != hi-lo {
		return nil, fmt.Errorf("read items %d to %d: got only %d", lo, hi-1, len(page))
	}
	return page, nil
}

// copyResults writes the payloads of items as their results, in one commit.
func copyResults(ctx context.Context, conn *pgx.Conn, run uuid.UUID, table string, of []pgxItem) error {
	_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"run_id", "ordinal", "result"},
		pgx.CopyFromSlice(len(of), func(i int) ([]any, error) {
			return []any{run, of[i].Ordinal, of[i].Payload}, nil
		}))
	if err != nil {
		return fmt.Errorf("copy results from %d into %s: %w", of[0].Ordinal, table, err)
	}
	return nil
}
