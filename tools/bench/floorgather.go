package main

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// floorGatherSchema has a table for the parts of each of three services.
const floorGatherSchema = floorSchema + `;
CREATE TABLE part_2 (LIKE part INCLUDING ALL);
CREATE TABLE part_3 (LIKE part INCLUDING ALL)`

// floorGather is the yardstick for gathering: what [floor] does, with three parts for each item. The items are copied in
// and read once, and then each part of them goes into its table, in commits of 500.
type floorGather struct{ floor }

func (f floorGather) name() string { return "floor-gather" }

func (f floorGather) measure(ctx context.Context) (sample, error) {
	return f.pg.onFloor(ctx, "floor_gather", floorGatherSchema, f.input.n, f.load, f.gather)
}

// gather reads the items lo to hi-1 and writes their parts.
func (f floorGather) gather(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) error {
	page, err := readFloor(ctx, conn, run, lo, hi)
	if err != nil {
		return err
	}
	for ; len(page) > 0; page = page[min(floorCommit, len(page)):] {
		for _, table := range []string{"part", "part_2", "part_3"} {
			if err := copyResults(ctx, conn, run, table, page[:min(floorCommit, len(page))]); err != nil {
				return err
			}
		}
	}
	return nil
}
