package report

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Digests tell whether two runs had the same items, and the same results. Both are SHA-256 in hexadecimal over
// netstrings (the length in decimal, a colon, the bytes, a comma), item by item in ordinal order:
//
//	items    key, payload
//	results  key, outcome, value
//
// The payload is the JSON that services get. The outcome is done, failed or missing. The value is the result
// unchanged, the error code of the first required step that failed the item, or nothing. Results are the parts of
// the steps that no other step needs: a done item has a value for each of them in step order; if an optional one
// failed it, its error code.
type Digests struct {
	Items   string `json:"items,omitempty" doc:"SHA-256 of the sealed list of items"`
	Results string `json:"results,omitempty" doc:"SHA-256 of keys, outcomes and results; absent while they can change"`
	Note    string `json:"note,omitempty" doc:"why one of them is absent"`
}

const digestRun = `
SELECT r.state, r.generation, r.items, r.sealed_at IS NOT NULL FROM batchrun r WHERE r.id = $1`

// Digests reads all of a run, in pages of 1024 items, in constant memory: 1M items with results of 130 bytes take 2 to
// 3 s. A run in progress has only a digest of items, since its results still change.
func (s Store) Digests(ctx context.Context, id workqueue.RunID) (Digests, error) {
	d, err := s.digests(ctx, id)
	return d, pg.Wrap(err, "digest run %s", id)
}

func (s Store) digests(ctx context.Context, id workqueue.RunID) (Digests, error) {
	d := digester{store: s.db, run: id}
	if err := d.begin(ctx); err != nil {
		return Digests{}, err
	}
	var err error
	if d.steps, err = s.readOutcomeSteps(ctx, id, ""); err != nil {
		return Digests{}, err
	}
	if d.seal, err = s.db.Seal(ctx, s.db.Pool, id); err != nil {
		return Digests{}, err
	}
	d.values = make([][]byte, len(d.steps.Results))
	if !d.sealed {
		return Digests{Note: "the run is not sealed: there is no whole list of items yet"}, nil
	}
	for from := workqueue.Ordinal(0); int64(from) < d.size; from = (from + bitfield.Size) {
		if err := d.readBlock(ctx, from); err != nil {
			return Digests{}, err
		}
	}
	out := Digests{Items: d.items.sum()}
	was := d.digestedRun
	if err := d.begin(ctx); err != nil {
		return Digests{}, err
	}
	switch {
	case was.generation != d.generation: // items may have been corrected
		return Digests{Note: "the run was reopened while it was read; ask again"}, nil
	case was.state == "running":
		out.Note = "the run is not complete: its results have a digest once it is"
	case was != d.digestedRun:
		out.Note = "the run was reopened while its results were read"
	default:
		out.Results = d.results.sum()
	}
	return out, nil
}

// digestedRun is what must not change while results are read.
type digestedRun struct {
	state      string
	generation workqueue.Generation
	size       int64
	sealed     bool
}

type digester struct {
	digestedRun

	store          *database.DB
	seal           *database.Seal
	run            workqueue.RunID
	steps          plane.OutcomeSteps
	items, results netstrings

	block  plane.BlockOutcomes
	values [][]byte // of the current item, by result step
	code   []byte   // its error
	keys   []byte   // of the page, concatenated
	ends   []int    // the end of each
}

func (d *digester) begin(ctx context.Context) error {
	err := d.store.Pool.QueryRow(ctx, digestRun, d.run).Scan(&d.state, &d.generation, &d.size, &d.sealed)
	return pg.NoRow(err, workqueue.ErrNotFound)
}

// digestPage bounds what one statement reads, so that items of maximum size occupy PostgreSQL only briefly.
const digestPage = 1024

func (d *digester) readBlock(ctx context.Context, from workqueue.Ordinal) error {
	if err := d.planes(ctx, from); err != nil {
		return err
	}
	end := min(int64(from)+bitfield.Size, d.size)
	for first := from; int64(first) < end; first += digestPage {
		last := workqueue.Ordinal(min(int64(first)+digestPage, end) - 1)
		if err := d.readItems(ctx, first, last); err != nil {
			return fmt.Errorf("items %d to %d: %w", first, last, err)
		}
		if d.state != "completed" && d.state != "cancelled" { // the results may still change
			continue
		}
		if err := d.readParts(ctx, first, last); err != nil {
			return fmt.Errorf("results of items %d to %d: %w", first, last, err)
		}
	}
	return nil
}

const digestBlock = `
SELECT b.step, b.size, b.done, b.failed, coalesce(b.skipped, ` + plane.NoBits + `) FROM work_block b
WHERE b.run_id = $1 AND b.step = ANY ($2) AND b.block = $3 ORDER BY b.step`

func (d *digester) planes(ctx context.Context, from workqueue.Ordinal) error {
	block, _ := from.Block()
	rows := pg.Rows(ctx, d.store.Pool, digestBlock, d.run, d.steps.All, block)
	var p plane.StepPlanes
	d.block = plane.BlockOutcomes{}
	_, err := pgx.ForEachRow(rows, p.Into(), func() error { d.block.Add(&d.steps, &p); return nil })
	if err == nil && d.block.Steps == 0 && d.state == "cancelled" { // the newest items of an open run have no block
		return nil
	}
	if err == nil && d.block.Steps != len(d.steps.All) {
		err = fmt.Errorf("block %d has %d steps of %d: %w", block, d.block.Steps, len(d.steps.All), workqueue.ErrFence)
	}
	return err
}

const digestItems = `
SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal BETWEEN $2 AND $3 ORDER BY ordinal`

func (d *digester) readItems(ctx context.Context, first, last workqueue.Ordinal) error {
	rows, err := d.store.Pool.Query(ctx, digestItems, d.run, first, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	d.keys, d.ends = d.keys[:0], d.ends[:0]
	for next := first; rows.Next(); next++ {
		raw := rows.RawValues() // as in dispatch.Store.EachInput: the driver's memory, integers in binary form
		if at := workqueue.Ordinal(binary.BigEndian.Uint32(raw[0])); at != next {
			return fmt.Errorf("item %d is not in work_queue: %w", next, workqueue.ErrFence)
		}
		payload := raw[2]
		if d.seal != nil {
			if payload, err = d.seal.OpenText(database.PayloadOf(raw[1]), payload); err != nil {
				return err
			}
		}
		d.items.add(raw[1])
		d.items.add(payload)
		d.keys = append(d.keys, raw[1]...)
		d.ends = append(d.ends, len(d.keys))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if want := int(last-first) + 1; len(d.ends) != want {
		return fmt.Errorf("%d items of %d are in work_queue: %w", len(d.ends), want, workqueue.ErrFence)
	}
	return nil
}

// A range of work_result's primary key for each step, with every generation.
const digestParts = `
SELECT ordinal, step, result, error_code, large_id FROM work_result
WHERE run_id = $1 AND step = ANY ($2) AND ordinal BETWEEN $3 AND $4 ORDER BY ordinal, generation`

func (d *digester) readParts(ctx context.Context, first, last workqueue.Ordinal) error {
	rows, err := d.store.Pool.Query(ctx, digestParts, d.run, d.steps.All, first, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	next := first
	for rows.Next() { // the rows are the driver's memory
		raw := rows.RawValues()
		at, step := workqueue.Ordinal(binary.BigEndian.Uint32(raw[0])), workqueue.Step(binary.BigEndian.Uint16(raw[1]))
		for ; next < at; next++ {
			d.outcome(first, next)
		}
		result := raw[2]
		if d.seal != nil && raw[4] == nil {
			if result, err = d.seal.OpenBytes(database.ResultOf(step, at), result); err != nil {
				return err
			}
		}
		d.take(at, step, result, raw[3])
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for ; next <= last; next++ {
		d.outcome(first, next)
	}
	return nil
}

func (d *digester) take(at workqueue.Ordinal, step workqueue.Step, result, code []byte) {
	_, bit := at.Block()
	switch outcome, failed := d.block.Of(bit); outcome {
	case workqueue.OutcomeFailed:
		if step == failed {
			d.code = append(d.code[:0], code...)
		}
	case workqueue.OutcomeDone:
		if i := slices.Index(d.steps.Results, step); i >= 0 {
			d.values[i] = append(append(d.values[i][:0], result...), code...) // one of them is null
		}
	case workqueue.OutcomeMissing: // it is of an earlier generation
	}
}

func (d *digester) outcome(first, at workqueue.Ordinal) {
	i := int(at - first)
	begin := 0
	if i > 0 {
		begin = d.ends[i-1]
	}
	_, bit := at.Block()
	outcome, _ := d.block.Of(bit)
	d.results.add(d.keys[begin:d.ends[i]])
	d.results.add([]byte(outcome))
	if outcome == workqueue.OutcomeDone {
		for n := range d.values {
			d.results.add(d.values[n])
		}
	} else {
		d.results.add(d.code)
	}
	d.code = d.code[:0]
	for n := range d.values {
		d.values[n] = d.values[n][:0]
	}
}

// netstrings is a SHA-256 over unambiguously separated texts.
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

// add adds one text. Hashing cannot fail.
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
