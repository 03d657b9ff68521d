package redo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/order"
)

// Bounds of one correction, which is one transaction.
const (
	MaxCorrections     = 500_000
	MaxCorrectionBytes = 256 << 20 // of keys and payloads
)

// CorrectRequest gives items of a run new payloads.
type CorrectRequest struct {
	Run     workqueue.RunID
	Unit    string // what Correction.Line counts, for errors; empty: lines
	Cascade bool   // also recompute all results of later steps
	DryRun  bool   // change nothing, and return what would be done
	Reason  string
	Actor   string
	Since   *workqueue.Generation // refuse items corrected after this generation; nil: none
	// Items yields the items from the first until io.EOF, each time it is called: a transaction may be retried.
	Items func() (next func(*Correction) error, err error)
}

// Correction is an item's new payload. Next fills it; the next call may reuse its memory.
type Correction struct {
	Key     string
	Payload []byte // a JSON value in UTF-8 without NUL
	Line    int    // position in its source, for errors; 0: unknown
}

// Corrected is what a correction did or would do.
type Corrected struct {
	Items      int64                `json:"items" doc:"that have another payload now"`
	Same       int64                `json:"same" doc:"that were given the payload they have; they stay unchanged"`
	Begun      int64                `json:"begun" doc:"of items, those that are rerun; the rest had not begun"`
	Examples   []string             `json:"examples" nullable:"false" doc:"the first keys of items"`
	Generation workqueue.Generation `json:"generation" doc:"that the correction opens"`
	Steps      []StepReset          `json:"steps" nullable:"false" doc:"the effect on the items at each step"`

	Hold       control.Hold     `json:"-"` // the run is held: nothing is redone until it is resumed or approved
	HoldDetail string           `json:"-"`
	Requests   []workqueue.Sent `json:"-"` // withdrawn entirely, that may still be in the work stream
}

// Examples is how many example keys are returned.
const Examples = 10

// Correct gives items new payloads and reruns them under the run's next generation. At each step that sees payloads,
// their outcomes and in-flight requests are discarded: late answers would be of the old payload, and are fenced off.
// Failures at other steps are discarded, too. Later steps follow as after a [Store.Reset]: their results are kept,
// and recomputed only if a part that they see changes, unless the correction cascades. The old payloads stay as
// history.
//
// It is one transaction, all or nothing; meanwhile nothing of the run is claimed. A dry run does everything and
// rolls back.
func (s Store) Correct(ctx context.Context, req CorrectRequest) (Corrected, error) {
	if err := control.CheckReason(req.Reason); err != nil {
		return Corrected{}, fmt.Errorf("correct: %w", err)
	}
	var c *correction
	err := s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		c = &correction{CorrectRequest: &req, redo: redo{tx: tx, run: req.Run, again: req.Cascade,
			corrected: true, take: scope{done: true, live: true}}}
		return c.do(ctx, s.db)
	})
	if err != nil {
		return Corrected{}, fmt.Errorf("correct: %w", err)
	}
	return c.out, nil
}

type correction struct {
	*CorrectRequest
	redo

	corrected blockMasks                // items whose payload changes
	given     blockMasks                // all given items
	grown     map[workqueue.Block]int64 // bytes of payloads
	unknown   UnknownKeysError
	out       Corrected
}

func (c *correction) do(ctx context.Context, db *database.DB) error {
	const op = "correct items of"
	if err := c.begin(ctx, db, op); err != nil {
		return err
	}
	open, err := c.may(ctx, op)
	switch {
	case err != nil:
		return err
	case open:
		return &workqueue.StateError{Run: c.run, State: "open", Op: op,
			Fix: "seal it first: tranche run seal " + c.run.String()}
	}
	if err := c.findSeers(ctx, op); err != nil {
		return err
	}
	if err := c.write(ctx); err != nil {
		return err
	}
	switch {
	case len(c.corrected) > 0:
	case c.out.Same == 0:
		return workqueue.Nothing("correct in run %s: no item was given", c.run)
	default:
		return workqueue.Nothing("correct in run %s: %s in the run just as given", c.run, countOf(c.out.Same))
	}
	c.named, c.wanted = c.graph.Numbers(), map[workqueue.Step]blockMasks{}
	for _, s := range c.named {
		c.wanted[s] = c.corrected
	}
	c.reach()
	if err := c.hold(ctx); err != nil {
		return err
	}
	if err := c.measure(ctx); err != nil {
		return err
	}
	if err := c.move(ctx); err != nil {
		return err
	}
	c.out.Begun, c.out.Steps, c.out.Requests = c.total(), c.told(), c.requests
	return c.finish(ctx)
}

// By run_step's primary key; the steps are locked.
const seesItem = `SELECT step FROM run_step WHERE run_id = $1 AND input_item ORDER BY step`

// findSeers finds the steps that see payloads; at others only failures are discarded.
func (c *correction) findSeers(ctx context.Context, op string) error {
	seers, err := pg.Collect(ctx, c.tx, pgx.RowTo[workqueue.Step], seesItem, c.run)
	if err != nil {
		return fmt.Errorf("look which steps see payloads: %w", err)
	}
	if len(seers) == 0 {
		return &workqueue.StateError{Run: c.run, State: "one of whose steps none sees payloads", Op: op,
			Fix: "run its items again: tranche run rerun " + c.run.String()}
	}
	c.blind = map[workqueue.Step]bool{}
	for _, s := range c.graph.Numbers() {
		c.blind[s] = true
	}
	for _, s := range seers {
		delete(c.blind, s)
	}
	return nil
}

// The blocks are locked. Requests are cut by this size.
const growBlocks = `
UPDATE work_block b SET payload_bytes = greatest(b.payload_bytes + u.grown, 0)
FROM unnest($3::int[], $4::bigint[]) AS u (block, grown)
WHERE b.run_id = $1 AND b.step = ANY ($2::smallint[]) AND b.block = u.block`

func (c *correction) measure(ctx context.Context) error {
	var blocks []workqueue.Block
	var grown []int64
	for block, bytes := range c.grown {
		blocks, grown = append(blocks, block), append(grown, bytes)
	}
	_, err := c.tx.Exec(ctx, growBlocks, c.run, c.family, blocks, grown)
	return pg.Wrap(err, "note the size of payloads")
}

const insertCorrection = `
INSERT INTO run_correction (run_id, generation, actor, reason, cascade, items) VALUES ($1, $2, $3, $4, $5, $6)`

func (c *correction) finish(ctx context.Context) error {
	var d ledger.Difference
	run, err := c.rearm(ctx, nil, &d)
	if err != nil {
		return err
	}
	c.out.Generation, c.out.Hold, c.out.HoldDetail = run.Generation, run.Hold, run.Detail
	_, err = c.tx.Exec(ctx, insertCorrection, c.run, run.Generation, pg.Plain(c.Actor), pg.Plain(c.Reason), c.Cascade,
		c.out.Items)
	if err != nil {
		return fmt.Errorf("note the correction: %w", err)
	}
	detail := map[string]any{"items": c.out.Items, "same": c.out.Same, "begun": c.out.Begun, "generation": run.Generation,
		"cascade": c.Cascade}
	ledger.AddReason(detail, c.Reason)
	d.Add("generation", c.generation, run.Generation)
	err = ledger.AuditChange(ctx, c.tx, ledger.Action{Actor: c.Actor, Name: "correct", Run: c.run, Detail: detail,
		Before: d.Before, After: d.After})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, c.tx, c.run, run.Generation, workqueue.EventCorrected,
		map[string]any{"items": c.out.Items, "cascade": c.Cascade, "hold": run.Hold})
}

func (c *correction) wrong(b *correctBatch, i int, problem string) error {
	place := ""
	if b.lines[i] > 0 {
		place = fmt.Sprintf("%s %d, ", cmp.Or(c.Unit, "line"), b.lines[i])
	}
	return workqueue.BadSetting("%skey %.80q: %s; nothing was corrected", place, b.keys[i], problem)
}

const (
	correctRows  = 4096
	correctBytes = 4 << 20
)

// correctPayloads saves the old payloads and sets new ones. It finds each by work_queue_key, regardless of statistics.
// Items with the same key come in ordinal order.
const correctPayloads = `
WITH met AS MATERIALIZED (
    SELECT g.n, q.ordinal, q.payload AS before, g.payload AS after
    FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS g (key, payload, n)
    CROSS JOIN LATERAL (
        SELECT ordinal, payload FROM work_queue WHERE run_id = $1 AND item_key = g.key OFFSET 0) q
), kept AS (
    INSERT INTO work_correction (run_id, ordinal, generation, payload)
    SELECT $1, ordinal, $2, before FROM met WHERE before <> after
    ON CONFLICT DO NOTHING -- an item that is given twice is refused
), moved AS (
    UPDATE work_queue q SET payload = m.after FROM met m
    WHERE q.run_id = $1 AND q.ordinal = m.ordinal AND m.before <> m.after
)
SELECT n - 1, ordinal, octet_length(after) - octet_length(before), before <> after, EXISTS (
    SELECT FROM work_correction c WHERE c.run_id = $1 AND c.ordinal = met.ordinal AND c.generation > $5)
FROM met ORDER BY n, ordinal`

type correctBatch struct {
	keys, payloads []string
	lines          []int
	bytes          int
}

func (c *correction) write(ctx context.Context) error {
	next, err := c.Items()
	if err != nil {
		return err
	}
	lanes, err := c.laneRule(ctx)
	if err != nil {
		return err
	}
	c.out = Corrected{}
	c.corrected, c.given, c.grown = blockMasks{}, blockMasks{}, map[workqueue.Block]int64{}
	c.unknown = UnknownKeysError{Run: c.run}
	read := correctReader{next: next}
	for more := true; more; {
		var b correctBatch
		if more, err = read.fill(&b); err != nil {
			return err
		}
		if len(b.keys) == 0 {
			continue
		}
		ordinals, err := c.put(ctx, &b)
		if err != nil {
			return err
		}
		if lanes != nil {
			if err := c.keepLanes(ctx, lanes, &b, ordinals); err != nil {
				return err
			}
		}
	}
	if c.unknown.more+len(c.unknown.Keys) > 0 {
		return &c.unknown
	}
	return nil
}

type correctReader struct {
	next  func(*Correction) error
	items int
	bytes int64
}

func (r *correctReader) fill(b *correctBatch) (more bool, err error) {
	const tooLarge = "more than %v %s in one correction; nothing was corrected. Send them in several"
	var one Correction
	for len(b.keys) < correctRows && b.bytes < correctBytes {
		one.Line = 0
		err := r.next(&one)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if r.items++; r.items > MaxCorrections {
			return false, workqueue.TooLarge(tooLarge, control.Grouped(MaxCorrections), "items")
		}
		size := len(one.Key) + len(one.Payload)
		if r.bytes += int64(size); r.bytes > MaxCorrectionBytes {
			return false, workqueue.TooLarge(tooLarge, MaxCorrectionBytes>>20, "MiB of keys and payloads")
		}
		b.keys, b.payloads = append(b.keys, one.Key), append(b.payloads, string(one.Payload))
		b.lines, b.bytes = append(b.lines, one.Line), b.bytes+size
	}
	return true, nil
}

// put writes a batch and returns the ordinals of its items, or -1 for unknown keys.
func (c *correction) put(ctx context.Context, b *correctBatch) ([]workqueue.Ordinal, error) {
	ordinals := make([]workqueue.Ordinal, len(b.keys))
	for i := range ordinals {
		ordinals[i] = -1
	}
	payloads := b.payloads
	if c.seal != nil { // the same payload of a key is the same when sealed
		payloads = make([]string, len(b.keys))
		for i, key := range b.keys {
			payloads[i] = string(c.seal.Text(database.PayloadOf(key), []byte(b.payloads[i])))
		}
	}
	rows := pg.Rows(ctx, c.tx, correctPayloads, c.run, c.generation+1, b.keys, payloads, c.Since)
	var i, grown int
	var o workqueue.Ordinal
	var changed, since bool
	_, err := pgx.ForEachRow(rows, []any{&i, &o, &grown, &changed, &since}, func() error {
		block, bit := o.Block()
		switch {
		case since:
			return workqueue.Conflict("correct in run %s: the item was corrected since it was read; look at it again", c.run)
		case ordinals[i] >= 0:
			return c.wrong(b, i, "the run has several items with this key, so it is ambiguous")
		case c.given[block] != nil && c.given[block].Has(bit):
			return c.wrong(b, i, "the key was given before; give each item once")
		}
		ordinals[i] = o
		c.given.add(o)
		if !changed {
			c.out.Same++
			return nil
		}
		c.out.Items++
		c.corrected.add(o)
		c.grown[block] += int64(grown)
		if len(c.out.Examples) < Examples {
			c.out.Examples = append(c.out.Examples, b.keys[i])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write payloads: %w", err)
	}
	for i, o := range ordinals {
		if o < 0 {
			c.unknown.note(b.keys[i])
		}
	}
	return ordinals, nil
}

const (
	laneRule = `SELECT rule FROM run_order WHERE run_id = $1`

	// Point reads of work_order's primary key.
	lanesOf = `
SELECT u.n - 1, o.lane FROM unnest($2::int[]) WITH ORDINALITY AS u (ordinal, n)
JOIN work_order o ON o.run_id = $1 AND o.ordinal = u.ordinal`
)

// laneRule reads the rule for the run's lanes; nil if it has none.
func (c *correction) laneRule(ctx context.Context) (*order.Rule, error) {
	if !c.graph.Ordered {
		return nil, nil
	}
	rule := &order.Rule{}
	err := c.tx.QueryRow(ctx, laneRule, c.run).Scan(rule)
	return rule, pg.Wrap(err, "read the order of run %s", c.run)
}

// keepLanes refuses payloads that would move items to other lanes: their order there would be wrong.
func (c *correction) keepLanes(ctx context.Context, rule *order.Rule, b *correctBatch, items []workqueue.Ordinal,
) error {
	rows := pg.Rows(ctx, c.tx, lanesOf, c.run, items)
	var i int
	var lane int64
	_, err := pgx.ForEachRow(rows, []any{&i, &lane}, func() error {
		value, err := rule.Value(b.keys[i], []byte(b.payloads[i]))
		switch {
		case err != nil:
			return c.wrong(b, i, err.Error())
		case rule.Lane(value) != lane:
			return c.wrong(b, i, fmt.Sprintf("the run's items are kept in order by order_by, and the value %.80q would put "+
				"this one elsewhere; leave that value unchanged, or start a new run", value))
		}
		return nil
	})
	return pg.Wrap(err, "read the lines of items")
}
