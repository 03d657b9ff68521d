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
	State     []string  `enum:"loading,running,paused,completed,cancelled" help:"Only runs in this state; repeatable." placeholder:"STATE"`
	Result    string    `enum:",failed,ok" default:"" help:"Only completed runs: with failures that no one accepted (failed), or without (ok)." placeholder:"RESULT"`
	Endpoint  string    `help:"Only runs with a step that calls this endpoint." placeholder:"NAME"`
	Since     time.Time `help:"Only runs created since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Until     time.Time `help:"Only runs created before." placeholder:"TIME"`
	Schedule  string    `help:"Only runs that this schedule started." placeholder:"NAME"`
	Limit     int       `default:"20" within:"1,500" help:"How many, at most 500." placeholder:"N"`
	Sort      string    `enum:"newest,name,items,failed,time" default:"newest" help:"Order: newest, name, items, failed or time; items, failed and time have the most first." placeholder:"ORDER"`
	Fold      bool      `help:"Of each schedule only the newest run."`
	Before    string    `help:"Only runs that follow this one in the list, by its whole ID." placeholder:"ID"`
	Q         string    `name:"search" help:"Only runs with these words in their name, plan, source or starter, or as part of their ID." placeholder:"WORDS"`
	Plan      string    `help:"Only runs of this plan, NAME or NAME@VERSION." placeholder:"PLAN"`
	Attention bool      `help:"Only runs that wait for a person: paused, stalled, at an approval, or late."`
}

func (r *runList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListRuns(ctx, client.ListRunsParams(*r))
	list := cli.List[client.RunSummary]{
		Columns: "RUN|NAME|STATE|ITEMS>|DONE>|FAILED>|>|STARTED|ENDS",
		Row: func(run *client.RunSummary) []any {
			return []any{cli.ShortID(run.ID), cmp.Or(run.Name, "("+run.Plan+")"),
				run.State + openText(run.Open) + cli.If(len(run.Approval) > 0, " (to be approved)"), run.Items, run.Done,
				run.Failed, percent(run.Progress), run.CreatedAt, endsText(run)}
		},
		Empty: "no runs yet; start one with: tranche run start --endpoint NAME --items FILE", Next: page.Next, Before: true,
	}
	if !reflect.DeepEqual(*r, runList{Limit: r.Limit, Sort: r.Sort, Fold: r.Fold}) {
		list.Empty = "no run matches; all are in: tranche run list"
	}
	if err := list.Print(term, page.Runs, err); err != nil || term.JSON {
		return err
	}
	var blocked strings.Builder
	for _, run := range page.Runs {
		if b := run.Blocker; b != nil {
			blocked.WriteString(cli.Text("%v: %v (since %v)\n", cli.ShortID(run.ID), b.Text, b.Since))
		}
	}
	if blocked.Len() == 0 {
		return nil
	}
	return term.Printf("\nBlocked:\n%s", &blocked)
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
	held := ""
	if hold := run.Hold; hold != nil {
		held = cli.Text(" (%v)%v, %v ago%v", hold.Kind, cli.If(hold.By != "", " by %v", hold.By),
			cli.Span(run.At.Sub(hold.Since)), cli.If(hold.Detail != "", ": %v", hold.Detail))
	}
	t.Row("state", run.State+openText(run.Open)+held+cli.If(run.Generation > 1, ", generation %v", run.Generation))
	t.Say("items", "%v: %v done, %v, %v to go", run.Items, run.Done, failedText(run.Failed, run.Accepted),
		run.Items-run.Done-run.Failed)
	t.If(run.Settling > 0, "", "%v of the failed ones are still on their way through other steps", run.Settling)
	if run.Open != nil && run.Open.SealDeadline != nil {
		t.Say("open", "until %v, then: %v", run.Open.SealDeadline, run.Open.OnOverdue)
	}
	t.If(len(run.Steps) > 1, "progress", "%v of all parts", percent(run.Progress))
	t.If(run.Skipped > 0, "skipped", "%v duplicates at intake", run.Skipped)
	runRules(&t, run)
	linkRows(&t, run.FromRun, run.ContinuedBy)
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
	share := run.FailedLimit != nil && strings.HasSuffix(run.MaxFailed, "%")
	t.If(run.MaxFailed != "", "max failed", "%v%v; one more pauses the run", run.MaxFailed,
		cli.If(share, ", which is %v items", run.FailedLimit))
	t.If(run.FailFast != workqueue.DefaultFailFast().String(), "fail fast", "%v", run.FailFast)
	if run.Canary != nil {
		t.Row("canary", canaryText(run.Canary))
	}
	if run.Order != nil {
		t.Row("order", orderText(run.Order))
	}
	t.Field("priority", run.Priority)
}

func planText(name string, version int) string {
	return cli.EscapeControl(name) + cli.If(version != 0, ", version %v", version)
}

func runTimes(t *cli.Table, run *client.RunDocument) {
	t.Row("started", startedBy(run.CreatedAt, run.CreatedBy))
	t.Row("took", tookText(run)+cli.If(run.FinishedAt != nil, ", until %v", run.FinishedAt))
	unit := " items/s"
	if len(run.Steps) > 1 {
		unit = perSecondOf(*run)
	}
	t.If(run.Rate > 0, "rate", "%v%v", cli.Pace(run.Rate), unit)
	if run.DoneBy != nil {
		t.Row("done by", doneByText(run))
		if risk := run.AtRisk; risk != nil && risk.Fix != nil {
			t.Row("", "enough would be: "+strings.TrimSuffix(risk.Fix.Text+" ("+risk.Fix.Command+")", " ()"))
		}
	}
	if f := run.Forecast; f != nil {
		t.Row("forecast", forecastText(f))
		t.Field("bound by", f.BoundBy)
	}
}

// doneByText is a run's deadline, and whether it will be met.
func doneByText(run *client.RunDocument) string {
	text := cli.Moment(*run.DoneBy) + cli.If(run.Gentle, ", gently")
	late := run.At.Sub(*run.DoneBy)
	switch f := run.Forecast; {
	case run.State == "cancelled":
	case run.FinishedAt != nil:
		late = run.FinishedAt.Sub(*run.DoneBy)
		return text + cli.If(late > 0, ": it was %v late", cli.Span(late))
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
	return cli.Moment(at) + cli.If(by != "", " by %v", by)
}

func tookText(run *client.RunDocument) string {
	return cli.Span(cli.Seconds(run.Seconds)) + cli.If(run.Generation > 1, " (generation %v)", run.Generation)
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
	return cli.Count(failed) + " failed" + cli.If(accepted != 0, ", %v of them accepted", accepted)
}

func itemCount(n int64) string { return cli.Plural(n, "item") }

func canaryText(canary *client.CanaryView) string {
	then := ", then waits for approval"
	if canary.Auto {
		then = ", then automatically released"
	}
	return cli.Text("%v items%v%v", canary.Items, then, cli.If(canary.State != "", ": %v", canary.State))
}

// inWords are the settings in the first two lines of settingsText. The rest is listed by its names in plans.
const inWords = "chunk chunk_auto chunk_bytes chunk_time in_flight in_flight_auto rate max_attempts retry_backoff " +
	"max_backoff timeout"

func settingsText(step *client.StepView) []string {
	s := &step.Settings
	pace := cli.Join(", ", cli.TargetText(step.Endpoint), "chunk "+upTo(s.Chunk, s.ChunkAuto),
		cli.If(s.ChunkBytes > 0, "%v bytes a request", s.ChunkBytes),
		cli.If(s.ChunkTime > 0, "%v a request", cli.Span(time.Duration(s.ChunkTime))),
		upTo(s.InFlight, s.InFlightAuto)+" in flight"+cli.If(step.Cap > 0, " (now %v, gently)", step.Cap)+
			cli.If(step.Share > 1, " (now %v shares of what it shares, to meet its deadline)", step.Share),
		cli.If(s.Rate > 0, "%v at most", cli.Rate(s.Rate)))
	retry := cli.Join(", ", cli.Text("%v attempts, backoff %v", s.MaxAttempts, cli.Span(time.Duration(s.RetryBackoff))),
		cli.If(s.MaxBackoff > 0, "up to %v", cli.Span(time.Duration(s.MaxBackoff))),
		fmt.Sprintf("timeout %s", time.Duration(s.Timeout)))
	lines := []string{pace, retry}
	for field, value := range reflect.ValueOf(s).Elem().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !slices.Contains(strings.Fields(inWords), name) && !value.IsZero() {
			lines = append(lines, cli.EscapeControl(fmt.Sprintf("%s: %v", name, value.Interface())))
		}
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
	direct := cli.If(s.Kind == client.KindDirect, ", by plain requests")
	waits := ""
	switch {
	case s.Gate != nil && s.Gate.State == "approved":
		waits = "approved by " + s.Gate.ApprovedBy
	case s.Gate != nil && s.Gate.State == "waiting":
		waits = "waits for approval"
	case s.Gate != nil:
		waits = "waits until all have, then for approval"
	case s.Barrier && s.BarrierPassed:
		waits = "barrier passed"
	case s.Barrier:
		waits = "waits at its barrier until they have all"
	}
	return cli.Join("; ", cli.TargetText(s.Endpoint)+direct,
		cli.If(len(s.Needs) > 0, "needs %v", strings.Join(s.Needs, ", ")), seenText(s), waits,
		cli.If(s.Optional, "optional: others continue without it"))
}

func seenText(s *client.StepView) string {
	if s.SeesItem && len(s.Inputs) == len(s.Needs) {
		return ""
	}
	seen := s.Inputs
	if s.SeesItem {
		seen = append([]string{"the item"}, seen...)
	}
	return "sees " + cmp.Or(strings.Join(seen, ", "), "keys only")
}

func orderText(o *client.OrderView) string {
	values := o.Partitions == 0 && len(o.Values) > 0
	return cli.Text("by %v%v%v; one at a time in each lane%v", o.By,
		cli.If(o.Partitions > 0, " over %v partitions", o.Partitions),
		cli.If(values, ", with these values: %v", strings.Join(o.Values, ", ")),
		cli.If(o.OnFailure == "stop", ", and a failure stops the lane"))
}

type runGroups struct {
	runArg
	By    string `placeholder:"FIELD" help:"A top-level field of the payloads."`
	Lanes bool   `help:"By lane or partition, of a run with order_by."`
}

func (r *runGroups) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetGroups(ctx, r.Ref, client.GetGroupsParams{By: r.By, Lanes: r.Lanes})
	switch {
	case err != nil || r.By != "" || r.Lanes:
		if err == nil && len(found.Groups) == 1 && found.Groups[0].Value == nil && found.Others == nil {
			term.Warn([]string{fmt.Sprintf("no item has field %q; without --by, its error lists the fields", r.By)})
		}
		return cli.Print(term, groupsText)(found, err)
	case len(found.Fields) == 0:
		return errors.New("--by FIELD is missing, and the payloads of the first items have no field to group by")
	}
	return errors.New("--by FIELD is missing; the first items have: " +
		cli.EscapeControl(strings.Join(found.Fields, ", ")))
}

func groupsText(found *client.PayloadGroups, _ int) string {
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

func linkRows(t *cli.Table, from *string, continuedBy []string) {
	t.If(from != nil, "continues", "run %v", from)
	t.If(len(continuedBy) > 0, "continued by", "run %v", strings.Join(continuedBy, ", "))
}
