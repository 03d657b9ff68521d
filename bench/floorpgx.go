package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// floorPgx does what [floor] does by pgx's own CopyFrom and Scan. It costs more of the client's time, chiefly because
// CopyFrom asks for the columns' types at each of the 2,000 commits.
type floorPgx struct {
	pg    *cluster
	input items
}

func (f floorPgx) name() string { return "floor-pgx" }
func (f floorPgx) size() int    { return f.input.n }

func (f floorPgx) measure(ctx context.Context) (sample, error) {
	return f.pg.onConnection(ctx, "floor_pgx", floorSchema, f.input.n, func(conn *pgx.Conn, run uuid.UUID) error {
		if err := f.load(ctx, conn, run); err != nil {
			return err
		}
		for lo := 0; lo < f.input.n; lo += floorPage {
			if err := f.work(ctx, conn, run, lo, min(lo+floorPage, f.input.n)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f floorPgx) load(ctx context.Context, conn *pgx.Conn, run uuid.UUID) error {
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

func (f floorPgx) work(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) error {
	rows, err := conn.Query(ctx, floorRead, run, lo, hi)
	if err != nil {
		return fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pgxItem])
	if err != nil {
		return fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	if len(page) != hi-lo {
		return fmt.Errorf("read items %d to %d: got only %d", lo, hi-1, len(page))
	}
	for ; len(page) > 0; page = page[min(floorCommit, len(page)):] {
		commit := page[:min(floorCommit, len(page))]
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"part"}, []string{"run_id", "ordinal", "result"},
			pgx.CopyFromSlice(len(commit), func(i int) ([]any, error) {
				return []any{run, commit[i].Ordinal, commit[i].Payload}, nil
			}))
		if err != nil {
			return fmt.Errorf("copy results from %d: %w", commit[0].Ordinal, err)
		}
	}
	return nil
}
