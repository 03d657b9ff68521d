package redo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Bounds of one correction: it is one transaction.
const (
	MaxCorrections     = 500_000
	MaxCorrectionBytes = 256 << 20 // of keys and payloads
)

// CorrectRequest gives items of a run other payloads.
type CorrectRequest struct {
	Run     workqueue.RunID
	Unit    string // what Correction.Line counts, for errors; empty: lines
	Cascade bool   // what later steps have made of the items is redone in any case
	DryRun  bool   // change nothing, and say what would be done
	Reason  string
	Actor   string
	// Items yields them from the first one on, until io.EOF, each time it is called: a transaction that was broken off
	// as a deadlock is run again.
	Items func() (next func(*Correction) error, err error)
}

// Correction is the payload that an item is to have. Next fills it; its memory may be used again by the following call.
type Correction struct {
	Key     string
	Payload []byte // a JSON value in UTF-8 without NUL
	Line    int    // where it stands in its source, for errors; 0 when it has no line
}

// Corrected is what a correction did, or would do.
type Corrected struct {
	Items      int64 // that have another payload now
	Same       int64 // that were given the payload which they have: nothing is done with them
	Begun      int64 // of Items, those that are done again; nobody had begun with the others
	Examples   []string
	Generation workqueue.Generation
	Steps      []StepReset
	Hold       control.Hold // the run is held: nothing is done again until it is resumed or approved
	HoldDetail string
	Requests   []workqueue.Sent // withdrawn as a whole, that may still lie in the work stream
}

// Examples is how many keys are shown of what is done, or would be.
const Examples = 10

// NothingToCorrectError is returned when every item has the payload already that it is given.
type NothingToCorrectError struct {
	Run  workqueue.RunID
	Same int64
}

func (e *NothingToCorrectError) Error() string {
	if e.Same == 0 {
		return fmt.Sprintf("nothing to correct in run %s: no item was given", e.Run)
	}
	return fmt.Sprintf("nothing to correct in run %s: %s in the run just as given", e.Run, countOf(e.Same))
}

// Correct gives items other payloads and has them done again with these, under the run's next generation. At each step
// that sees payloads what was made of the items is taken back, requests that are out included: late answers about them
// were made of the former payload, and are fenced off. What failed for them at any other step is taken back too. The
// steps after follow as after a [Store.Reset]: what they had done is kept, and redone only where a part that they see
// has changed, unless the correction cascades. The payloads that the items had stay as history.
//
// It is one transaction, all of it or nothing; meanwhile nothing is claimed of the run. A dry run does all of it and
// takes it back.
func (s Store) Correct(ctx context.Context, req CorrectRequest) (Corrected, error) {
	if err := checkReason(req.Reason); err != nil {
		return Corrected{}, fmt.Errorf("correct: %w", err)
	}
	var c *correction
	err := s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		c = &correction{CorrectRequest: &req, redo: redo{tx: tx, run: req.Run, again: req.Cascade,
			mended: true, take: scope{done: true, live: true}}}
		return c.do(ctx, database.Kept[plane.GraphCache](s.db))
	})
	if err != nil {
		return Corrected{}, fmt.Errorf("correct: %w", err)
	}
	return c.out, nil
}

// correction is one under way.
type correction struct {
	*CorrectRequest
	redo

	corrected blockMasks                // items whose payload changes
	given     blockMasks                // all that were given
	grown     map[workqueue.Block]int64 // bytes of payloads
	unknown   UnknownKeysError
	out       Corrected
}

func (c *correction) do(ctx context.Context, graphs *plane.GraphCache) error {
	const op = "correct items of"
	if err := c.begin(ctx, graphs); err != nil {
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
	if len(c.corrected) == 0 {
		return &NothingToCorrectError{c.run, c.out.Same}
	}
	c.named, c.wanted = everyStep(c.steps), map[workqueue.Step]blockMasks{}
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

// findSeers finds out which steps see payloads; of the others only what failed is taken back.
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
	for _, s := range everyStep(c.steps) {
		c.blind[s] = true
	}
	for _, s := range seers {
		delete(c.blind, s)
	}
	return nil
}

// The blocks are locked. Requests are cut by it.
const growBlocks = `
UPDATE work_block b SET payload_bytes = greatest(b.payload_bytes + u.grown, 0)
FROM unnest($3::int[], $4::bigint[]) AS u (block, grown)
WHERE b.run_id = $1 AND b.step = ANY ($2::smallint[]) AND b.block = u.block`

// measure notes how large the payloads of the blocks are now.
func (c *correction) measure(ctx context.Context) error {
	var blocks []workqueue.Block
	var grown []int64
	for block, bytes := range c.grown {
		blocks, grown = append(blocks, block), append(grown, bytes)
	}
	if _, err := c.tx.Exec(ctx, growBlocks, c.run, c.family, blocks, grown); err != nil {
		return fmt.Errorf("note the size of payloads: %w", err)
	}
	return nil
}

const insertCorrection = `
INSERT INTO run_correction (run_id, generation, actor, reason, cascade, items) VALUES ($1, $2, $3, $4, $5, $6)`

// finish opens the next generation, and writes down what was done.
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
	if c.Reason != "" {
		detail["reason"] = pg.Plain(c.Reason)
	}
	d.Add("generation", c.generation, run.Generation)
	err = ledger.AuditChange(ctx, c.tx, ledger.Action{Actor: c.Actor, Name: "correct", Run: c.run, Detail: detail,
		Before: d.Before, After: d.After})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, c.tx, c.run, run.Generation, workqueue.EventCorrected,
		map[string]any{"items": c.out.Items, "cascade": c.Cascade})
}
