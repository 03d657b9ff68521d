package workqueue

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// The row is locked, and what becomes of its hold and its canary is computed from it.
const rearmRun = `
UPDATE batchrun
SET state = 'running', generation = generation + 1, done = NULL, failed = NULL, finished_at = NULL,
    started_at = clock_timestamp(), hold = nullif($3, ''), hold_detail = $4, held_at = $5, held_by = $6,
    canary = coalesce($7, canary), canary_auto = coalesce($8, canary_auto), canary_state = nullif($9, ''),
    canary_generation = CASE WHEN $7 IS NULL THEN canary_generation ELSE generation + 1 END
WHERE id = $1 AND state IN ('running', 'completed') AND generation = $2
RETURNING generation`

// rearm opens the next generation: the tracker first, the run's row last, as the order of locks wants it.
func (r *rerun) rearm(ctx context.Context) error {
	masks := make([]tracker.Ack, len(r.found))
	for i, b := range r.found {
		masks[i] = tracker.Ack{Group: int(b.block), Mask: b.mask}
	}
	if _, err := tracker.Rearm(ctx, r.tx, uuid.UUID(r.Run), masks); err != nil {
		return err
	}
	runs, err := lockHolds(ctx, r.tx, &Control{Run: r.Run}, "")
	if err != nil {
		return err
	}
	run := runs[0]
	before := r.out.Generation
	hold := run.hold
	sampling := run.rerun(r.Canary > 0, r.out.Held > 0)
	r.diff.add("hold", string(hold), string(run.hold))
	var canary *int
	var auto *bool
	if sampling {
		canary, auto = &r.Canary, &r.CanaryAuto
	}
	err = r.tx.QueryRow(ctx, rearmRun, r.Run, before, string(run.hold), run.detail, run.at, run.by, canary, auto,
		run.canary).Scan(&r.out.Generation)
	if err != nil {
		return fmt.Errorf("open the next generation of run %s: %w", r.Run, err)
	}
	r.out.Hold, r.out.HoldDetail = run.hold, run.detail
	return r.note(ctx, before, sampling)
}

// rerun changes what a re-run changes of a hold and a canary, and reports whether a sample begins. A run that had
// completed is held no more. A new canary takes the place of one that waits, and of its hold; what that one held back
// stays so until the new one has ended.
func (r *runHold) rerun(canary, held bool) (sampling bool) {
	inCanary := r.canary == "sampling" || r.canary == "waiting"
	if r.state == "completed" && inCanary { // it ended with its sample
		r.canary, inCanary = "passed", false
	}
	if sampling = held || canary && inCanary; sampling {
		r.canary = "sampling"
	}
	if r.state == "completed" || r.hold == HoldCanary && sampling {
		r.hold, r.detail, r.at, r.by = "", "", nil, ""
	}
	return sampling
}

// note writes down what was done.
func (r *rerun) note(ctx context.Context, before Generation, sampling bool) error {
	detail := map[string]any{"items": r.out.Items, "generation": r.out.Generation, "failed": r.Select.Failed,
		"codes": r.Select.Codes, "groups": r.Select.Groups, "keys": len(r.Select.Keys), "step": r.step.name}
	if r.Reason != "" {
		detail["reason"] = plain(r.Reason)
	}
	if sampling {
		detail["canary"], detail["held"] = r.Canary, r.out.Held
	}
	r.diff.add("generation", before, r.out.Generation)
	err := auditChange(ctx, r.tx, action{actor: r.Actor, name: "rerun", run: r.Run, detail: detail,
		before: r.diff.before, after: r.diff.after})
	if err != nil {
		return err
	}
	return addEvent(ctx, r.tx, r.Run, r.out.Generation, EventRerun,
		map[string]any{"items": r.out.Items, "held": r.out.Held})
}
