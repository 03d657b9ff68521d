package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/tools/demokit"
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
type floor struct{ input items }

// floors are the yardsticks of a run, of a stricter bar, and of gathering.
func floors(pg *cluster, input items) []contestant {
	plain, raw := floor{input}, floorRaw{input}
	return []contestant{
		{name: "floor", size: input.n, measure: func(ctx context.Context) sample {
			return pg.onFloor(ctx, "floor", floorSchema, input.n, plain.load, plain.work)
		}},
		{name: "floor-raw", size: input.n, measure: func(ctx context.Context) sample {
			return pg.onFloor(ctx, "floor_raw", floorSchema, input.n, raw.load, raw.work)
		}},
		{name: "floor-gather", size: input.n, measure: func(ctx context.Context) sample {
			return pg.onFloor(ctx, "floor_gather", floorGatherSchema, input.n, plain.load, plain.gather)
		}},
	}
}

func (f floor) load(ctx context.Context, conn *pgx.Conn, run uuid.UUID) {
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
	check(err, "copy items")
}

type pgxItem struct {
	Ordinal      int32
	Key, Payload string
}

func (f floor) work(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) {
	copyPage(ctx, conn, run, lo, hi, "part")
}

// gather writes three parts per item.
func (f floor) gather(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) {
	copyPage(ctx, conn, run, lo, hi, "part", "part_2", "part_3")
}

// copyPage reads items lo to hi-1 and writes their payloads as results into the tables, in commits of 500.
func copyPage(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int, tables ...string) {
	rows, err := conn.Query(ctx, floorRead, run, lo, hi)
	check(err, "read items %d to %d", lo, hi-1)
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pgxItem])
	check(err, "read items %d to %d", lo, hi-1)
	if len(page) != hi-lo {
		demokit.Stop(fmt.Errorf("read items %d to %d: got only %d", lo, hi-1, len(page)))
	}
	for some := range slices.Chunk(page, floorCommit) {
		for _, table := range tables {
			_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"run_id", "ordinal", "result"},
				pgx.CopyFromSlice(len(some), func(i int) ([]any, error) {
					return []any{run, some[i].Ordinal, some[i].Payload}, nil
				}))
			check(err, "copy results from %d into %s", some[0].Ordinal, table)
		}
	}
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
type floorRaw struct{ input items }

func (f floorRaw) load(ctx context.Context, conn *pgx.Conn, run uuid.UUID) {
	var text []byte
	copyRows(ctx, conn, rawCopyItems, 0, f.input.n, func(b []byte, i int) []byte {
		b = appendFields(b, 4)
		b = appendUUID(b, run)
		b = appendInt4(b, i)
		text = f.input.appendKey(text[:0], i)
		b = appendBytes(b, text)
		text = f.input.appendPayload(text[:0], i)
		return appendBytes(b, text)
	})
}

func (f floorRaw) work(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) {
	page, ends := readPage(ctx, conn, run, lo, hi)
	for from := lo; from < hi; from += floorCommit {
		copyRows(ctx, conn, rawCopyParts, from, min(from+floorCommit, hi), func(b []byte, i int) []byte {
			b = appendFields(b, 3)
			b = appendUUID(b, run)
			b = appendInt4(b, i)
			return appendBytes(b, page[ends[i-lo]:ends[i-lo+1]])
		})
	}
}

// readPage returns the payloads of items lo to hi-1 concatenated; the k-th ends at ends[k+1].
func readPage(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int) (page []byte, ends []int) {
	rows, err := conn.Query(ctx, floorRead, run, lo, hi)
	check(err, "read items %d to %d", lo, hi-1)
	defer rows.Close()
	page, ends = make([]byte, 0, (hi-lo)*96), make([]int, 1, hi-lo+1)
	for rows.Next() {
		raw := rows.RawValues()
		if got := int(binary.BigEndian.Uint32(raw[0])); got != lo+len(ends)-1 {
			demokit.Stop(fmt.Errorf("read items %d to %d: item %d is missing", lo, hi-1, lo+len(ends)-1))
		}
		page = append(page, raw[2]...)
		ends = append(ends, len(page))
	}
	check(rows.Err(), "read items %d to %d", lo, hi-1)
	if len(ends) != hi-lo+1 {
		demokit.Stop(fmt.Errorf("read items %d to %d: got only %d", lo, hi-1, len(ends)-1))
	}
	return page, ends
}

// floorGatherSchema is for three parts per item.
const floorGatherSchema = floorSchema + `;
CREATE TABLE part_2 (LIKE part INCLUDING ALL);
CREATE TABLE part_3 (LIKE part INCLUDING ALL)`

// copyHeader and copyTrailer frame PostgreSQL's binary COPY format.
var (
	copyHeader  = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	copyTrailer = []byte{0xff, 0xff}
)

// copyRows sends rows lo to hi-1 in one COPY. appendRow encodes a row in binary format.
func copyRows(ctx context.Context, conn *pgx.Conn, sql string, lo, hi int, appendRow func([]byte, int) []byte) {
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
	check(err, "copy rows %d to %d", lo, hi-1)
	if got := tag.RowsAffected(); got != int64(hi-lo) {
		demokit.Stop(fmt.Errorf("copy rows %d to %d: the server took %d", lo, hi-1, got))
	}
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
