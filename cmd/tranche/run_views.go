package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type runList struct {
	Limit    int      `default:"20" help:"How many." placeholder:"N"`
	Search   string   `help:"Only runs with these words in their name, plan, source or who started them, or with such a piece of an id." placeholder:"WORDS"`
	State    []string `enum:"loading,running,paused,completed,cancelled" help:"Only runs in this state; may stand more than once." placeholder:"STATE"`
	Plan     string   `help:"Only runs of this plan, NAME or NAME@VERSION." placeholder:"PLAN"`
	Endpoint string   `help:"Only runs with a step that asks this endpoint." placeholder:"NAME"`
	Since    pastTime `help:"Only runs that were made since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
}

// Validate is called by kong.
func (r *runList) Validate() error {
	if r.Limit < 1 || r.Limit > inspect.MaxRuns {
		return fmt.Errorf("--limit is %d; it must lie between 1 and %d", r.Limit, inspect.MaxRuns)
	}
	return nil
}

// filtered reports whether runs are left out.
func (r *runList) filtered() bool {
	return r.Search+r.Plan+r.Endpoint != "" || len(r.State) > 0 || !r.Since.IsZero()
}

// Run lists runs.
func (r *runList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	asked := client.ListRunsParams{Limit: r.Limit, Q: r.Search, State: r.State, Plan: r.Plan, Endpoint: r.Endpoint,
		Since: r.Since.Time}
	list, err := cl.ListRuns(ctx, asked, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	if len(list.Runs) == 0 && r.filtered() {
		return term.printf("no run fits; all are in: tranche run list\n")
	}
	if len(list.Runs) == 0 {
		return term.printf("no runs yet; start one with: tranche run start --endpoint NAME --items FILE\n")
	}
	t := table{right: map[int]bool{3: true, 4: true, 5: true, 6: true}}
	t.row("RUN", "NAME", "STATE", "ITEMS", "DONE", "FAILED", "", "STARTED")
	var stand []string
	for i := range list.Runs {
		run := &list.Runs[i]
		name := run.Name
		if name == "" {
			name = "(" + run.Plan + ")"
		}
		t.row(shortID(run.ID), short(inert(name), 20), run.State+openText(run.Open), count(run.Items),
			count(run.Done), count(run.Failed), percent(run.Progress), moment(run.CreatedAt)[5:16])
		if run.Stands != nil {
			stand = append(stand, fmt.Sprintf("%s: %s (since %s)", shortID(run.ID), inert(run.Stands.Text),
				moment(run.Stands.Since)))
		}
	}
	text := t.String()
	if len(stand) > 0 {
		text += "\nThese stand:\n" + strings.Join(stand, "\n") + "\n"
	}
	return term.printf("%s", text)
}

// percent never says 100 before the end.
func percent(share float64) string { return fmt.Sprintf("%d%%", int(share*100)) }

// openText marks a run that takes items.
func openText(open *client.OpenView) string {
	switch {
	case open == nil:
		return ""
	case open.Overdue:
		return " (open, overdue)"
	default:
		return " (open)"
	}
}

type runShow struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
}

// Run shows a run.
func (r *runShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	run, err := cl.GetRun(ctx, r.Ref, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s%s", runHead(&run), runSteps(&run))
}

func runHead(run *client.RunDocument) string {
	t := table{}
	t.row("run", run.ID)
	if run.Name != "" {
		t.row("name", inert(run.Name))
	}
	t.row("plan", planText(run.Plan, run.PlanVersion))
	state := run.State + openText(run.Open)
	if run.Hold != nil {
		state += heldText(run.Hold, run.At)
	}
	if run.Generation > 1 {
		state += fmt.Sprintf(", generation %d", run.Generation)
	}
	t.row("state", state)
	t.row("items", fmt.Sprintf("%s: %s done, %s, %s to go", count(run.Items), count(run.Done),
		failedText(run.Failed, run.Accepted), count(run.Items-run.Done-run.Failed)))
	if run.Settling > 0 {
		t.row("", fmt.Sprintf("%s of the failed ones are still on their way through other steps", count(run.Settling)))
	}
	if run.Open != nil && run.Open.SealBy != nil {
		t.row("open", "until "+moment(*run.Open.SealBy)+", then: "+run.Open.OnOverdue)
	}
	if len(run.Steps) > 1 {
		t.row("progress", percent(run.Progress)+" of all parts")
	}
	if run.Skipped > 0 {
		t.row("skipped", count(run.Skipped)+" duplicates at intake")
	}
	runRules(&t, run)
	if run.Source != "" {
		t.row("source", inert(run.Source))
	}
	runTimes(&t, run)
	for _, name := range slices.Sorted(maps.Keys(run.Params)) {
		t.row("param", inert(name+"="+run.Params[name]))
	}
	for _, w := range run.Warnings {
		t.row("warning", inert(w))
	}
	return t.String()
}

// runRules writes what a run goes by beyond its plan, as far as it was given.
func runRules(t *table, run *client.RunDocument) {
	if run.MaxFailed != "" {
		t.row("max failed", maxFailedText(run))
	}
	if run.Canary != nil {
		t.row("canary", canaryText(run.Canary))
	}
	if run.Order != nil {
		t.row("order", orderText(run.Order))
	}
	if run.Priority != 0 {
		t.row("priority", fmt.Sprint(run.Priority))
	}
}

// planText is a plan with the version that the run started with.
func planText(name string, version int) string {
	if version == 0 {
		return inert(name)
	}
	return fmt.Sprintf("%s, version %d", inert(name), version)
}

// runTimes adds when the run began, how long it took so far, and how fast it goes.
func runTimes(t *table, run *client.RunDocument) {
	started := moment(run.CreatedAt)
	if run.CreatedBy != "" {
		started += " by " + inert(run.CreatedBy)
	}
	t.row("started", started)
	took := span(seconds(run.Seconds))
	if run.FinishedAt != nil {
		took += ", until " + moment(*run.FinishedAt)
	}
	t.row("took", took)
	if run.Rate > 0 {
		eta := ""
		if run.ETASeconds != nil {
			eta = ", " + span(seconds(*run.ETASeconds)) + " to go"
		}
		unit := " items/s"
		if len(run.Steps) > 1 {
			unit = perSecondOf(*run)
		}
		t.row("rate", pace(run.Rate)+unit+eta)
	}
}

type runItem struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Key string `arg:"" help:"The item's key."`
}

// Run shows an item.
func (r *runItem) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.GetItem(ctx, r.Ref, r.Key, client.GetItemParams{}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	for i := range found.Items {
		if i > 0 {
			if err := term.printf("\n"); err != nil {
				return err
			}
		}
		if err := term.printf("%s", itemText(&found.Items[i])); err != nil {
			return err
		}
	}
	return nil
}
