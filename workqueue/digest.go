package workqueue

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Digests tell whether two runs had the same items, and whether they came to the same results. Both are SHA-256, in
// hexadecimal, over netstrings (the length in decimal, a colon, the bytes, a comma), item by item in the order of the
// ordinals:
//
//	items    key, payload
//	results  key, outcome, value
//
// The payload is the JSON that services get. The outcome is done, failed or missing; the value is the result as the
// service sent it, the error code, or nothing.
type Digests struct {
	Items   string `json:"items,omitempty" doc:"SHA-256 of the sealed list of items"`
	Results string `json:"results,omitempty" doc:"SHA-256 of keys, outcomes and results; absent while they can change"`
	Note    string `json:"note,omitempty" doc:"why one of them is absent"`
}

const digestRun = `
SELECT r.state, r.generation, r.items, (SELECT array_agg(s.step ORDER BY s.step) FROM run_step s WHERE s.run_id = r.id)
FROM batchrun r WHERE r.id = $1`

// Digests reads all of a run, in pages of 1024 items, in constant memory: 1M items with results of 130 bytes take
// 2 to 3 s. While a run goes on only its items have a digest: there is nothing to compare passing results with. The
// error wraps ErrNotFound when there is no such run.
func (s *Store) Digests(ctx context.Context, id RunID) (Digests, error) {
	d, err := s.digests(ctx, id)
	if err != nil {
		return Digests{}, fmt.Errorf("digest run %s: %w", id, err)
	}
	return d, nil
}

func (s *Store) digests(ctx context.Context, id RunID) (Digests, error) {
	d := digester{store: s, run: id}
	if err := d.begin(ctx); err != nil {
		return Digests{}, err
	}
	if d.state == "loading" {
		return Digests{Note: "the run is still loading: there is no list of items yet"}, nil
	}
	for from := Ordinal(0); int64(from) < d.size; from = (from + bitfield.Size) {
		if err := d.block(ctx, from); err != nil {
			return Digests{}, err
		}
	}
	out := Digests{Items: d.items.sum()}
	was := d.digestedRun
	if err := d.begin(ctx); err != nil {
		return Digests{}, err
	}
	switch {
	case was.state == "running":
		out.Note = "the run is not complete: its results have a digest once it is"
	case was != d.digestedRun:
		out.Note = "the run was set going again while its results were read"
	default:
		out.Results = d.results.sum()
	}
	return out, nil
}

// digestedRun is what must not change while results are read.
type digestedRun struct {
	state      string
	generation Generation
	size       int64
}

// digester reads a run.
type digester struct {
	digestedRun

	store          *Store
	run            RunID
	steps          []Step
	items, results netstrings

	done   bitfield.Set   // of the block, items that every step is done with
	failed bitfield.Set   // items that some step has failed
	byStep []bitfield.Set // items that each step has failed
	keys   []byte         // of the page, one after the other
	ends   []int          // where each of them ends
}

func (d *digester) begin(ctx context.Context) error {
	err := d.store.pool.QueryRow(ctx, digestRun, d.run).Scan(&d.state, &d.generation, &d.size, &d.steps)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// final reports whether the results can be trusted to stay.
func (d *digester) final() bool { return d.state == "completed" || d.state == "cancelled" }

// digestPage is how many items one statement reads: with each of them as large as it may be, PostgreSQL is to be held
// up for a moment only.
const digestPage = 1024

// block reads the items of one block, of which from is the first.
func (d *digester) block(ctx context.Context, from Ordinal) error {
	if err := d.planes(ctx, from); err != nil {
		return err
	}
	end := min(int64(from)+bitfield.Size, d.size)
	for first := from; int64(first) < end; first += digestPage {
		last := Ordinal(min(int64(first)+digestPage, end) - 1)
		if err := d.readItems(ctx, first, last); err != nil {
			return fmt.Errorf("items %d to %d: %w", first, last, err)
		}
		if !d.final() {
			continue
		}
		if err := d.readParts(ctx, first, last); err != nil {
			return fmt.Errorf("results of items %d to %d: %w", first, last, err)
		}
	}
	return nil
}

func (d *digester) planes(ctx context.Context, from Ordinal) error {
	block, _ := from.Block()
	rows, err := d.store.pool.Query(ctx, exportBlock, d.run, d.steps, block)
	if err != nil {
		return err
	}
	var size int
	var done, failed bitfield.Set
	d.done, d.failed, d.byStep = bitfield.Full(bitfield.Size), bitfield.Set{}, d.byStep[:0]
	_, err = pgx.ForEachRow(rows, []any{&size, pgbits.Into(&done), pgbits.Into(&failed)}, func() error {
		d.done, d.failed, d.byStep = d.done.And(done), d.failed.Or(failed), append(d.byStep, failed)
		return nil
	})
	if err == nil && len(d.byStep) != len(d.steps) {
		err = fmt.Errorf("block %d has %d steps of %d: %w", block, len(d.byStep), len(d.steps), errFence)
	}
	return err
}

const digestItems = `
SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal BETWEEN $2 AND $3 ORDER BY ordinal`

// readItems takes in the keys and payloads of a page, and keeps the keys.
func (d *digester) readItems(ctx context.Context, first, last Ordinal) error {
	rows, err := d.store.pool.Query(ctx, digestItems, d.run, first, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	d.keys, d.ends = d.keys[:0], d.ends[:0]
	for next := first; rows.Next(); next++ {
		raw := rows.RawValues() // as in EachInput: the driver's memory, integers in binary form
		if at := Ordinal(binary.BigEndian.Uint32(raw[0])); at != next {
			return fmt.Errorf("item %d is not in work_queue: %w", next, errFence)
		}
		d.items.add(raw[1])
		d.items.add(raw[2])
		d.keys = append(d.keys, raw[1]...)
		d.ends = append(d.ends, len(d.keys))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if want := int(last-first) + 1; len(d.ends) != want {
		return fmt.Errorf("%d items of %d are in work_queue: %w", len(d.ends), want, errFence)
	}
	return nil
}

// A range of work_part's primary key for each step, with every generation.
const digestParts = `
SELECT ordinal, step, result, error_code FROM work_part
WHERE run_id = $1 AND step = ANY ($2) AND ordinal BETWEEN $3 AND $4 ORDER BY ordinal, generation`

// readParts takes in the outcomes of the page whose keys are at hand.
func (d *digester) readParts(ctx context.Context, first, last Ordinal) error {
	rows, err := d.store.pool.Query(ctx, digestParts, d.run, d.steps, first, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	next := first
	var value []byte // of the newest part of the item that is next; the rows are the driver's memory
	for rows.Next() {
		raw := rows.RawValues()
		at, step := Ordinal(binary.BigEndian.Uint32(raw[0])), Step(binary.BigEndian.Uint16(raw[1]))
		for next < at {
			d.outcome(first, next, value)
			next, value = next+1, value[:0]
		}
		if step != d.telling(at) {
			continue
		}
		value = append(append(value[:0], raw[2]...), raw[3]...) // one of them is null
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for ; next <= last; next++ {
		d.outcome(first, next, value)
		value = value[:0]
	}
	return nil
}

// telling is the step whose part is an item's outcome: the last for one that is done, the first that failed else.
func (d *digester) telling(at Ordinal) Step {
	_, bit := at.Block()
	for i := range d.byStep {
		if d.byStep[i].Has(bit) {
			return d.steps[i]
		}
	}
	return d.steps[len(d.steps)-1]
}

func (d *digester) outcome(first, at Ordinal, value []byte) {
	i := int(at - first)
	begin := 0
	if i > 0 {
		begin = d.ends[i-1]
	}
	_, bit := at.Block()
	outcome := standing(&d.done, &d.failed, bit)
	if outcome == OutcomeMissing {
		value = nil // of an earlier generation
	}
	d.results.add(d.keys[begin:d.ends[i]])
	d.results.add([]byte(outcome))
	d.results.add(value)
}

// netstrings is a SHA-256 over texts that cannot run into each other.
type netstrings struct {
	hash hash.Hash
	to   *bufio.Writer
	head []byte
}

func (n *netstrings) begin() {
	if n.hash == nil {
		n.hash = sha256.New()
		n.to = bufio.NewWriterSize(n.hash, 64<<10)
	}
}

// add takes in one text. Nothing about a hash can fail.
func (n *netstrings) add(text []byte) {
	n.begin()
	n.head = append(strconv.AppendInt(n.head[:0], int64(len(text)), 10), ':')
	_, _ = n.to.Write(n.head)
	_, _ = n.to.Write(text)
	_ = n.to.WriteByte(',')
}

func (n *netstrings) sum() string {
	n.begin()
	_ = n.to.Flush()
	return hex.EncodeToString(n.hash.Sum(nil))
}
