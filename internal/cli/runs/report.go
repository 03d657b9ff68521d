package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	reportstore "github.com/tranchehq/tranche/workqueue/report"
)

type runReport struct {
	runArg
	Against string   `help:"Compare with this earlier run, key by key." placeholder:"RUN"`
	Before  string   `help:"With --against: compare what waits before this step, for its approver." placeholder:"STEP"`
	List    []string `sep:"none" enum:"newly_failing,newly_fixed,changed,still_failing,unfinished,only_here,only_there,not_compared,unchanged" help:"With --against: every key that is ${enum}; repeatable." placeholder:"CHANGE"`
	Digests bool     `default:"true" negatable:"" help:"Digests of the items and results; they read every item."`
}

func (r *runReport) Validate() error {
	if len(r.List) > 0 && r.Against == "" {
		return errors.New("--list lists keys of a comparison: say with what, by --against RUN")
	}
	if r.Before != "" && (r.Against == "" || len(r.List) > 0) {
		return errors.New("--before goes with --against RUN, and without --list")
	}
	return nil
}

func (r *runReport) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if len(r.List) > 0 {
		return r.list(ctx, term, cl)
	}
	return cli.Print(term, func(r *client.ReportDocument, room int) string {
		return reportHead(r) + reportItems(r, room) + reportTogether(r.Together) + reportCorrected(r.Corrected) +
			reportSteps(r, room) + reportTime(r) + reportRequests(r) + reportWorkers(r, room) + reportDigests(r) +
			reportAgainst(r)
	})(cl.ReportRun(ctx, r.Ref, client.ReportRunParams{Against: r.Against, Before: r.Before, Digests: r.Digests}))
}

func (r *runReport) list(ctx context.Context, term *cli.Console, cl *client.Client) error {
	stream, err := cl.CompareRuns(ctx, r.Ref, client.CompareRunsParams{Against: r.Against, Change: r.List})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return cli.PrintLines(term, stream, func(d *client.Difference) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s", cli.EscapeControl(d.Key), cli.EscapeControl(d.Change), standingText(d.There),
			standingText(d.Here))
	})
}

func standingText(s *client.Standing) string {
	if s == nil {
		return "-"
	}
	return cli.Text("%v%v%v", s.Outcome, cli.If(s.Step+s.ErrorCode != "", " %v", s.ErrorCode),
		cli.If(s.Step != "", " in %v", s.Step))
}

func reportHead(r *client.ReportDocument) string {
	t := cli.Table{}
	t.Row("run", r.ID)
	t.Field("name", r.Name)
	t.Row("plan", planText(r.Plan, r.PlanVersion))
	linkRows(&t, r.FromRun, r.ContinuedBy)
	t.Field("source", r.Source)
	t.Row("started", startedBy(r.CreatedAt, r.CreatedBy))
	t.Row("state", r.State+cli.If(r.FinishedAt != nil, " at %v", r.FinishedAt))
	return t.String()
}

const maxReportGroups = 10

// reportItems counts the items so that the lines after the first add up to it.
func reportItems(r *client.ReportDocument, room int) string {
	t := cli.NewTable("|>|", room)
	t.Row("items", r.Items)
	t.Row("  done", r.Done)
	t.Row("  failed", r.Failed, cli.If(r.Accepted > 0, "%v of them accepted", r.Accepted))
	listed := int64(0)
	for i := range r.Errors.Groups[:min(len(r.Errors.Groups), maxReportGroups)] {
		g := &r.Errors.Groups[i]
		if g.Optional || g.Count == 0 {
			continue
		}
		listed += g.Count
		t.Row("    "+g.ID, g.Count, g.Code+"  "+g.Shape)
	}
	if rest := r.Errors.Items - listed; rest > 0 {
		t.Row("    others", rest, "see: tranche run errors "+cli.ShortID(r.ID))
	}
	for _, u := range r.Unprocessed {
		t.Row("  "+strings.ReplaceAll(u.State, "_", " "), u.Items)
	}
	return "\n" + t.String() +
		cli.If(r.Skipped > 0, "%v duplicates were left out at intake and are not items\n", r.Skipped)
}

func reportTogether(g *client.Together) string {
	if g == nil {
		return ""
	}
	return cli.Text("as one with run %v: %v, %v done, %v failed, %v missing\n", strings.Join(g.Runs, ", "),
		itemCount(g.Items), g.Done, g.Failed, g.Missing)
}

func reportCorrected(c *client.CorrectedReport) string {
	if c == nil {
		return ""
	}
	var t cli.Table
	for _, one := range c.Times {
		t.Row(cli.Text("  generation %v", one.Generation), itemCount(one.Items), "by "+one.Actor, one.At, one.Reason)
	}
	return cli.Text("\ncorrected: %v; %v results made of corrected data, %v kept, %v failed, %v unfinished\n",
		itemCount(c.Items), c.Made, c.Kept, c.Failed, c.Unfinished) + t.String()
}

func reportSteps(r *client.ReportDocument, room int) string {
	if len(r.Steps) < 2 {
		return ""
	}
	list := cli.List[client.StepReport]{
		Columns: "STEP|DONE>|FAILED>|LEFT OUT>|MISSING>|REQUESTS>|ASKED>|P50>|P99>|ASKS",
		Row: func(s *client.StepReport) []any {
			return []any{s.Name, s.Done, s.Failed, s.Skipped, s.Missing, s.Requests, s.Asked, exactly(s.P50Seconds),
				exactly(s.P99Seconds), cli.TargetText(s.Endpoint) + cli.OptionalText(s.Optional)}
		},
	}
	return "\n" + list.Text(r.Steps, room)
}

func reportTime(r *client.ReportDocument) string {
	list := cli.List[client.GenerationReport]{
		Columns: "GENERATION|WAITING>|WORKING>|PAUSED>|CLOSING>|IN ALL>|DONE>|FAILED>|ITEMS/S>|ENDED",
		Row: func(g *client.GenerationReport) []any {
			ended := g.Ended
			if g.EndedAt == nil {
				ended = "continues"
			}
			return []any{g.Generation, exactly(g.WaitingSeconds), exactly(g.WorkingSeconds), exactly(g.PausedSeconds),
				exactly(g.ClosingSeconds), exactly(g.Seconds), g.Done, g.Failed, cli.Pace(g.Rate), ended}
		},
	}
	return "\ntime: " + cli.If(r.LoadingSeconds > 0, "%v to load, then ", exactly(r.LoadingSeconds)) +
		fmt.Sprintf("%s, %s of it paused; %s items/s, best %s\n",
			exactly(r.Seconds), exactly(r.PausedSeconds), cli.Pace(r.Rate), cli.Pace(r.BestRate)) + list.Text(r.Generations, 0)
}

func exactly(s float64) string {
	d := cli.Seconds(s)
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%.0fms", max(float64(d)/float64(time.Millisecond), 1))
	}
	return cli.Span(d)
}

func reportRequests(r *client.ReportDocument) string {
	q := &r.Requests
	t := cli.NewTable("|>|>", 0)
	for _, c := range q.ByCause {
		t.Row("  "+c.Cause, c.Requests, cli.Count(c.Items)+" items")
	}
	return fmt.Sprintf("\nrequests: %s of %.1f items on average; half took %s or less, 99%% took %s or less\n",
		cli.Count(q.Count), q.MeanItems, exactly(q.P50Seconds), exactly(q.P99Seconds)) + t.String() +
		cli.Text("  %v sent more than once, %v retried\n", cli.Plural(q.TriedAgain, "item"),
			cli.Plural(q.Retries, "request")) +
		cli.If(q.LostToStreams+q.LostToNodes > 0, "  %v were lost with a stream, %v with a node, and reissued\n",
			q.LostToStreams, q.LostToNodes) + reportBisections(&r.Bisections)
}

func reportBisections(b *client.Bisections) string {
	if len(b.Kinds) == 0 {
		return ""
	}
	return cli.Text("  chunks that failed entirely took %v more; %v of them failed alone\n",
		cli.Plural(int64(b.Slices), "request"), cli.Plural(int64(b.Culprits), "item")) +
		cli.Each(slices.Sorted(maps.Keys(b.Kinds)), func(kind *string) string {
			return cli.Text("    %v: %v\n", strings.ReplaceAll(*kind, "_", " "), b.Kinds[*kind])
		})
}

func reportWorkers(r *client.ReportDocument, room int) string {
	t := cli.NewTable("|>|>|>|>", room)
	for _, list := range []struct {
		title   string
		workers []client.WorkerReport
	}{{"SLOWEST SERVICES", r.Services}, {"ENDPOINTS", r.Endpoints}} {
		if len(list.workers) == 0 {
			continue
		}
		t.Row(list.title, "REQUESTS", "ITEMS", "TIME/ITEM", "P99")
		for i := range list.workers {
			w := &list.workers[i]
			t.Row(w.Name, w.Requests, w.Items, cli.PerItem(1000*w.SecondsPerItem), exactly(w.P99Seconds))
		}
	}
	if t.Len() == 0 {
		return ""
	}
	return "\n" + t.String()
}

func reportDigests(r *client.ReportDocument) string {
	if r.Digests == nil {
		return ""
	}
	t := cli.Table{}
	t.Row("sha256 of items", cli.OrDash(r.Digests.Items))
	t.Row("sha256 of results", cli.OrDash(r.Digests.Results))
	return "\n" + t.String() + cli.If(r.Digests.Note != "", "%v\n", r.Digests.Note)
}

func reportAgainst(r *client.ReportDocument) string {
	a := r.Against
	if a == nil {
		return ""
	}
	text := cli.Text("\nagainst run %v\n", a.Against)
	if r.Digests != nil && a.Digests != nil {
		text += cli.Text("  list of items: %v; results: %v\n", sameness(r.Digests.Items, a.Digests.Items),
			sameness(r.Digests.Results, a.Digests.Results))
	}
	text += cli.If(len(a.Continues) > 0, "  this run counts as one with %v, which it continues\n",
		strings.Join(a.Continues, ", ")) + cli.If(a.Note != "", "  %v\n", a.Note)
	example := func(d *client.Difference) string {
		return cli.Text("      %v  %v → %v\n", d.Key, standingText(d.There), standingText(d.Here))
	}
	return text + cli.Each(a.Changes, func(c *client.ChangeCount) string {
		if c.Change == string(reportstore.ChangeNotCompared) && c.Items == 0 {
			return "" // the results are compared
		}
		return cli.Text("  %-13v  %v\n", strings.ReplaceAll(c.Change, "_", " "), c.Items) + cli.Each(c.Examples, example)
	}) + cli.Text("every key: tranche run report %v --against %v --list CHANGE\n", cli.ShortID(r.ID),
		cli.ShortID(a.Against))
}

func sameness(here, there string) string {
	switch {
	case here == "" || there == "":
		return "not yet comparable"
	case here == there:
		return "the same"
	default:
		return "different"
	}
}

type runErrors struct {
	runArg
	All bool `help:"Every failed item instead of groups."`
}

func (r *runErrors) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.All {
		stream, err := cl.FailedItems(ctx, r.Ref)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		return cli.PrintLines(term, stream, errorLine)
	}
	return cli.Print(term, errorText)(cl.ListErrors(ctx, r.Ref, client.ListErrorsParams{}))
}

func errorText(found *client.ErrorGroups, room int) string {
	if len(found.Groups) == 0 {
		return "no failed items\n"
	}
	var text strings.Builder
	say := func(format string, args ...any) { text.WriteString(cli.Text(format, args...)) }
	for i := range found.Groups {
		text.WriteString(groupText(&found.Groups[i], room))
	}
	if found.MoreGroups > 0 {
		say("and %v more, of %v; --all lists each item\n", cli.Plural(found.MoreGroups, "group"),
			itemCount(found.MoreItems))
	}
	run := cli.ShortID(found.Run)
	say("\n")
	for _, g := range found.Groups {
		for _, step := range g.Resets {
			say("a part is bad, and a rerun gives it again; when its source is fixed, "+
				"recompute it:\n  tranche run reset %v --step %v --group %v --failed-at %v\n", run, step, g.ID, g.Step)
		}
	}
	again := slices.IndexFunc(found.Groups, func(g client.ErrorGroup) bool {
		return g.Code != workqueue.CodeInvalid && len(g.Resets) == 0
	})
	if again >= 0 {
		say("rerun a group:           tranche run rerun %[1]v --group %[2]v\n"+
			"rerun all of them:       tranche run rerun %[1]v --failed\n", run, found.Groups[again].ID)
	}
	say("correct their data:      tranche run export %[1]v --state failed --flat --include payload "+
		"--format xlsx -o failed.xlsx\n"+
		"  and give it back:      tranche run correct %[1]v --items failed.xlsx\n"+
		"accept a group:          tranche run accept %[1]v --group %[2]v --reason TEXT\n", run, found.Groups[0].ID)
	return text.String()
}

func groupText(g *client.ErrorGroup, room int) string {
	lines := []string{cli.Text("%v  %v  %v  %v", g.ID, g.Count+g.Also, g.Code, g.Shape), "    " + groupOrigin(g)}
	for _, e := range g.Examples {
		lines = append(lines, cli.Text("    %v  %v", e.Key, e.Message))
	}
	more := g.Count + g.Also - int64(len(g.Examples))
	lines = append(lines, cli.If(more > 0, "    and %v more", more),
		cli.If(g.Also > 0, "    %v of them also failed at an earlier step, and are counted there", g.Also))
	if room > 0 {
		for i := range lines {
			lines[i] = cli.Short(lines[i], max(room, 40))
		}
	}
	return cli.Join("\n", lines...) + "\n"
}

func groupOrigin(g *client.ErrorGroup) string {
	accepted := ""
	switch g.Accepted {
	case 0:
	case g.Count + g.Also:
		accepted = "accepted; "
	default:
		accepted = cli.Count(g.Accepted) + " of them accepted; "
	}
	when := ""
	if g.First != nil && g.Last != nil {
		when = between(*g.First, *g.Last)
	}
	return accepted + cli.Join(", ", cli.Text("step %v%v", g.Step,
		cli.If(g.Optional, " (optional: the items continued without it)")), when,
		cli.If(len(g.Services) > 0, "by %v", strings.Join(g.Services, ", ")))
}

// between formats a time range without repeating the date.
func between(first, last time.Time) string {
	from, to := cli.Moment(first), cli.Moment(last)
	switch {
	case from == to:
		return from
	case from[:10] == to[:10]:
		return from + " to " + to[11:]
	default:
		return from + " to " + to
	}
}

func errorLine(item *client.ExportedItem) string {
	if item.Error == nil {
		return ""
	}
	return cli.Text("%v\t%v\t%v", item.Key, item.Error.Code, item.Error.Message)
}

type runHistory struct{ runArg }

func (r *runHistory) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, historyText)(cl.GetHistory(ctx, r.Ref))
}

func historyText(history *client.RunHistory, _ int) string {
	slices.Reverse(history.Entries) // oldest first
	list := cli.List[client.HistoryEntry]{Columns: "AT|KIND|WHAT|BY, OR AT|", Row: func(e *client.HistoryEntry) []any {
		return []any{e.At, e.Kind, e.What, e.Who, e.Text}
	}}
	return list.Text(history.Entries, 0)
}

type runNote struct {
	runArg
	Text string `arg:"" help:"The note, at most 2,000 characters."`
}

func (r *runNote) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, historyText)(cl.NoteRun(ctx, r.Ref, client.RunNote{Text: r.Text}))
}
