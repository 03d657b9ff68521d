package runs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Warnings lists what blocks a running run and what has gone astray in any run.
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
	all := append(append(overdue(run), obstacles...), strays(run)...)
	if run.ParamsError != nil {
		all = append(all, "its parameters are not shown: "+run.ParamsError.Error())
	}
	return all
}

func overdue(run *inspect.RunView) []string {
	if run.State != "running" || run.Open == nil || !run.Open.Overdue {
		return []string{}
	}
	return []string{fmt.Sprintf("it is open, and should have been sealed by %s; close it to new items with: "+
		"tranche run seal %s", run.Open.SealDeadline.UTC().Format(time.RFC3339), run.ID)}
}

func strays(run *inspect.RunView) []string {
	var strays []string
	if run.Quarantined > 0 {
		strays = append(strays, fmt.Sprintf("%d messages about it are in quarantine; see: %s --run %s",
			run.Quarantined, kernel.SeeQuarantine, run.ID))
	}
	if run.DeadLetters > 0 {
		strays = append(strays, fmt.Sprintf("%d of its dead letters wait for an operator; see: %s", run.DeadLetters,
			kernel.SeeLetters))
	}
	if run.GivenUp > 0 {
		strays = append(strays, fmt.Sprintf("%d requests of it were given up, and their items went on in smaller ones; "+
			"see: %s", run.GivenUp, kernel.SeeLetters))
	}
	return strays
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
	names := []string{}
	warnings := []string{}
	for i := range run.Steps {
		st := &run.Steps[i]
		switch {
		case st.Gate != nil && st.Gate.State == controlstore.GateWaiting:
			warnings = append(warnings, gateWarning(st.Gate))
		case st.Settled() >= st.Items:
		case st.Kind == workqueue.KindLocal:
			warnings = append(warnings, s.unknownLocal(ctx, st)...)
		case IsEndpoint(st.Endpoint):
			names = append(names, st.Endpoint)
		}
	}
	return append(warnings, s.Unheard(ctx, names)...)
}

func gateWarning(g *controlstore.Gate) string {
	but := ""
	if g.Approvers == workqueue.ApproveOther {
		but = " by a user who took no part in the run"
	}
	return fmt.Sprintf("step %s waits for approval%s; look first with: tranche run approve %s --step %s "+
		"--dry-run", g.Name, but, g.Run, g.Name)
}

func (s *Routes) unknownLocal(ctx context.Context, st *inspect.StepView) []string {
	nodes, err := inspect.New(s.Store).NodesFor(ctx, st.Endpoint)
	if err != nil || len(nodes) > 0 {
		return nil // unknown is not worth a warning
	}
	_, function := workqueue.TargetKind(st.Endpoint)
	return []string{fmt.Sprintf("no node has local function %s of step %s; start the program that has it",
		function, st.Name)}
}

func heldWarning(run *inspect.RunView) string {
	why := "it is paused"
	if run.Hold.Detail != "" {
		why += ": " + run.Hold.Detail
	}
	if run.Hold.Kind == controlstore.HoldCanary {
		return fmt.Sprintf("%s; approve the rest with: tranche run approve %s", why, run.ID)
	}
	return fmt.Sprintf("%s; resume it with: tranche run resume %s", why, run.ID)
}

const noNATSWarning = "NATS does not answer, so nothing is sent to services at the moment"

// Unheard warns of endpoints that no service listens on.
func (s *Routes) Unheard(ctx context.Context, names []string) []string {
	warnings := []string{}
	if len(names) > 0 && !s.NC.IsConnected() {
		return append(warnings, noNATSWarning)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return s.pulled(ctx, name) })
	if len(names) == 0 {
		return warnings
	}
	listeners, err := wire.Discover(ctx, s.NC, kernel.ListenWait)
	if err != nil {
		return append(warnings, noNATSWarning)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		heard := slices.ContainsFunc(listeners, func(l wire.Listener) bool { return l.Endpoint == name })
		if !heard {
			meant := ""
			if near := wire.Nearest(name, listeners); near != "" {
				meant = " (did you mean " + near + "?)"
			}
			warnings = append(warnings, "no service listens on endpoint "+name+meant+"; the run goes on as soon as one does: "+
				"start it, or compare its name with those of: tranche endpoints")
		}
	}
	return warnings
}

// pulled reports whether a service is pulling requests for an endpoint now. It is much faster than discovery, but
// misses a service between two pulls.
func (s *Routes) pulled(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, kernel.ListenWait)
	defer cancel()
	js, err := jetstream.New(s.NC)
	if err != nil {
		return false
	}
	consumer, err := js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(name))
	if err != nil {
		return false // discovery will tell
	}
	info := consumer.CachedInfo() // just fetched
	return info.NumWaiting > 0    // unacknowledged requests may be held by a dead service
}
