package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	floorCommit = 500   // results per commit
	floorPage   = 8_000 // items per read; a multiple of floorCommit
)

// floorSchema has tables like work_queue and work_result, with the minimum that any solution needs.
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

// floor is the yardstick: plain pgx code without any coordination. One connection, one goroutine.
//
//  1. One CopyFrom (one commit) puts n items into a table with a primary key (run, ordinal) and no other index.
//  2. They are read in order, 8,000 by primary key at a time, by CollectRows into structs.
//  3. Each read's payloads go, as the results, into a second table with a primary key (run, ordinal), by CopyFrom in
//     commits of 500.
//
// It lacks what a batch system is for: finding an item by key, claiming, retries, errors, several workers, progress,
// and an external service. CopyFrom queries the column types at every commit; [floorRaw] avoids such costs.
type floor struct {
	pg    *cluster
	input items
}

func (f floor) name() string { return "floor" }
func (f floor) size() int    { return f.input.n }

func (f floor) measure(ctx context.Context) (sample, error) {
	return f.pg.onFloor(ctx, "floor", floorSchema, f.input.n, f.load, f.work)
}

// onFloor loads items on one connection and processes them page by page.
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

// copyResults writes the payloads of items as results, in one commit.
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

const (
	rawCopyItems = `COPY item (run_id, ordinal, item_key, payload) FROM STDIN (FORMAT binary)`
	rawCopyParts = `COPY part (run_id, ordinal, result) FROM STDIN (FORMAT binary)`
)

// floorRaw is a stricter bar: [floor] as fast as a client can be. One connection, one goroutine, no coordination.
//
//  1. One COPY (one commit) puts n items into a table with a primary key (run, ordinal) and no other index.
//  2. They are read in order, 8,000 by primary key at a time, as raw bytes.
//  3. Each read's payloads go, as the results, into a second table with a primary key (run, ordinal), by COPY in
//     commits of 500.
//
// Binary COPY is encoded by hand on pgconn, rows are not decoded, one statement is prepared, and buffers are reused.
// The code that generates items is that of Tranche's input.
type floorRaw struct {
	pg    *cluster
	input items
}

func (f floorRaw) name() string { return "floor-raw" }
func (f floorRaw) size() int    { return f.input.n }

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

// readPage returns the payloads of items lo to hi-1 concatenated; the k-th ends at ends[k+1].
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

const floorGatherSchema = floorSchema + `;
CREATE TABLE part_2 (LIKE part INCLUDING ALL);
CREATE TABLE part_3 (LIKE part INCLUDING ALL)`

// floorGather is the yardstick for gathering: [floor] with three parts per item. Items are copied in and read once;
// then each part is written to its table in commits of 500.
type floorGather struct{ floor }

func (f floorGather) name() string { return "floor-gather" }

func (f floorGather) measure(ctx context.Context) (sample, error) {
	return f.pg.onFloor(ctx, "floor_gather", floorGatherSchema, f.input.n, f.load, f.gather)
}

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

// copyHeader and copyTrailer frame PostgreSQL's binary COPY format.
var (
	copyHeader  = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	copyTrailer = []byte{0xff, 0xff}
)

// copyRows sends rows lo to hi-1 in one COPY. appendRow encodes a row in binary format.
func copyRows(ctx context.Context, conn *pgx.Conn, sql string, lo, hi int, appendRow func([]byte, int) []byte) error {
	next := lo
	rows := &stream{head: copyHeader, fill: func(b []byte) ([]byte, bool) {
		for ; next < hi && len(b) < streamBuffer; next++ {
			b = appendRow(b, next)
		}
		if next < hi {
			return b, true
		}
		return append(b, copyTrailer...), false
	}}
	tag, err := conn.PgConn().CopyFrom(ctx, rows, sql)
	if err != nil {
		return fmt.Errorf("copy rows %d to %d: %w", lo, hi-1, err)
	}
	if got := tag.RowsAffected(); got != int64(hi-lo) {
		return fmt.Errorf("copy rows %d to %d: the server took %d", lo, hi-1, got)
	}
	return nil
}

func appendFields(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(b, uint16(n)) }

func appendUUID(b []byte, id uuid.UUID) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	return append(b, id[:]...)
}

func appendInt4(b []byte, v int) []byte {
	b = binary.BigEndian.AppendUint32(b, 4)
	return binary.BigEndian.AppendUint32(b, uint32(v))
}

func appendBytes(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}
