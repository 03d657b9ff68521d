package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	rawCopyItems = `COPY item (run_id, ordinal, item_key, payload) FROM STDIN (FORMAT binary)`
	rawCopyParts = `COPY part (run_id, ordinal, result) FROM STDIN (FORMAT binary)`
)

// floorRaw is the stricter bar: what [floor] does, written to be as fast as a client can be. One connection, one
// goroutine, no coordination.
//
//  1. One COPY (one commit) puts n items into a table with a primary key (run, ordinal) and no other index.
//  2. They are read in order, 8,000 by primary key at a time, as raw bytes.
//  3. Each read's payloads go, as the results, into a second table with a primary key (run, ordinal), by COPY in
//     commits of 500.
//
// Binary COPY is encoded by hand on pgconn, rows are taken without decoding, one statement is prepared, buffers are
// reused. The items are made by the same code that makes Tranche's input.
type floorRaw struct {
	pg    *cluster
	input items
}

func (f floorRaw) name() string { return "floor-raw" }
func (f floorRaw) size() int    { return f.input.n }

// measure runs the floor once in a fresh database.
func (f floorRaw) measure(ctx context.Context) (sample, error) {
	return f.pg.onFloor(ctx, "floor_raw", floorSchema, f.input.n, f.load, f.work)
}

func (f floorRaw) load(ctx context.Context, conn *pgx.Conn, run uuid.UUID) error {
	var text []byte
	return copyRows(ctx, conn, rawCopyItems, 0, f.input.n, func(b []byte, i int) []byte {
		b = appendFields(b, 4)
		b = appendUUID(b, run)
		b = appendInt4(b, i)
		text = f.input.appendKey(text[:0], i)
		b = appendBytes(b, text)
		text = f.input.appendPayload(text[:0], i)
		return appendBytes(b, text)
	})
}

// work reads the items lo to hi-1 and writes their results.
func (f floorRaw) work(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) error {
	page, ends, err := readPage(ctx, conn, run, lo, hi)
	if err != nil {
		return err
	}
	result := func(i int) []byte { return page[ends[i-lo]:ends[i-lo+1]] }
	for from := lo; from < hi; from += floorCommit {
		to := min(from+floorCommit, hi)
		err := copyRows(ctx, conn, rawCopyParts, from, to, func(b []byte, i int) []byte {
			b = appendFields(b, 3)
			b = appendUUID(b, run)
			b = appendInt4(b, i)
			return appendBytes(b, result(i))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readPage returns the payloads of the items lo to hi-1 in one piece; the k-th ends at ends[k+1].
func readPage(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) (page []byte, ends []int, err error) {
	rows, err := conn.Query(ctx, floorRead, run, lo, hi)
	if err != nil {
		return nil, nil, fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	defer rows.Close()
	page, ends = make([]byte, 0, (hi-lo)*96), make([]int, 1, hi-lo+1)
	for rows.Next() {
		raw := rows.RawValues()
		if got := int(binary.BigEndian.Uint32(raw[0])); got != lo+len(ends)-1 {
			return nil, nil, fmt.Errorf("read items %d to %d: item %d is missing", lo, hi-1, lo+len(ends)-1)
		}
		page = append(page, raw[2]...)
		ends = append(ends, len(page))
	}
	if err := rows.Err(); err != nil {
		return nil, nil, fmt.Errorf("read items %d to %d: %w", lo, hi-1, err)
	}
	if len(ends) != hi-lo+1 {
		return nil, nil, fmt.Errorf("read items %d to %d: got only %d", lo, hi-1, len(ends)-1)
	}
	return page, ends, nil
}
