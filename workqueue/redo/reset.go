package redo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ResetRequest selects the items whose part of a step is discarded.
type ResetRequest struct {
	Run     workqueue.RunID
	Select  Selection // Step is required if the run has several; all items, by key, or by the code of their failure
	Cascade bool      // also recompute all results of later steps
	DryRun  bool      // change nothing, and return what would be done
	Reason  string
	Actor   string
}

// Reset is what a reset did or would do.
type Reset struct {
	Step       string               `json:"step"`
	Items      int64                `json:"items"`
	Blocks     int                  `json:"blocks"`
	Examples   []string             `json:"examples" nullable:"false" doc:"the first ten keys"`
	Generation workqueue.Generation `json:"generation"`
	Steps      []StepReset          `json:"steps" doc:"the one that was reset, and those after it"`
	Notes      []string             `json:"notes" doc:"what was selected and left unchanged, and why"`

	Hold       control.Hold     `json:"-"` // the run is held: nothing is redone until it is resumed or approved
	HoldDetail string           `json:"-"`
	Requests   []workqueue.Sent `json:"-"` // withdrawn entirely, that may still be in the work stream
}

// StepReset is what a reset does to one step, in items.
type StepReset struct {
	Step      string `json:"step"`
	Named     bool   `json:"named" doc:"the step that was reset; the rest depend on it"`
	Reset     int64  `json:"reset" doc:"to be rerun here, of the step that was reset"`
	Ready     int64  `json:"ready" doc:"of those, the ones that need not wait for a step before"`
	Withdrawn int64  `json:"withdrawn" doc:"requests in flight, whose late answers are ignored"`
	Redone    int64  `json:"redone" doc:"to be redone in any case, for the cascade"`
	Kept      int64  `json:"kept" doc:"kept, and redone only where a part changes that the step sees"`
	Waiting   int64  `json:"waiting" doc:"not done yet, and waiting for the parts"`
	LeftOut   int64  `json:"left_out" doc:"left out still, because another step failed for them"`
}

// Reset discards one step's parts of some items and recomputes them under the run's next generation: outcomes, and
// requests in flight, whose late answers are fenced off. Recorded parts stay as history. Later steps wait for the
// new parts: pending work does not start before, and results are kept and recomputed only if a part that they see
// changed, unless the reset cascades. Items skipped there because of a failure here return.
//
// It writes a row for each block and step, however many items. The run may be in progress, held or completed.
func (s Store) Reset(ctx context.Context, req ResetRequest) (Reset, error) {
	if err := req.validate(); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	if err := s.see(ctx, req.Run, &req.Select); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	r := &reset{}
	err := s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		failed := req.Select.byError() && req.Select.At == ""
		r = &reset{ResetRequest: &req, redo: redo{tx: tx, run: req.Run, sel: &req.Select, again: req.Cascade,
			take: scope{done: !failed, live: !failed && !req.Select.ofParts()}}}
		return r.do(ctx, s.db)
	})
	return r.out, pg.Wrap(err, "reset")
}

func (req *ResetRequest) validate() error {
	if req.Select.Failed {
		return errors.New("choose all items, or keys, or error codes; what failed is run again by a rerun")
	}
	return cmp.Or(control.CheckReason(req.Reason), req.Select.validate())
}

type reset struct {
	*ResetRequest
	redo

	out Reset
}

func (r *reset) do(ctx context.Context, db *database.DB) error {
	const op = "reset items of"
	if err := r.begin(ctx, db, op); err != nil {
		return err
	}
	open, err := r.may(ctx, op)
	if err != nil {
		return err
	}
	if open {
		return &workqueue.StateError{Run: r.run, State: "open", Op: op,
			Fix: "seal it first: tranche run seal " + r.run.String()}
	}
	step, err := control.StepNamed(r.steps, r.run, r.Select.Step)
	if err != nil {
		return err
	}
	if r.Select.Step == "" && len(r.steps) > 1 {
		return workqueue.BadSetting("run %s has several steps; say which one to reset: it has %s", r.run,
			strings.Join(control.StepNames(r.steps), ", "))
	}
	r.out.Step = step.Name
	r.named = []workqueue.Step{step.Step}
	if err := r.find(ctx); err != nil {
		return err
	}
	if err := r.hold(ctx); err != nil {
		return err
	}
	if err := r.move(ctx); err != nil {
		return err
	}
	if len(r.moved) == 0 {
		return r.nothing()
	}
	r.tell()
	if r.out.Examples, err = r.examples(ctx, r.taken()); err != nil {
		return err
	}
	return r.finish(ctx)
}

func (r *reset) tell() {
	r.out.Items, r.out.Blocks = r.total(), len(r.moved)
	r.out.Requests, r.out.Notes = r.requests, r.notes()
	r.out.Steps = r.told()
}

func (r *redo) told() (all []StepReset) {
	named := map[workqueue.Step]bool{}
	for _, s := range r.named {
		named[s] = true
	}
	for s := range r.sums {
		sum := &r.sums[s]
		one := StepReset{r.steps[s].Name, named[workqueue.Step(s)], sum.reset, sum.ready, sum.withdrawn, sum.redone, sum.kept,
			sum.waiting, sum.leftOut}
		if one.Named || sum.redone+sum.kept+sum.waiting+sum.leftOut > 0 {
			all = append(all, one)
		}
	}
	return all
}

func (r *reset) finish(ctx context.Context) error {
	var d ledger.Difference
	run, err := r.rearm(ctx, nil, &d)
	if err != nil {
		return err
	}
	r.out.Generation, r.out.Hold, r.out.HoldDetail = run.Generation, run.Hold, run.Detail
	detail := map[string]any{"items": r.out.Items, "generation": run.Generation, "step": r.out.Step,
		"cascade": r.Cascade, "all": r.Select.All, "keys": len(r.Select.Keys), "codes": r.Select.Codes,
		"groups": r.Select.Groups, "failed_at": r.Select.At}
	r.Select.audit(detail)
	ledger.AddReason(detail, r.Reason)
	var withdrawn, redone, kept int64
	for i := range r.out.Steps {
		withdrawn += r.out.Steps[i].Withdrawn
		redone += r.out.Steps[i].Redone
		kept += r.out.Steps[i].Kept
	}
	detail["withdrawn"], detail["redone"], detail["kept"] = withdrawn, redone, kept
	d.Add("generation", r.generation, run.Generation)
	err = ledger.AuditChange(ctx, r.tx, ledger.Action{Actor: r.Actor, Name: "reset", Run: r.run, Detail: detail,
		Before: d.Before,
		After:  d.After})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, r.tx, r.run, run.Generation, workqueue.EventReset,
		map[string]any{"items": r.out.Items, "step": r.out.Step, "cascade": r.Cascade, "hold": run.Hold})
}
