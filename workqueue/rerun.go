package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// RerunRequest says what to run again, and how.
type RerunRequest struct {
	Run        RunID
	Select     Selection
	Chunk      int        // new chunk of the step; 0 keeps it
	InFlight   int        // new in-flight limit; 0 keeps it
	Settings   StepChange // other new settings of the step; an Endpoint is where its items go from now on
	Canary     int        // items of a spread sample that run before the others; 0: all run at once
	CanaryAuto bool       // let the others go when the sample does well
	DryRun     bool       // change nothing, and say what would be done
	Reason     string
	Actor      string
}

// Rerun is what a re-run set going, or would set going.
type Rerun struct {
	Items      int64
	Held       int64 // of those, the ones that wait for the canary
	Blocks     int
	Slices     int64 // into which the items are cut by the chunk of the moment; more when payloads are large
	Generation Generation
	Step       string
	Hold       Hold // the run is held: its items wait until it is resumed or approved
	HoldDetail string
}

// errDryRun takes back what a dry run has done.
var errDryRun = errors.New("this was a dry run")

// Rerun sets final items of a run going again, under the run's next generation: bits move back to ready, the tracker is
// armed again, and what was recorded stays as history until newer parts take its place. It touches a row for each
// block, whatever the number of items. A run that is held stays so; one that had completed is held no more. A dry run
// does all of it and takes it back.
func (s *Store) Rerun(ctx context.Context, req RerunRequest) (Rerun, error) {
	if err := req.validate(); err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	var out Rerun
	err := s.inTxWithin(ctx, operatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		r := &rerun{RerunRequest: &req, tx: tx}
		err := r.run(ctx)
		out = r.out
		if err == nil && req.DryRun {
			err = errDryRun
		}
		return err
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	return out, nil
}

func (req *RerunRequest) validate() error {
	if err := req.Select.validate(); err != nil {
		return err
	}
	if req.Canary < 0 {
		return &SettingError{fmt.Sprintf("canary is %d; give a number of items, or 0 for none", req.Canary)}
	}
	if req.Canary == 0 && req.CanaryAuto {
		return &SettingError{"canary_auto needs a canary: give the number of its items"}
	}
	if req.Chunk != 0 {
		req.Settings.Chunk = &req.Chunk
	}
	if req.InFlight != 0 {
		req.Settings.InFlight = &req.InFlight
	}
	return req.Settings.validate()
}

// rerun is one under way.
type rerun struct {
	*RerunRequest

	tx    pgx.Tx
	step  *stepSettings
	diff  difference
	found []*again
	out   Rerun
}

// resetBlocks moves bits from done and failed back to ready, or to what a canary holds back.
const resetBlocks = `
UPDATE work_block b
SET ready = b.ready | (u.mask & ~u.held), done = b.done & ~u.mask, failed = b.failed & ~u.mask,
    held = nullif(coalesce(b.held, B'0'::bit(8192)) | u.held, B'0'::bit(8192))
FROM unnest($3::int[], $4::bit(8192)[], $5::bit(8192)[]) AS u (block, mask, held)
WHERE b.run_id = $1 AND b.step = $2 AND b.block = u.block AND ((b.done | b.failed) & u.mask) = u.mask`

func (r *rerun) run(ctx context.Context) (err error) {
	if r.step, err = lockStepNamed(ctx, r.tx, r.Run, r.Select.Step); err != nil {
		return err
	}
	r.out.Step = r.step.name
	if err := r.mayRerun(ctx); err != nil {
		return err
	}
	if err := r.step.change(ctx, r.tx, r.Run, &r.Settings, &r.diff); err != nil {
		return err
	}
	wanted, err := r.Select.find(ctx, r.tx, r.Run, r.step.step)
	if err != nil {
		return err
	}
	if r.found, err = r.Select.final(ctx, r.tx, r.Run, r.step.step, wanted); err != nil {
		return err
	}
	if len(r.found) == 0 {
		return &NothingToRerunError{r.Run, r.Select}
	}
	if err := r.count(ctx); err != nil {
		return err
	}
	if err := r.reset(ctx); err != nil {
		return err
	}
	return r.rearm(ctx)
}

const runState = `SELECT state, generation FROM batchrun WHERE id = $1`

func (r *rerun) mayRerun(ctx context.Context) error {
	var state string
	err := r.tx.QueryRow(ctx, runState, r.Run).Scan(&state, &r.out.Generation)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("run %s: %w", r.Run, ErrNotFound)
	case err != nil:
		return fmt.Errorf("read run %s: %w", r.Run, err)
	case state == "cancelled":
		return &StateError{r.Run, state, "re-run items of", "start a new run"}
	case state == "loading":
		return &StateError{r.Run, state, "re-run items of", "wait until it has loaded"}
	}
	return nil
}

// count adds up what was found, and holds back what is not of the canary's sample.
func (r *rerun) count(ctx context.Context) error {
	for _, b := range r.found {
		r.out.Items += int64(b.mask.Count())
	}
	r.out.Blocks = len(r.found)
	if r.Canary > 0 {
		r.out.Held = holdBack(r.found, r.Canary, r.out.Items)
	}
	chunk, err := chunkOfMoment(ctx, r.tx, r.step)
	if err != nil {
		return err
	}
	for _, b := range r.found {
		size := chunk
		if r.step.chunkBytes > 0 {
			size = min(size, max(1, r.step.chunkBytes/int(b.bytes/int64(b.size)+envelope)))
		}
		sample, held := b.mask.Count()-b.held.Count(), b.held.Count()
		r.out.Slices += int64((sample+size-1)/size + (held+size-1)/size)
	}
	return nil
}

// envelope is what an item takes in a request beside its payload, roughly.
const envelope = 64

// holdBack leaves a spread sample of about n items and holds back the others of total; it returns how many those are.
func holdBack(found []*again, n int, total int64) (held int64) {
	sample, i := newSpread(n, total), int64(0)
	for _, b := range found {
		for bit := range b.mask.All() {
			if !sample.has(i) {
				b.held.Add(bit)
				held++
			}
			i++
		}
	}
	return held
}

func (r *rerun) reset(ctx context.Context) error {
	blocks := make([]Block, len(r.found))
	masks, held := make([]bitfield.Set, len(r.found)), make([]bitfield.Set, len(r.found))
	for i, b := range r.found {
		blocks[i], masks[i], held[i] = b.block, b.mask, b.held
	}
	tag, err := r.tx.Exec(ctx, resetBlocks, r.Run, r.step.step, blocks, pgbits.Slice(masks), pgbits.Slice(held))
	if err == nil && tag.RowsAffected() != int64(len(blocks)) {
		err = errFence
	}
	if err != nil {
		return fmt.Errorf("reset %d blocks: %w", len(blocks), err)
	}
	return nil
}
