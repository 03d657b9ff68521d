package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Selection says which items of a run are meant. Exactly one of its fields is set.
type Selection struct {
	Failed bool     // all that failed
	Keys   []string // these, whether they failed or succeeded
	Codes  []string // those that failed with one of these codes
}

func (sel Selection) validate() error {
	n := 0
	for _, set := range []bool{sel.Failed, len(sel.Keys) > 0, len(sel.Codes) > 0} {
		if set {
			n++
		}
	}
	if n != 1 {
		return errors.New("choose either all failed items, or keys, or error codes")
	}
	return nil
}

// RerunRequest says what to run again, and how.
type RerunRequest struct {
	Run      RunID
	Select   Selection
	Chunk    int // new chunk of the step; 0 keeps it
	InFlight int // new in-flight limit; 0 keeps it
	Actor    string
}

// Rerun is what a re-run set going.
type Rerun struct {
	Items      int64
	Blocks     int
	Generation Generation
}

// NothingToRerunError is returned when a selection holds no item whose outcome is final.
type NothingToRerunError struct {
	Run    RunID
	Select Selection
}

func (e *NothingToRerunError) Error() string {
	what := "no item of it has failed"
	switch {
	case len(e.Select.Keys) > 0:
		what = "the items named are all under way still"
	case len(e.Select.Codes) > 0:
		what = "no item of it failed with code " + strings.Join(e.Select.Codes, " or ")
	}
	return fmt.Sprintf("nothing to re-run in run %s: %s", e.Run, what)
}

// UnknownKeysError names keys that a run does not have.
type UnknownKeysError struct {
	Run  RunID
	Keys []string
}

func (e *UnknownKeysError) Error() string {
	shown := e.Keys[:min(len(e.Keys), 5)]
	return fmt.Sprintf("run %s has no item with key %q", e.Run, strings.Join(shown, `", "`))
}

// Unwrap makes it an ErrNotFound.
func (e *UnknownKeysError) Unwrap() error { return ErrNotFound }

const (
	// A reset takes turns with claims and cancels by the lock on the step.
	lockStepSettings = `
UPDATE run_step SET chunk = coalesce(nullif($3, 0), chunk), in_flight = coalesce(nullif($4, 0), in_flight)
WHERE run_id = $1 AND step = $2`

	runState = `SELECT state, generation FROM batchrun WHERE id = $1`

	// resetBlocks moves bits from done and failed back to ready.
	resetBlocks = `
UPDATE work_block b
SET ready = b.ready | u.mask, done = b.done & ~u.mask, failed = b.failed & ~u.mask
FROM unnest($3::int[], $4::bit(8192)[]) AS u (block, mask)
WHERE b.run_id = $1 AND b.step = $2 AND b.block = u.block AND ((b.done | b.failed) & u.mask) = u.mask`

	rearmRun = `
UPDATE batchrun
SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, finished_at = NULL,
    started_at = clock_timestamp()
WHERE id = $1 AND state IN ('running', 'completed') AND generation = $2
RETURNING generation`
)

// Rerun sets final items of a run going again, under the run's next generation: bits move back to ready, the tracker is
// armed again, and what was recorded stays as history until newer parts take its place. It touches a row for each
// block, whatever the number of items.
func (s *Store) Rerun(ctx context.Context, req RerunRequest) (Rerun, error) {
	if err := req.Select.validate(); err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	var out Rerun
	err := s.inTxWithin(ctx, operatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		out, err = rerun(ctx, tx, req)
		return err
	})
	if err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	return out, nil
}

func rerun(ctx context.Context, tx pgx.Tx, req RerunRequest) (out Rerun, err error) {
	const step = Step(0)
	if _, err := tx.Exec(ctx, lockStepSettings, req.Run, step, req.Chunk, req.InFlight); err != nil {
		return out, fmt.Errorf("settings of run %s: %w", req.Run, err)
	}
	if err := mayRerun(ctx, tx, req.Run, &out.Generation); err != nil {
		return out, err
	}
	wanted, err := selected(ctx, tx, req.Run, step, req.Select)
	if err != nil {
		return out, err
	}
	masks, err := finalBits(ctx, tx, req.Run, step, wanted, req.Select)
	if err != nil {
		return out, err
	}
	if len(masks) == 0 {
		return out, &NothingToRerunError{req.Run, req.Select}
	}
	out.Blocks = len(masks)
	blocks, sets := make([]Block, len(masks)), make([]bitfield.Set, len(masks))
	for i, m := range masks {
		blocks[i], sets[i] = Block(m.Group), m.Mask
		out.Items += int64(m.Mask.Count())
	}
	tag, err := tx.Exec(ctx, resetBlocks, req.Run, step, blocks, pgbits.Slice(sets))
	if err != nil {
		return out, fmt.Errorf("reset %d blocks: %w", len(masks), err)
	}
	if tag.RowsAffected() != int64(len(masks)) {
		return out, fmt.Errorf("reset %d blocks: %w", len(masks), errFence)
	}
	return out, rearm(ctx, tx, req, masks, &out)
}

func mayRerun(ctx context.Context, tx pgx.Tx, run RunID, gen *Generation) error {
	var state string
	err := tx.QueryRow(ctx, runState, run).Scan(&state, gen)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("run %s: %w", run, ErrNotFound)
	case err != nil:
		return fmt.Errorf("read run %s: %w", run, err)
	case state == "cancelled":
		return &StateError{run, state, "re-run items of", "start a new run"}
	case state == "loading":
		return &StateError{run, state, "re-run items of", "wait until it has loaded"}
	}
	return nil
}

const (
	ordinalsOfKeys = `
SELECT item_key, ordinal FROM work_queue WHERE run_id = $1 AND item_key = ANY($2)`

	// Errors that count: those of an item's newest part. Found by the partial index on error codes. The newest is asked
	// for item by item in the primary key; as an anti-join, over a run that was never analyzed, it is quadratic.
	ordinalsOfCodes = `
SELECT p.ordinal FROM work_part p
WHERE p.run_id = $1 AND p.step = $2 AND p.error_code = ANY($3) AND p.generation = (
    SELECT max(n.generation) FROM work_part n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)`
)

// selected returns the items that keys or codes name, as masks by block; nil for all that failed.
func selected(ctx context.Context, tx pgx.Tx, run RunID, step Step, sel Selection) (map[Block]*bitfield.Set, error) {
	if sel.Failed {
		return nil, nil
	}
	masks := map[Block]*bitfield.Set{}
	add := func(o Ordinal) {
		block, bit := o.Block()
		if masks[block] == nil {
			masks[block] = &bitfield.Set{}
		}
		masks[block].Add(bit)
	}
	if len(sel.Codes) > 0 {
		rows, err := tx.Query(ctx, ordinalsOfCodes, run, step, sel.Codes)
		if err != nil {
			return nil, fmt.Errorf("find failed items: %w", err)
		}
		var o Ordinal
		_, err = pgx.ForEachRow(rows, []any{&o}, func() error { add(o); return nil })
		if err != nil {
			return nil, fmt.Errorf("find failed items: %w", err)
		}
		return masks, nil
	}
	missing := map[string]bool{}
	for _, k := range sel.Keys {
		missing[k] = true
	}
	rows, err := tx.Query(ctx, ordinalsOfKeys, run, sel.Keys)
	if err != nil {
		return nil, fmt.Errorf("find items by key: %w", err)
	}
	var key string
	var o Ordinal
	_, err = pgx.ForEachRow(rows, []any{&key, &o}, func() error { add(o); delete(missing, key); return nil })
	if err != nil {
		return nil, fmt.Errorf("find items by key: %w", err)
	}
	if len(missing) > 0 {
		unknown := &UnknownKeysError{Run: run}
		for k := range missing {
			unknown.Keys = append(unknown.Keys, k)
		}
		slices.Sort(unknown.Keys)
		return nil, unknown
	}
	return masks, nil
}

// Blocks with final items, locked in order; the caller narrows the bits.
const lockFinalBlocks = `
SELECT block, done, failed FROM work_block
WHERE run_id = $1 AND step = $2 AND ($3::int[] IS NULL OR block = ANY($3))
  AND (failed <> B'0'::bit(8192) OR ($4 AND done <> B'0'::bit(8192)))
ORDER BY block FOR NO KEY UPDATE`

// finalBits locks the blocks and returns the wanted bits among those that are final. Only a selection by key takes
// items that succeeded.
func finalBits(ctx context.Context, tx pgx.Tx, run RunID, step Step, wanted map[Block]*bitfield.Set, sel Selection,
) ([]tracker.Ack, error) {
	var blocks []Block
	if wanted != nil {
		blocks = []Block{}
		for b := range wanted {
			blocks = append(blocks, b)
		}
	}
	byKey := len(sel.Keys) > 0
	rows, err := tx.Query(ctx, lockFinalBlocks, run, step, blocks, byKey)
	if err != nil {
		return nil, fmt.Errorf("lock blocks: %w", err)
	}
	var masks []tracker.Ack
	var block Block
	var done, failed bitfield.Set
	_, err = pgx.ForEachRow(rows, []any{&block, pgbits.Into(&done), pgbits.Into(&failed)}, func() error {
		mask := failed
		if byKey {
			mask = mask.Or(done)
		}
		if wanted != nil {
			mask = mask.And(*wanted[block])
		}
		if !mask.Empty() {
			masks = append(masks, tracker.Ack{Group: int(block), Mask: mask})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock blocks: %w", err)
	}
	return masks, nil
}

// rearm opens the next generation: the tracker first, the run's row last, as the order of locks wants it.
func rearm(ctx context.Context, tx pgx.Tx, req RerunRequest, masks []tracker.Ack, out *Rerun) error {
	if _, err := tracker.Rearm(ctx, tx, uuid.UUID(req.Run), masks); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, rearmRun, req.Run, out.Generation).Scan(&out.Generation)
	if err != nil {
		return fmt.Errorf("open the next generation of run %s: %w", req.Run, err)
	}
	detail := map[string]any{"items": out.Items, "generation": out.Generation, "failed": req.Select.Failed,
		"codes": req.Select.Codes, "keys": len(req.Select.Keys), "chunk": req.Chunk, "in_flight": req.InFlight}
	if err := audit(ctx, tx, req.Actor, "rerun", req.Run, detail); err != nil {
		return err
	}
	return addEvent(ctx, tx, req.Run, out.Generation, EventRerun, map[string]any{"items": out.Items})
}
