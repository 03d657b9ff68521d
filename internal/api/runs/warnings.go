package runs

import (
	"context"
	"slices"
	"time"

	"github.com/tranchehq/tranche/internal/api/apicore"
	watch "github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Warnings lists what blocks a running run and what is left over in any run.
func (s *Routes) Warnings(ctx context.Context, run *inspect.RunView) []string {
	return warnings(run, s.obstacles(ctx, run))
}

// warningsOf returns the warnings of a changed run. Errors are ignored: the change is done and warnings are extra.
func (s changes) warningsOf(ctx context.Context, id workqueue.RunID) []string {
	run, err := inspect.New(s.Store).Run(ctx, id)
	if err != nil {
		return []string{}
	}
	return s.Warnings(ctx, run)
}

// late warns that a run will miss its done_by. Errors are ignored, as above.
func late(ctx context.Context, db *database.DB, id workqueue.RunID) []string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the change is done, and its caller waits
	defer cancel()
	text, err := inspect.New(db).Lateness(ctx, id)
	if err != nil || text == "" {
		return nil
	}
	return []string{text + "; see: tranche run show " + id.String()}
}

// warnings are never nil: the page counts them.
func warnings(run *inspect.RunView, obstacles []string) []string {
	all := []string{}
	if run.State == "running" && run.Open != nil && run.Open.Overdue {
		all = append(all, health.RunOverdue.Warn(run.ID, "", "", health.Row{"deadline": *run.Open.SealDeadline}))
	}
	if run.ParamsError != nil {
		all = append(all, "its parameters are not shown: "+run.ParamsError.Error())
	}
	return append(append(all, obstacles...), health.Leftovers(run.ID, run.Quarantined, run.DeadLetters, run.GivenUp)...)
}

func (s *Routes) obstacles(ctx context.Context, run *inspect.RunView) []string {
	if run.Hold != nil && run.State == "paused" {
		return []string{heldWarning(run)}
	}
	if run.State != "running" {
		return []string{}
	}
	if short := s.Short(); len(short) > 0 {
		return short
	}
	specs, warnings := []workqueue.StepSpec{}, []string{}
	for i := range run.Steps {
		st := &run.Steps[i]
		switch {
		case st.Gate != nil && st.Gate.State == controlstore.GateWaiting:
			warnings = append(warnings, health.RunGate.Warn(run.ID, st.Gate.Name, "",
				health.Row{"other": st.Gate.Approvers == workqueue.ApproveOther}))
		case st.Settled() >= st.Items:
		case st.Kind == workqueue.KindLocal:
			warnings = append(warnings, s.unknownLocal(ctx, st)...)
		case IsEndpoint(st.Endpoint):
			specs = append(specs, workqueue.StepSpec{Kind: st.Kind, Endpoint: st.Endpoint})
		}
	}
	return append(warnings, s.Unheard(ctx, servicesOf(ctx, s.Store, specs))...)
}

func (s *Routes) unknownLocal(ctx context.Context, st *inspect.StepView) []string {
	nodes, err := inspect.New(s.Store).NodesFor(ctx, st.Endpoint)
	if err != nil || len(nodes) > 0 {
		return nil // unknown is not worth a warning
	}
	_, function := workqueue.TargetKind(st.Endpoint)
	row := health.Row{"function": function, "step": st.Name}
	return []string{health.ReasonNoLocal.Warn(workqueue.RunID{}, st.Name, st.Endpoint, row)}
}

func heldWarning(run *inspect.RunView) string {
	row := health.Row{"detail": run.Hold.Detail, "failed": run.Failed > 0}
	if run.Hold.By != workqueue.Engine {
		row["by"] = run.Hold.By
	}
	return health.HeldBy(run.Hold.Kind).Warn(run.ID, "", "", row)
}

const noNATSWarning = "NATS does not answer, so nothing is sent to services at the moment"

// Unheard warns of endpoints that no service listens on.
func (s *Routes) Unheard(ctx context.Context, names []string) []string {
	if len(names) == 0 {
		return []string{}
	}
	if !s.NC.IsConnected() { // a request would wait for the connection
		return []string{noNATSWarning}
	}
	var all []health.WorkingEndpoint
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		all = append(all, health.WorkingEndpoint{Endpoint: name})
	}
	ctx, cancel := context.WithTimeout(ctx, 3*apicore.ListenWait)
	defer cancel()
	none, err := watch.WithoutListeners(ctx, s.NC, all)
	if err != nil {
		return []string{noNATSWarning}
	}
	warnings := []string{}
	for _, e := range none {
		warnings = append(warnings, health.NoListeners.Warn(workqueue.RunID{}, "", e.Endpoint, health.Row{"like": e.Like}))
	}
	return warnings
}
