package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

type runList struct {
	Limit int `default:"20" help:"How many." placeholder:"N"`
}

// Validate is called by kong.
func (r *runList) Validate() error {
	if r.Limit < 1 || r.Limit > workqueue.MaxRuns {
		return fmt.Errorf("--limit is %d; it must lie between 1 and %d", r.Limit, workqueue.MaxRuns)
	}
	return nil
}

// Run lists runs.
func (r *runList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	list, err := cl.Runs(ctx, r.Limit)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(list)
	}
	if len(list.Runs) == 0 {
		return term.printf("no runs yet; start one with: tranche run start --endpoint NAME --items FILE\n")
	}
	t := table{right: map[int]bool{3: true, 4: true, 5: true}}
	t.row("RUN", "NAME", "STATE", "ITEMS", "DONE", "FAILED", "STARTED")
	for i := range list.Runs {
		run := &list.Runs[i]
		name := run.Name
		if name == "" {
			name = "(" + run.Plan + ")"
		}
		t.row(shortID(run.ID.String()), short(inert(name), 20), run.State, count(run.Items), count(run.Done),
			count(run.Failed), moment(run.CreatedAt)[5:16])
	}
	return term.printf("%s", t.String())
}

// shortID is the time in an id, to the millisecond: enough to name a run.
func shortID(id string) string { return id[:min(len(id), 13)] }

type runShow struct {
	Ref string `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
}

// Run shows a run.
func (r *runShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	run, err := cl.Run(ctx, r.Ref)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(run)
	}
	return term.printf("%s%s", runHead(&run), runSteps(&run))
}

func runHead(run *api.RunDocument) string {
	t := table{}
	t.row("run", run.ID.String())
	if run.Name != "" {
		t.row("name", inert(run.Name))
	}
	t.row("plan", planText(&run.RunSummary))
	state := run.State
	if run.Hold != nil {
		state += heldText(run.Hold, run.At)
	}
	if run.Generation > 1 {
		state += fmt.Sprintf(", generation %d", run.Generation)
	}
	t.row("state", state)
	t.row("items", fmt.Sprintf("%s: %s done, %s failed, %s to go", count(run.Items), count(run.Done), count(run.Failed),
		count(run.Missing())))
	if run.Skipped > 0 {
		t.row("skipped", count(run.Skipped)+" duplicates at intake")
	}
	if run.MaxFailed != "" {
		t.row("max failed", maxFailedText(run))
	}
	if run.Canary != nil {
		t.row("canary", canaryText(run.Canary))
	}
	if run.Priority != 0 {
		t.row("priority", fmt.Sprint(run.Priority))
	}
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

// planText is a plan with the version that the run started with.
func planText(run *workqueue.RunSummary) string {
	if run.Version == 0 {
		return inert(run.Plan)
	}
	return fmt.Sprintf("%s, version %d", inert(run.Plan), run.Version)
}

// runTimes adds when the run began, how long it took so far, and how fast it goes.
func runTimes(t *table, run *api.RunDocument) {
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
		t.row("rate", pace(run.Rate)+" items/s"+eta)
	}
}

func runSteps(run *api.RunDocument) string {
	t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true}}
	t.row("STEP", "WAITING", "READY", "IN FLIGHT", "RETRY", "DONE", "FAILED")
	settings := table{}
	for i := range run.Steps {
		s := &run.Steps[i]
		t.row(short(inert(s.Name), 24), count(s.Waiting), count(s.Ready), count(s.InFlight), count(s.Scheduled),
			count(s.Done), count(s.Failed))
		for i, line := range settingsText(&s.Settings) {
			name := ""
			if i == 0 {
				name = short(inert(s.Name), 24)
			}
			settings.row("  "+name, line)
		}
	}
	return "\n" + t.String() + "\nsettings\n" + settings.String()
}

type runItem struct {
	Ref string `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	Key string `arg:"" help:"The item's key."`
}

// Run shows an item.
func (r *runItem) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.Item(ctx, r.Ref, r.Key)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(found)
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

// maxShown bounds the characters of a payload or result on a terminal. --json has all of it.
const maxShown = 2000

func itemText(item *workqueue.ItemView) string {
	t := table{}
	t.row("key", inert(item.Key))
	t.row("ordinal", fmt.Sprint(item.Ordinal))
	t.row("state", string(item.State))
	t.row("payload", short(inert(string(item.Payload)), maxShown))
	var text strings.Builder
	text.WriteString(t.String())
	for i := range item.Steps {
		text.WriteString("\n" + stepText(&item.Steps[i]))
	}
	return text.String()
}

func stepText(step *workqueue.ItemStep) string {
	t := table{}
	t.row("step", inert(step.Name)+" on endpoint "+inert(step.Endpoint))
	t.row("state", strings.ReplaceAll(step.State, "_", " "))
	switch {
	case step.Error != nil:
		t.row("error", inert(step.Error.Code)+": "+short(inert(step.Error.Message), maxShown))
	case len(step.ResultBytes) > 0:
		t.row("result", fmt.Sprintf("%s bytes of %s", count(int64(len(step.ResultBytes))), inert(step.ContentType)))
	case len(step.Result) > 0:
		t.row("result", short(inert(string(step.Result)), maxShown))
	}
	if len(step.Attempts) == 0 {
		return t.String() + "no attempts yet\n"
	}
	a := table{right: map[int]bool{0: true, 4: true}}
	a.row("TRY", "SLICE", "WHY", "OUTCOME", "ITEMS", "SENT", "TOOK", "SERVICE")
	for i := range step.Attempts {
		at := &step.Attempts[i]
		sent, took := "-", "-"
		if at.SentAt != nil {
			sent = at.SentAt.Local().Format("01-02 15:04:05")
			if at.EndedAt != nil {
				took = span(at.EndedAt.Sub(*at.SentAt).Round(time.Millisecond))
			}
		}
		a.row(fmt.Sprint(at.Attempt), at.Slice.String()[:8], inert(at.Cause), at.Outcome, count(int64(at.Items)), sent,
			took, short(inert(at.Service), 24))
	}
	return t.String() + "\n" + a.String() + attemptErrors(step.Attempts)
}

// attemptErrors says why attempts failed that were not the last, those in a row with the same error in one line.
func attemptErrors(attempts []workqueue.Attempt) string {
	var b strings.Builder
	for i := 0; i < len(attempts); {
		first := &attempts[i]
		last := first
		for i++; i < len(attempts) && first.Error != nil && sameError(first, &attempts[i]); i++ {
			last = &attempts[i]
		}
		if first.Error == nil || first.Outcome == "failed" {
			continue
		}
		tries := fmt.Sprintf("try %d", first.Attempt)
		if last != first {
			tries = fmt.Sprintf("tries %d to %d", first.Attempt, last.Attempt)
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", tries, inert(first.Error.Code), short(inert(first.Error.Message), 200))
	}
	return b.String()
}

func sameError(a, b *workqueue.Attempt) bool {
	return b.Error != nil && *a.Error == *b.Error && a.Generation == b.Generation && b.Outcome != "failed"
}
