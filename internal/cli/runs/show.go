package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type runList struct {
	State    []string  `enum:"loading,running,paused,completed,cancelled" help:"Only runs in this state; may stand more than once." placeholder:"STATE"`
	Result   string    `enum:",failed,ok" default:"" help:"Only completed runs: with failures that no one accepted (failed), or without (ok)." placeholder:"RESULT"`
	Before   string    `help:"Only runs older than this one, by its whole id." placeholder:"ID"`
	Limit    int       `default:"20" within:"1,500" help:"How many, at most 500." placeholder:"N"`
	Q        string    `name:"search" help:"Only runs with these words in their name, plan, source or who started them, or with such a piece of an id." placeholder:"WORDS"`
	Plan     string    `help:"Only runs of this plan, NAME or NAME@VERSION." placeholder:"PLAN"`
	Endpoint string    `help:"Only runs with a step that asks this endpoint." placeholder:"NAME"`
	Since    time.Time `help:"Only runs that were made since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Until    time.Time `help:"Only runs that were made before." placeholder:"TIME"`
}

func (r *runList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListRuns(ctx, client.ListRunsParams(*r))
	list := cli.List[client.RunSummary]{
		Columns: "RUN|NAME|STATE|ITEMS>|DONE>|FAILED>|>|STARTED|ENDS",
		Row: func(run *client.RunSummary) []any {
			name := cmp.Or(run.Name, "("+run.Plan+")")
			state := run.State + openText(run.Open)
			if len(run.Approval) > 0 {
				state += " (to be approved)"
			}
			return []any{cli.ShortID(run.ID), name, state, run.Items, run.Done, run.Failed, percent(run.Progress),
				run.CreatedAt, endsText(run)}
		},
		Empty: "no runs yet; start one with: tranche run start --endpoint NAME --items FILE", Next: page.Next, Before: true,
	}
	if !reflect.DeepEqual(*r, runList{Limit: r.Limit}) {
		list.Empty = "no run fits; all are in: tranche run list"
	}
	if err := list.Print(term, page.Runs, err); err != nil || term.JSON {
		return err
	}
	var blocked []string
	for i := range page.Runs {
		if blocker := page.Runs[i].Blocker; blocker != nil {
			blocked = append(blocked, fmt.Sprintf("%s: %s (since %s)", cli.ShortID(page.Runs[i].ID),
				cli.EscapeControl(blocker.Text), cli.Moment(blocker.Since)))
		}
	}
	if len(blocked) == 0 {
		return nil
	}
	return term.Printf("\nBlocked:\n%s\n", strings.Join(blocked, "\n"))
}

// percent formats a share from 0 to 1 like the dashboard: with one decimal near the ends and two within 1 % of them.
// Only exactly 0 and 1 show as 0 and 100.
func percent(share float64) string {
	if share <= 0 || share >= 1 {
		return fmt.Sprintf("%.0f%%", min(max(share, 0), 1)*100)
	}
	p, by := min(max(share*100, 0.01), 99.99), 1.0
	switch near := min(p, 100-p); {
	case near < 1:
		by = 100
	case near < 10:
		by = 10
	}
	return fmt.Sprintf("%v%%", math.Floor(p*by+0.5)/by)
}

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

type runShow struct{ runArg }

func (r *runShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, func(run *client.RunDocument, _ int) string { return runHead(run) + runSteps(run) })(
		cl.GetRun(ctx, r.Ref))
}

func runHead(run *client.RunDocument) string {
	t := cli.Table{}
	t.Row("run", run.ID)
	t.Field("name", run.Name)
	t.Row("plan", planText(run.Plan, run.PlanVersion))
	state := run.State + openText(run.Open)
	if run.Hold != nil {
		state += heldText(run.Hold, run.At)
	}
	if run.Generation > 1 {
		state += fmt.Sprintf(", generation %d", run.Generation)
	}
	t.Row("state", state)
	t.Row("items", fmt.Sprintf("%s: %s done, %s, %s to go", cli.Count(run.Items), cli.Count(run.Done),
		failedText(run.Failed, run.Accepted), cli.Count(run.Items-run.Done-run.Failed)))
	if run.Settling > 0 {
		t.Row("", cli.Count(run.Settling)+" of the failed ones are still on their way through other steps")
	}
	if run.Open != nil && run.Open.SealDeadline != nil {
		t.Row("open", "until "+cli.Moment(*run.Open.SealDeadline)+", then: "+run.Open.OnOverdue)
	}
	if len(run.Steps) > 1 {
		t.Row("progress", percent(run.Progress)+" of all parts")
	}
	if run.Skipped > 0 {
		t.Row("skipped", cli.Count(run.Skipped)+" duplicates at intake")
	}
	runRules(&t, run)
	linkRows(&t, run.FromRun, run.CarriedOn)
	t.Field("source", run.Source)
	runTimes(&t, run)
	for _, name := range slices.Sorted(maps.Keys(run.Params)) {
		t.Row("param", name+"="+run.Params[name])
	}
	for _, w := range run.Warnings {
		t.Row("warning", w)
	}
	return t.String()
}

func runRules(t *cli.Table, run *client.RunDocument) {
	if run.MaxFailed != "" {
		t.Row("max failed", maxFailedText(run))
	}
	if run.FailFast != workqueue.DefaultFailFast().String() {
		t.Row("fail fast", run.FailFast)
	}
	if run.Canary != nil {
		t.Row("canary", canaryText(run.Canary))
	}
	if run.Order != nil {
		t.Row("order", orderText(run.Order))
	}
	t.Field("priority", run.Priority)
}

func planText(name string, version int) string {
	if version == 0 {
		return cli.EscapeControl(name)
	}
	return fmt.Sprintf("%s, version %d", cli.EscapeControl(name), version)
}

func runTimes(t *cli.Table, run *client.RunDocument) {
	t.Row("started", startedBy(run.CreatedAt, run.CreatedBy))
	took := tookText(run)
	if run.FinishedAt != nil {
		took += ", until " + cli.Moment(*run.FinishedAt)
	}
	t.Row("took", took)
	if run.Rate > 0 {
		unit := " items/s"
		if len(run.Steps) > 1 {
			unit = perSecondOf(*run)
		}
		t.Row("rate", cli.Pace(run.Rate)+unit)
	}
	f := run.Forecast
	if run.DoneBy != nil {
		t.Row("done by", doneByText(run))
		if risk := run.AtRisk; risk != nil && risk.Fix != nil {
			t.Row("", "enough would be: "+strings.TrimSuffix(risk.Fix.Text+" ("+risk.Fix.Command+")", " ()"))
		}
	}
	if f != nil {
		t.Row("forecast", forecastText(f))
		t.Field("bound by", f.BoundBy)
	}
}

// doneByText is when a run is to be done, and whether it will be.
func doneByText(run *client.RunDocument) string {
	text := cli.Moment(*run.DoneBy)
	if run.Gentle {
		text += ", gently"
	}
	late := run.At.Sub(*run.DoneBy)
	switch f := run.Forecast; {
	case run.State == "cancelled":
	case run.FinishedAt != nil:
		if late := run.FinishedAt.Sub(*run.DoneBy); late > 0 {
			text += ": it was " + cli.Span(late) + " late"
		}
	case late > 0:
		text += ": it is " + cli.Span(late) + " late"
	case run.AtRisk != nil:
		text += ": it will be " + run.AtRisk.Late + " late"
	case f != nil && f.P50 != nil:
		text += ": forecast " + band(f)
	}
	return text
}

func startedBy(at time.Time, by string) string {
	if by == "" {
		return cli.Moment(at)
	}
	return cli.Moment(at) + " by " + by
}

func tookText(run *client.RunDocument) string {
	took := cli.Span(cli.Seconds(run.Seconds))
	if run.Generation > 1 {
		took += fmt.Sprintf(" (generation %d)", run.Generation)
	}
	return took
}

type runItem struct {
	runArg
	Key string `arg:"" help:"The item's key."`
}

func (r *runItem) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetItem(ctx, r.Ref, r.Key, client.GetItemParams{})
	if key, escaped := cli.Unescaped(r.Key); err != nil && escaped {
		// The key may come from a list, where control characters are escaped.
		if other, otherErr := cl.GetItem(ctx, r.Ref, key, client.GetItemParams{}); otherErr == nil {
			found, err = other, nil
		}
	}
	return cli.Print(term, func(found *client.KeyItems, room int) string {
		var texts []string
		for i := range found.Items {
			texts = append(texts, cli.ItemText(&found.Items[i], room))
		}
		return strings.Join(texts, "\n")
	})(found, err)
}

func failedText(failed, accepted int64) string {
	if accepted == 0 {
		return cli.Count(failed) + " failed"
	}
	return fmt.Sprintf("%s failed, %s of them accepted", cli.Count(failed), cli.Count(accepted))
}

func itemCount(n int64) string { return cli.Plural(n, "item") }

func heldText(hold *client.HoldView, now time.Time) string {
	by := ""
	if hold.By != "" {
		by = " by " + cli.EscapeControl(hold.By)
	}
	text := fmt.Sprintf(" (%s)%s, %s ago", hold.Kind, by, cli.Span(now.Sub(hold.Since)))
	if hold.Detail != "" {
		text += ": " + cli.EscapeControl(hold.Detail)
	}
	return text
}

func maxFailedText(run *client.RunDocument) string {
	text := cli.EscapeControl(run.MaxFailed)
	if run.FailedLimit != nil && strings.HasSuffix(run.MaxFailed, "%") {
		text += fmt.Sprintf(", which is %s items", cli.Count(*run.FailedLimit))
	}
	return text + "; one more pauses the run"
}

func canaryText(canary *client.CanaryView) string {
	text := fmt.Sprintf("%s items", cli.Count(int64(canary.Items)))
	if canary.Auto {
		text += ", then automatically released"
	} else {
		text += ", then waits for approval"
	}
	if canary.State != "" {
		text += ": " + canary.State
	}
	return text
}

func settingsText(step *client.StepView) []string {
	s := &step.Settings
	pace := []string{cli.TargetText(step.Endpoint), "chunk " + upTo(s.Chunk, s.ChunkAuto)}
	if s.ChunkBytes > 0 {
		pace = append(pace, cli.Count(int64(s.ChunkBytes))+" bytes a request")
	}
	if s.ChunkTime > 0 {
		pace = append(pace, cli.Span(time.Duration(s.ChunkTime))+" a request")
	}
	inFlight := upTo(s.InFlight, s.InFlightAuto) + " in flight"
	if step.Cap > 0 {
		inFlight += fmt.Sprintf(" (now %d, gently)", step.Cap)
	}
	if step.Share > 1 {
		inFlight += fmt.Sprintf(" (now %d shares of what it shares, to be in time)", step.Share)
	}
	pace = append(pace, inFlight)
	if s.Rate > 0 {
		pace = append(pace, cli.Rate(s.Rate)+" at most")
	}
	retry := []string{fmt.Sprintf("%d attempts", s.MaxAttempts), "backoff " + cli.Span(time.Duration(s.RetryBackoff))}
	if s.MaxBackoff > 0 {
		retry = append(retry, "up to "+cli.Span(time.Duration(s.MaxBackoff)))
	}
	retry = append(retry, fmt.Sprintf("timeout %s", time.Duration(s.Timeout)))
	lines := []string{strings.Join(pace, ", "), strings.Join(retry, ", ")}
	if len(s.RetryCodes) > 0 {
		lines = append(lines, "always retried: "+cli.EscapeControl(strings.Join(s.RetryCodes, ", ")))
	}
	if len(s.NoRetryCodes) > 0 {
		lines = append(lines, "never retried: "+cli.EscapeControl(strings.Join(s.NoRetryCodes, ", ")))
	}
	if s.MaxResult > 0 {
		lines = append(lines, "results of at most "+cli.Count(int64(s.MaxResult))+" bytes")
	}
	return lines
}

func upTo(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (at most %d)", n)
	}
	return fmt.Sprint(n)
}

func runSteps(run *client.RunDocument) string {
	columns, several := "STEP|WAITING>|READY>|IN FLIGHT>|RETRY>|DONE>|FAILED>", len(run.Steps) > 1
	if several {
		columns += "|LEFT OUT>|>"
	}
	t := cli.NewTable(columns, 0)
	var graph, settings cli.Table
	for i := range run.Steps {
		s := &run.Steps[i]
		cells := []any{s.Name, s.Waiting, s.Ready, s.InFlight, s.Scheduled, s.Done, s.Failed}
		if several {
			cells = append(cells, s.Skipped, percent(s.Progress))
		}
		t.Row(cells...)
		if several || s.Kind != client.KindEndpoint {
			graph.Row("  "+s.Name, relationText(s))
		}
		name := s.Name
		for _, line := range settingsText(s) {
			settings.Row("  "+name, line)
			name = ""
		}
	}
	text := "\n" + t.String()
	if graph.Len() > 0 {
		text += "\nwhat they do\n" + graph.String()
	}
	return text + "\nsettings\n" + settings.String()
}

func relationText(s *client.StepView) string {
	parts := []string{cli.TargetText(s.Endpoint)}
	if s.Kind == client.KindDirect {
		parts[0] += ", by plain requests"
	}
	if len(s.Needs) > 0 {
		parts = append(parts, "needs "+cli.EscapeControl(strings.Join(s.Needs, ", ")))
	}
	if sees := seenText(s); sees != "" {
		parts = append(parts, sees)
	}
	switch {
	case s.Gate != nil && s.Gate.State == "approved":
		parts = append(parts, "approved by "+cli.EscapeControl(s.Gate.ApprovedBy))
	case s.Gate != nil && s.Gate.State == "waiting":
		parts = append(parts, "waits for approval")
	case s.Gate != nil:
		parts = append(parts, "waits until all have, then for approval")
	case s.Barrier && s.BarrierPassed:
		parts = append(parts, "barrier passed")
	case s.Barrier:
		parts = append(parts, "waits at its barrier until they have all")
	}
	if s.Optional {
		parts = append(parts, "optional: others go on without it")
	}
	return strings.Join(parts, "; ")
}

func seenText(s *client.StepView) string {
	if s.SeesItem && len(s.Inputs) == len(s.Needs) {
		return ""
	}
	seen := s.Inputs
	if s.SeesItem {
		seen = append([]string{"the item"}, seen...)
	}
	if len(seen) == 0 {
		return "sees keys only"
	}
	return "sees " + cli.EscapeControl(strings.Join(seen, ", "))
}

func orderText(o *client.OrderView) string {
	text := "by " + cli.EscapeControl(o.By)
	switch {
	case o.Partitions > 0:
		text += fmt.Sprintf(" over %s partitions", cli.Count(int64(o.Partitions)))
	case len(o.Values) > 0:
		text += ", with these values: " + cli.EscapeControl(strings.Join(o.Values, ", "))
	}
	text += "; one at a time in each lane"
	if o.OnFailure == "stop" {
		text += ", and a failure stops the lane"
	}
	return text
}

type runGroups struct {
	runArg
	By    string `placeholder:"FIELD" help:"A field of the payloads, at their top."`
	Lanes bool   `help:"By lane or partition, of a run with order_by."`
}

func (r *runGroups) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetGroups(ctx, r.Ref, client.GetGroupsParams{By: r.By, Lanes: r.Lanes})
	if err != nil {
		return err
	}
	if r.By == "" && !r.Lanes {
		if len(found.Fields) == 0 {
			return errors.New("--by FIELD is missing, and the payloads of the first items have no field to group by")
		}
		return errors.New("--by FIELD is missing; the first items have: " +
			cli.EscapeControl(strings.Join(found.Fields, ", ")))
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", groupsText(&found))
}

func groupsText(found *client.PayloadGroups) string {
	t := cli.NewTable(cli.EscapeControl(strings.ToUpper(found.By))+"|ITEMS|DONE|FAILED|IN PROGRESS|DONE OF ALL", 0)
	row := func(name string, g *client.PayloadGroup) {
		t.Row(name, g.Items, g.Done, g.Failed, g.InProgress, percent(float64(g.Done)/float64(max(g.Items, 1))))
	}
	for i := range found.Groups {
		name := "(none)"
		if value := found.Groups[i].Value; value != nil {
			name = *value
		}
		row(name, &found.Groups[i])
	}
	if found.Others != nil {
		row("("+cli.Count(int64(found.Others.Values))+" others)", found.Others)
	}
	return t.String()
}

func linkRows(t *cli.Table, from *string, carriedOn []string) {
	if from != nil {
		t.Row("carries on", "run "+*from)
	}
	if len(carriedOn) > 0 {
		t.Row("carried on by", "run "+strings.Join(carriedOn, ", "))
	}
}
