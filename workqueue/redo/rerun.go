package redo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// RerunRequest says what to rerun, and how.
type RerunRequest struct {
	Run               workqueue.RunID
	Select            Selection
	Settings          control.StepChange // new settings of the step; an Endpoint applies to its new requests
	Canary            int                // size of a spread sample that runs before the rest; 0: none
	CanaryAutoApprove bool               // release the rest if the sample does well
	DryRun            bool               // change nothing, and return what would be done
	Reason            string
	Actor             string
}

// Rerun is what a rerun started, or would start.
type Rerun struct {
	Step       string               `json:"step" doc:"empty: several"`
	Items      int64                `json:"items"`
	Held       int64                `json:"held" doc:"of the items, those that wait for the canary"`
	Slices     int64                `json:"slices" doc:"by the chunk of the moment; more for large payloads"`
	Blocks     int                  `json:"blocks"`
	Examples   []string             `json:"examples" nullable:"false" doc:"the first ten keys"`
	Generation workqueue.Generation `json:"generation"`
	Steps      []StepReset          `json:"steps,omitempty" doc:"of a run of several steps, the effect on each"`

	Hold       control.Hold     `json:"-"` // the run is held: its items wait until it is resumed or approved
	HoldDetail string           `json:"-"`
	Requests   []workqueue.Sent `json:"-"` // of later steps, withdrawn entirely, that may still be in the work stream
}

// Rerun makes final items of a run ready again, under its next generation: bits move to ready, the tracker is
// rearmed, and recorded parts stay as history until newer ones replace them. It writes a row for each block, however
// many items. A held run stays held, except a completed one. In a run of several steps it is a [Store.Reset] of
// failures at the named step, or at all steps. A dry run does everything and rolls back.
func (s Store) Rerun(ctx context.Context, req RerunRequest) (Rerun, error) {
	if err := req.validate(); err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	if err := s.see(ctx, req.Run, &req.Select); err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	r := &rerun{}
	err := s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		req.Select.unaccepted = true
		r = &rerun{RerunRequest: &req, redo: redo{tx: tx, run: req.Run, sel: &req.Select, canary: req.Canary}}
		return r.do(ctx, s.db)
	})
	return r.out, pg.Wrap(err, "rerun")
}

func (req *RerunRequest) validate() error {
	if err := req.Select.validate(); err != nil || req.Select.All {
		return cmp.Or(err, errors.New("choose what failed, or keys; to run all items again, reset the step"))
	}
	if req.Canary < 0 {
		return workqueue.BadSetting("canary is %d; give a number of items, or 0 for none", req.Canary)
	}
	if req.Canary == 0 && req.CanaryAutoApprove {
		return workqueue.BadSetting("canary_auto_approve needs a canary: give the number of its items")
	}
	return req.Settings.Validate()
}

type rerun struct {
	*RerunRequest
	redo

	diff ledger.Difference
	out  Rerun
}

func (r *rerun) do(ctx context.Context, db *database.DB) error {
	const op = "rerun items of"
	if err := r.begin(ctx, db, op); err != nil {
		return err
	}
	step, err := control.StepNamed(r.steps, r.run, r.Select.Step)
	if err != nil {
		return err
	}
	if err := r.mayRerun(ctx, op); err != nil {
		return err
	}
	some := r.Select.Step == "" && !r.graph.Single() // of any step, what failed there
	if err := r.choose(ctx, step.Step, some); err != nil {
		return err
	}
	if err := r.set(ctx, step); err != nil {
		return err
	}
	if err := r.hold(ctx); err != nil {
		return err
	}
	if err := r.move(ctx); err != nil {
		return err
	}
	if len(r.moved) == 0 {
		return r.nothing(some)
	}
	r.tell()
	if r.out.Examples, err = r.examples(ctx, r.taken()); err != nil {
		return err
	}
	return r.finish(ctx)
}

func (r *rerun) choose(ctx context.Context, step workqueue.Step, some bool) error {
	named := r.Select.named() && !some && (r.Select.Step != "" || !r.Select.alone())
	r.take.done = named || r.Select.ofParts() && !r.Select.Failed || r.Select.At != ""
	r.named = []workqueue.Step{step}
	if some {
		r.named = r.graph.Numbers()
	}
	return r.find(ctx)
}

func (r *rerun) mayRerun(ctx context.Context, op string) error {
	open, err := r.may(ctx, op)
	if err == nil && r.graph.Ordered && r.Canary > 0 {
		err = &workqueue.StateError{Run: r.run, State: "one with order_by", Op: "rerun a sample of items of",
			Fix: "leave the canary out: its sample would be processed before the items ahead of it"}
	}
	if err == nil && open && r.Canary > 0 { // a sample would never end: added items are ready immediately
		err = &workqueue.StateError{Run: r.run, State: "open", Op: "rerun items of",
			Fix: "seal it first, or leave the canary out"}
	}
	return err
}

func (r *rerun) invalid() bool {
	return slices.ContainsFunc(r.sums, func(sum stepSum) bool { return sum.invalid > 0 })
}

// nothing reports that no selected item has a final outcome; with some, of several steps only failures were searched.
func (r *rerun) nothing(some bool) error {
	var why []string // why the items of a named step cannot, where known
	if !r.graph.Single() && !some || r.invalid() {
		why = r.notes()
	}
	what, hint := "no item of it has failed, or all that did are accepted", ""
	switch sel := &r.Select; {
	case !sel.empty():
		what, hint = sel.unmatched(why, r.run)
	case len(why) > 0:
		what = strings.Join(why, ", and ")
	case sel.named() && some:
		what = fmt.Sprintf("the items named have failed at none of its steps; to redo them anyway: "+
			"tranche run reset %s --step STEP --key KEY", r.run)
	case sel.named():
		what = "the items named are all in progress still"
	case len(sel.Codes) > 0:
		what = "no item of it failed with code " + strings.Join(sel.Codes, " or ") + sel.where()
	case len(sel.Groups) > 0:
		what = fmt.Sprintf("no item of it failed with a message of group %s; see: tranche run errors %s",
			strings.Join(sel.Groups, " or "), r.run)
	}
	if len(r.Select.Ranges) > 0 && !r.Select.named() && len(why) == 0 {
		what += ", in these ranges"
	}
	return workqueue.Nothing("rerun in run %s: %s%s", r.run, what, hint)
}

// unmatched says what evidence did not match, with a hint.
func (sel *Selection) unmatched(why []string, run workqueue.RunID) (what, hint string) {
	what = "the evidence matches nothing that could be rerun"
	if !sel.ofParts() && sel.alone() && sel.Step == "" {
		what = "no item that the evidence matches has failed, or all that did are accepted; to rerun done items, too, say " +
			"the step or the state done"
	}
	if sel.Service != "" {
		what += fmt.Sprintf(" (service %.80q)", sel.Service)
		hint = fmt.Sprintf("; who made an item's parts: tranche run item %s KEY", run)
	}
	if len(why) > 0 {
		what += ": " + strings.Join(why, ", and ")
	}
	return what, hint
}

// set changes the settings of the steps with items to rerun, or else of the named one, to report errors.
func (r *rerun) set(ctx context.Context, step *control.StepSettings) error {
	steps := r.redo.named
	if len(steps) == 0 {
		steps = []workqueue.Step{step.Step}
	}
	if len(steps) > 1 && r.Settings.Endpoint != "" {
		return workqueue.BadSetting("endpoint %s: items have failed at %d steps, and each has its own; say which step",
			r.Settings.Endpoint, len(steps))
	}
	r.chunks = map[workqueue.Step]int{}
	for _, s := range steps {
		st := &r.steps[s]
		var d ledger.Difference
		if err := st.Change(ctx, r.tx, r.run, &r.Settings, &d); err != nil {
			return err
		}
		r.diff.Join(&d, st.Name, len(steps) > 1)
		chunk, err := control.ChunkOfMoment(ctx, r.tx, st)
		if err != nil {
			return err
		}
		r.chunks[s] = chunk
	}
	return nil
}

func (r *rerun) tell() {
	r.out.Items, r.out.Blocks, r.out.Held, r.out.Slices = r.total(), len(r.moved), r.held, r.slices
	r.out.Requests = r.requests
	var steps []string
	for s := range r.sums {
		if r.sums[s].reset > 0 {
			steps = append(steps, r.steps[s].Name)
		}
	}
	if len(steps) == 1 {
		r.out.Step = steps[0]
	}
	if !r.graph.Single() {
		r.out.Steps = r.told()
	}
}

func (r *rerun) finish(ctx context.Context) error {
	canary := newCanary{items: r.Canary, auto: r.CanaryAutoApprove}
	run, err := r.rearm(ctx, &canary, &r.diff)
	if err != nil {
		return err
	}
	r.out.Generation, r.out.Hold, r.out.HoldDetail = run.Generation, run.Hold, run.Detail
	detail := map[string]any{"items": r.out.Items, "generation": r.out.Generation, "failed": r.Select.Failed,
		"codes": r.Select.Codes, "groups": r.Select.Groups, "keys": len(r.Select.Keys), "step": r.out.Step,
		"failed_at": r.Select.At}
	r.Select.audit(detail)
	ledger.AddReason(detail, r.Reason)
	if canary.sampling {
		detail["canary"], detail["held"] = r.Canary, r.out.Held
	}
	r.diff.Add("generation", r.generation, r.out.Generation)
	err = ledger.AuditChange(ctx, r.tx, ledger.Action{Actor: r.Actor, Name: "rerun", Run: r.run, Detail: detail,
		Before: r.diff.Before, After: r.diff.After})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, r.tx, r.run, r.out.Generation, workqueue.EventRerun,
		map[string]any{"items": r.out.Items, "held": r.out.Held, "hold": run.Hold})
}
