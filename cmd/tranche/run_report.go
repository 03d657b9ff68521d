package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type runReport struct {
	Ref     string   `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Against string   `help:"Compare with this earlier run, key by key." placeholder:"RUN"`
	List    []string `sep:"none" help:"With --against: every key that is newly_failing, newly_fixed, changed, still_failing, unfinished, only_here, only_there or unchanged; may stand more than once." placeholder:"CHANGE"`
	Digests bool     `default:"true" negatable:"" help:"Digests of the items and results; they read every item."`
}

// Validate is called by kong.
func (r *runReport) Validate() error {
	if len(r.List) > 0 && r.Against == "" {
		return errors.New("--list lists keys of a comparison: say with what, by --against RUN")
	}
	return nil
}

// Run reports on a run.
func (r *runReport) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	if len(r.List) > 0 {
		return r.list(ctx, term, cl)
	}
	report, err := cl.ReportRun(ctx, r.Ref,
		client.ReportRunParams{Against: r.Against, Digests: r.Digests}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	text := reportHead(&report) + reportItems(&report, term.room()) + reportSteps(&report, term.room()) +
		reportTime(&report) + reportRequests(&report) +
		reportWorkers(&report, term.room()) + reportDigests(&report) + reportAgainst(&report)
	return term.printf("%s", text)
}

// list prints each key that was asked for, as it is for JSON, a line of its own otherwise.
func (r *runReport) list(ctx context.Context, term *console, cl *client.Client) error {
	stream, err := cl.CompareRuns(ctx, r.Ref, client.CompareRunsParams{Against: r.Against, Change: r.List})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return printLines(term, stream, func(d *client.Difference) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s", inert(d.Key), inert(d.Change), standingText(d.There),
			standingText(d.Here))
	})
}

func standingText(s *client.Standing) string {
	switch {
	case s == nil:
		return "-"
	case s.Step != "":
		return inert(string(s.Outcome) + " " + s.ErrorCode + " in " + s.Step)
	case s.ErrorCode != "":
		return inert(string(s.Outcome) + " " + s.ErrorCode)
	default:
		return inert(string(s.Outcome))
	}
}

func reportHead(r *client.ReportDocument) string {
	t := table{}
	t.row("run", r.ID)
	if r.Name != "" {
		t.row("name", inert(r.Name))
	}
	t.row("plan", planText(r.Plan, r.PlanVersion))
	if r.Source != "" {
		t.row("source", inert(r.Source))
	}
	started := moment(r.CreatedAt)
	if r.CreatedBy != "" {
		started += " by " + inert(r.CreatedBy)
	}
	t.row("started", started)
	state := r.State
	if r.FinishedAt != nil {
		state += " at " + moment(*r.FinishedAt)
	}
	t.row("state", state)
	return t.String()
}

// maxReportGroups bounds the groups of errors in a report that people read.
const maxReportGroups = 10

// reportItems counts the items so that the lines below the first add up to it.
func reportItems(r *client.ReportDocument, room int) string {
	t := table{right: map[int]bool{1: true}, room: room}
	t.row("items", count(r.Items))
	t.row("  done", count(r.Done))
	accepted := ""
	if r.Accepted > 0 {
		accepted = "of which " + count(r.Accepted) + " accepted"
	}
	t.row("  failed", count(r.Failed), accepted)
	listed := int64(0)
	for i := range r.Errors.Groups[:min(len(r.Errors.Groups), maxReportGroups)] {
		g := &r.Errors.Groups[i]
		if g.Optional || g.Count == 0 {
			continue
		}
		listed += g.Count
		t.row("    "+g.ID, count(g.Count), short(inert(g.Code), 30)+"  "+inert(g.Shape))
	}
	if rest := r.Errors.Items - listed; rest > 0 {
		t.row("    others", count(rest), "see: tranche run errors "+shortID(r.ID))
	}
	for _, u := range r.Unprocessed {
		t.row("  "+strings.ReplaceAll(u.State, "_", " "), count(u.Items))
	}
	text := "\n" + t.String()
	if r.Skipped > 0 {
		text += fmt.Sprintf("%s duplicates were left out at intake and are no items\n", count(r.Skipped))
	}
	return text
}

// reportSteps accounts for each step, where there are several.
func reportSteps(r *client.ReportDocument, room int) string {
	if len(r.Steps) < 2 {
		return ""
	}
	t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true}, room: room}
	t.row("STEP", "DONE", "FAILED", "LEFT OUT", "MISSING", "REQUESTS", "ASKED", "P50", "P99", "ASKS")
	for i := range r.Steps {
		s := &r.Steps[i]
		t.row(short(inert(s.Name), 24), count(s.Done), count(s.Failed), count(s.Skipped), count(s.Missing), count(s.Requests),
			count(s.Asked), exactly(s.P50Seconds), exactly(s.P99Seconds), targetText(s.Endpoint)+optionalText(s.Optional))
	}
	return "\n" + t.String()
}

func reportTime(r *client.ReportDocument) string {
	t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true}}
	t.row("GENERATION", "WAITING", "WORKING", "PAUSED", "CLOSING", "IN ALL", "DONE", "FAILED", "ITEMS/S", "ENDED")
	for i := range r.Generations {
		g := &r.Generations[i]
		ended := g.Ended
		if g.EndedAt == nil {
			ended = "goes on"
		}
		t.row(fmt.Sprint(g.Generation), exactly(g.WaitingSeconds), exactly(g.WorkingSeconds), exactly(g.PausedSeconds),
			exactly(g.ClosingSeconds), exactly(g.Seconds), count(g.Done), count(g.Failed), pace(g.Rate), ended)
	}
	loaded := "to load"
	if r.Open != nil {
		loaded = "open so far"
	}
	return fmt.Sprintf("\ntime: %s %s, then %s, %s of it paused; %s items/s, best %s\n", exactly(r.LoadingSeconds), loaded,
		exactly(r.Seconds), exactly(r.PausedSeconds), pace(r.Rate), pace(r.BestRate)) + t.String()
}

// exactly writes a time of which milliseconds matter.
func exactly(s float64) string {
	d := seconds(s)
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%.0fms", max(float64(d)/float64(time.Millisecond), 1))
	}
	return span(d)
}

func reportRequests(r *client.ReportDocument) string {
	q := &r.Requests
	var text strings.Builder
	fmt.Fprintf(&text, "\nrequests: %s of %.1f items on average; half took %s or less, 99%% took %s or less\n",
		count(q.Count), q.MeanItems, exactly(q.P50Seconds), exactly(q.P99Seconds))
	t := table{right: map[int]bool{1: true, 2: true}}
	for _, c := range q.ByCause {
		t.row("  "+inert(c.Cause), count(c.Requests), count(c.Items)+" items")
	}
	text.WriteString(t.String())
	fmt.Fprintf(&text, "  %s items were asked for more than once, %s requests were retries\n", count(q.TriedAgain),
		count(q.Retries))
	if q.LostToStreams+q.LostToNodes > 0 {
		fmt.Fprintf(&text, "  %s were lost with a stream, %s with a node, and issued again\n", count(q.LostToStreams),
			count(q.LostToNodes))
	}
	text.WriteString(reportBisections(&r.Bisections))
	return text.String()
}

// reportBisections tells what was found out about chunks that failed as a whole.
func reportBisections(b *client.Bisections) string {
	if len(b.Kinds) == 0 {
		return ""
	}
	var text strings.Builder
	fmt.Fprintf(&text, "  chunks that failed as a whole took %s requests more; %s items of them failed alone\n",
		count(int64(b.Slices)), count(int64(b.Culprits)))
	for _, kind := range slices.Sorted(maps.Keys(b.Kinds)) {
		fmt.Fprintf(&text, "    %s: %s\n", strings.ReplaceAll(inert(kind), "_", " "), count(int64(b.Kinds[kind])))
	}
	return text.String()
}

func reportWorkers(r *client.ReportDocument, room int) string {
	t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true}, room: room}
	for _, list := range []struct {
		title   string
		workers []client.WorkerReport
	}{{"SLOWEST SERVICES", r.Services}, {"ENDPOINTS", r.Endpoints}} {
		if len(list.workers) == 0 {
			continue
		}
		t.row(list.title, "REQUESTS", "ITEMS", "TIME/ITEM", "P99")
		for i := range list.workers {
			w := &list.workers[i]
			t.row(short(inert(w.Name), 40), count(w.Requests), count(w.Items), perItem(1000*w.SecondsPerItem),
				exactly(w.P99Seconds))
		}
	}
	if len(t.rows) == 0 {
		return ""
	}
	return "\n" + t.String()
}

func reportDigests(r *client.ReportDocument) string {
	if r.Digests == nil {
		return ""
	}
	t := table{}
	t.row("sha256 of items", orDash(r.Digests.Items))
	t.row("sha256 of results", orDash(r.Digests.Results))
	text := "\n" + t.String()
	if r.Digests.Note != "" {
		text += inert(r.Digests.Note) + "\n"
	}
	return text
}

// reportAgainst tells what differs from an earlier run.
func reportAgainst(r *client.ReportDocument) string {
	a := r.Against
	if a == nil {
		return ""
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\nagainst run %s\n", a.Against)
	if r.Digests != nil && a.Digests != nil {
		fmt.Fprintf(&text, "  list of items: %s; results: %s\n", sameness(r.Digests.Items, a.Digests.Items),
			sameness(r.Digests.Results, a.Digests.Results))
	}
	if a.Note != "" {
		fmt.Fprintf(&text, "  %s\n", inert(a.Note))
	}
	for i := range a.Changes {
		c := &a.Changes[i]
		fmt.Fprintf(&text, "  %-13s  %s\n", strings.ReplaceAll(inert(c.Change), "_", " "), count(c.Items))
		for j := range c.Examples {
			d := &c.Examples[j]
			fmt.Fprintf(&text, "      %s  %s → %s\n", short(inert(d.Key), 40), short(standingText(d.There), 30),
				short(standingText(d.Here), 30))
		}
	}
	fmt.Fprintf(&text, "every key: tranche run report %s --against %s --list CHANGE\n", shortID(r.ID),
		shortID(a.Against))
	return text.String()
}

// sameness compares two digests.
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
