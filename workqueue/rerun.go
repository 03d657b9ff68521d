package workqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
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
	Step       string      // empty: several
	Steps      []StepReset // of a run of several steps: those that run items again, and those after them
	Hold       Hold        // the run is held: its items wait until it is resumed or approved
	HoldDetail string
	Requests   []Sent // of steps after, withdrawn as a whole, that may still lie in the work stream
}

// Rerun sets final items of a run going again, under the run's next generation: bits move back to ready, the tracker is
// armed again, and what was recorded stays as history until newer parts take its place. It touches a row for each
// block, whatever the number of items. A run that is held stays so; one that had completed is held no more. In a run of
// several steps it is a [Store.Reset] of what failed, at the step that is named or at all of them. A dry run does all
// of it and takes it back.
func (s *Store) Rerun(ctx context.Context, req RerunRequest) (Rerun, error) {
	if err := req.validate(); err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	var out Rerun
	err := s.redoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		r := &rerun{RerunRequest: &req, redo: redo{tx: tx, run: req.Run, sel: &req.Select, canary: req.Canary}}
		err := r.do(ctx, &s.graphs)
		out = r.out
		return err
	})
	if err != nil {
		return Rerun{}, fmt.Errorf("rerun: %w", err)
	}
	return out, nil
}

func (req *RerunRequest) validate() error {
	if err := req.Select.validate(); err != nil || req.Select.All {
		return cmp.Or(err, errors.New("choose what failed, or keys; to run all items again, reset the step"))
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
	redo

	diff difference
	out  Rerun
}

func (r *rerun) do(ctx context.Context, graphs *graphCache) error {
	if err := r.begin(ctx, graphs); err != nil {
		return err
	}
	step, err := stepNamed(r.steps, r.run, r.Select.Step)
	if err != nil {
		return err
	}
	if err := r.mayRerun(ctx); err != nil {
		return err
	}
	some := r.Select.Step == "" && !r.graph.single() // of any step, what failed there
	r.take.done = r.Select.named() && !some
	r.named = []Step{step.step}
	if some {
		r.named = everyStep(r.steps)
	}
	if err := r.find(ctx); err != nil {
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
	return r.finish(ctx)
}

func everyStep(steps []stepSettings) (all []Step) {
	for i := range steps {
		all = append(all, steps[i].step)
	}
	return all
}

func (r *rerun) mayRerun(ctx context.Context) error {
	open, err := r.may(ctx, "re-run items of")
	if err == nil && r.graph.ordered && r.Canary > 0 {
		err = &StateError{r.run, "one with order_by", "re-run a sample of items of",
			"leave the canary out: its sample would be worked on before what stands in front of it"}
	}
	if err == nil && open && r.Canary > 0 { // its sample would never end: what is added is ready at once
		err = &StateError{r.run, "open", "re-run items of", "seal it first, or leave the canary out"}
	}
	return err
}

func (r *rerun) nothing(some bool) error {
	e := &NothingToRerunError{Run: r.run, Select: r.Select, failed: some}
	if !r.graph.single() && !some {
		e.Why = r.notes()
	}
	return e
}

// set changes the settings of the steps that have items to run again; when there are none, of the one that is named, so
// that what is wrong with the settings is told.
func (r *rerun) set(ctx context.Context, step *stepSettings) error {
	steps := r.redo.named
	if len(steps) == 0 {
		steps = []Step{step.step}
	}
	if len(steps) > 1 && r.Settings.Endpoint != "" {
		return &SettingError{fmt.Sprintf("endpoint %s: items have failed at %d steps, and each has its own; say which step",
			r.Settings.Endpoint, len(steps))}
	}
	r.chunks = map[Step]int{}
	for _, s := range steps {
		st := &r.steps[s]
		var d difference
		if err := st.change(ctx, r.tx, r.run, &r.Settings, &d); err != nil {
			return err
		}
		r.diff.join(&d, st.name, len(steps) > 1)
		chunk, err := chunkOfMoment(ctx, r.tx, st)
		if err != nil {
			return err
		}
		r.chunks[s] = chunk
	}
	return nil
}

// tell sums up what was done.
func (r *rerun) tell() {
	r.out.Items, r.out.Blocks, r.out.Held, r.out.Slices = r.total(), len(r.moved), r.held, r.slices
	r.out.Requests = r.requests
	var steps []string
	for s := range r.sums {
		if r.sums[s].reset > 0 {
			steps = append(steps, r.steps[s].name)
		}
	}
	if len(steps) == 1 {
		r.out.Step = steps[0]
	}
	if !r.graph.single() {
		r.out.Steps = r.told()
	}
}

// finish opens the next generation, and writes down what was done.
func (r *rerun) finish(ctx context.Context) error {
	canary := newCanary{items: r.Canary, auto: r.CanaryAuto}
	run, err := r.rearm(ctx, &canary, &r.diff)
	if err != nil {
		return err
	}
	r.out.Generation, r.out.Hold, r.out.HoldDetail = run.generation, run.hold, run.detail
	detail := map[string]any{"items": r.out.Items, "generation": r.out.Generation, "failed": r.Select.Failed,
		"codes": r.Select.Codes, "groups": r.Select.Groups, "keys": len(r.Select.Keys), "step": r.out.Step}
	r.Select.auditRanges(detail)
	if r.Reason != "" {
		detail["reason"] = plain(r.Reason)
	}
	if canary.sampling {
		detail["canary"], detail["held"] = r.Canary, r.out.Held
	}
	r.diff.add("generation", r.generation, r.out.Generation)
	err = auditChange(ctx, r.tx, action{actor: r.Actor, name: "rerun", run: r.run, detail: detail,
		before: r.diff.before, after: r.diff.after})
	if err != nil {
		return err
	}
	return addEvent(ctx, r.tx, r.run, r.out.Generation, EventRerun,
		map[string]any{"items": r.out.Items, "held": r.out.Held})
}
