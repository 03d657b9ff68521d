package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

type whichRuns struct {
	Ref    string `arg:"" optional:"" name:"run" help:"ID, part of an ID, name, or last."`
	All    bool   `help:"Every run that is in progress."`
	Reason string `help:"Why, shown with the run and in the audit log." placeholder:"TEXT"`
}

func (w *whichRuns) Validate() error {
	if w.All == (w.Ref != "") {
		return errors.New("name a run, or give --all for every run")
	}
	return nil
}

func (w *whichRuns) settings() client.ControlSettings {
	return client.ControlSettings{Reason: w.Reason}
}

func (w *whichRuns) do(ctx context.Context, term *cli.Console,
	every func(context.Context, client.ControlAll, ...client.CallOption) (client.Controlled, error),
	one func() (client.Controlled, error), text func(*client.Controlled) string,
) error {
	var done client.Controlled
	var err error
	if w.All {
		done, err = every(ctx, client.ControlAll{All: true, Reason: w.Reason})
	} else {
		done, err = one()
	}
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	for _, l := range done.Skipped {
		term.Note("run %s is unchanged: %s", l.Run, l.Why)
	}
	return term.Printf("%s\n", text(&done))
}

func runsText(done *client.Controlled) string {
	if done.Run != nil {
		return "run " + *done.Run
	}
	return cli.Plural(int64(len(done.Runs)), "run")
}

type runPause struct{ whichRuns }

func (r *runPause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.PauseAllRuns, func() (client.Controlled, error) {
		return cl.PauseRun(ctx, r.Ref, r.settings())
	}, pausedText)
}

func pausedText(done *client.Controlled) string {
	if len(done.Runs) == 0 {
		return "no run was paused: none is in progress that is not paused already"
	}
	text := runsText(done) + " paused: nothing more is sent to services" + cli.If(done.Slices > 0,
		"\nin flight: %v in %v; their answers are still recorded", itemCount(done.Items), cli.Plural(done.Slices, "request"))
	if done.Run == nil {
		return text + "\nnew runs are not paused\nresume with: tranche run resume --all"
	}
	return text + "\nresume with: tranche run resume " + *done.Run
}

type runResume struct {
	whichRuns
	MaxFailed *string `help:"Allow this many failed items: 500, 1% or none." placeholder:"N"`
}

func (r *runResume) Validate() error {
	if err := r.whichRuns.Validate(); err != nil {
		return err
	}
	if r.MaxFailed == nil {
		return nil
	}
	if r.All {
		return errors.New("--max-failed is for one run; name it")
	}
	if _, err := workqueue.ParseMaxFailed(*r.MaxFailed); err != nil {
		return fmt.Errorf("--max-failed %s: %w", *r.MaxFailed, err)
	}
	return nil
}

func (r *runResume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.ResumeAllRuns, func() (client.Controlled, error) {
		return cl.ResumeRun(ctx, r.Ref, client.ResumeSettings{Reason: r.Reason, MaxFailed: r.MaxFailed})
	}, func(done *client.Controlled) string {
		switch {
		case len(done.Runs) == 0:
			return "no run was resumed"
		case done.Items > 0:
			return cli.Text("%v continues, though it was cancelled: %v had no outcome", runsText(done), itemCount(done.Items)) +
				cli.If(done.Paused != "", "\nit stays paused: %v\napprove with: tranche run approve %v", done.Paused, done.Runs[0])
		case done.Run == nil && len(done.Runs) > 1:
			return runsText(done) + " resumed: their items are sent to services again"
		}
		return runsText(done) + " resumed: its items are sent to services again"
	})
}

type runCancel struct{ whichRuns }

func (r *runCancel) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.CancelAllRuns, func() (client.Controlled, error) {
		return cl.CancelRun(ctx, r.Ref, r.settings())
	}, func(done *client.Controlled) string {
		if len(done.Runs) == 0 {
			return "no run was cancelled: none is in progress"
		}
		return fmt.Sprintf("%s cancelled: %s left without an outcome", runsText(done), cli.Plural(done.Items, "item"))
	})
}

type runApprove struct {
	whichRuns
	Step           string    `help:"Start this step, which waits for approval (barrier: approve). Without it, release what a canary holds back." placeholder:"NAME"`
	IfWaitingSince time.Time `help:"With --step: since when it waits, as --dry-run printed; refused if it has begun a new wait since." placeholder:"TIME"`
	DryRun         bool      `help:"With --step: approve nothing; show what waits there, a sample, and differences from the run before."`
}

func (r *runApprove) Validate() error {
	if err := r.whichRuns.Validate(); err != nil {
		return err
	}
	switch {
	case r.Step != "" && r.All:
		return errors.New("--step is of one run; name it")
	case !r.IfWaitingSince.IsZero() && r.Step == "":
		return errors.New("--if-waiting-since says how a step was looked at; name it by --step NAME")
	case r.DryRun && r.Step == "":
		return errors.New("--dry-run shows what waits at a step; name it by --step NAME")
	}
	return nil
}

func (r *runApprove) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.DryRun {
		return r.show(ctx, term, cl)
	}
	return r.do(ctx, term, cl.ApproveAllRuns, func() (client.Controlled, error) {
		set := client.ApproveSettings{Reason: r.Reason, Step: r.Step}
		if !r.IfWaitingSince.IsZero() {
			set.IfWaitingSince = &r.IfWaitingSince
		}
		return cl.ApproveRun(ctx, r.Ref, set)
	}, func(done *client.Controlled) string {
		switch {
		case len(done.Runs) == 0:
			return "no run waits for approval"
		case r.Step != "":
			return fmt.Sprintf("%s: step %s approved for %s", runsText(done), r.Step, cli.Plural(done.Items, "item"))
		}
		return fmt.Sprintf("%s approved: %s released", runsText(done), cli.Plural(done.Items, "item"))
	})
}

func (r *runApprove) show(ctx context.Context, term *cli.Console, cl *client.Client) error {
	gate, err := cl.GetGate(ctx, r.Ref, client.GetGateParams{Step: r.Step})
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	text := gateText(&gate, term.Room())
	if gate.State == "waiting" && gate.Since != nil && gate.Refused == "" {
		text += fmt.Sprintf("approve exactly this: tranche run approve %s --step %s --if-waiting-since %s\n",
			cli.ShortID(gate.Run), health.ShellWord(gate.Step), gate.Since.UTC().Format(time.RFC3339Nano))
	}
	if gate.Earlier == nil || gate.State == "shut" {
		return term.Printf("%s", text)
	}
	report, err := cl.ReportRun(ctx, gate.Run, client.ReportRunParams{Against: gate.Earlier.Run, Before: gate.Step})
	if err != nil {
		return err
	}
	return term.Printf("%s%s", text, reportAgainst(&report))
}

func gateText(g *client.GateDocument, room int) string {
	state, by := string(g.State), "a user with the operator role"
	switch g.State {
	case "waiting":
		state = "waits for approval" + cli.If(g.Since != nil, " since %v", g.Since)
	case "approved":
		state += " by " + g.ApprovedBy
	case "shut":
		state = "not yet: earlier steps have not ended for all items"
	}
	if g.Approvers == "other" {
		by = "anyone without a part in it"
	}
	t := cli.NewTable("|", room)
	t.Row("step", g.Step)
	t.Row("state", state)
	t.Row("by", by)
	t.Field("not by you", g.Refused)
	for _, a := range g.Acts {
		t.Say("part in it", "%v: %v, %v", a.Actor, a.Action, a.At)
	}
	t.Say("items", "%v continue, %v are left out", g.Items, g.LeftOut)
	for _, b := range g.Before {
		t.Say("before", "%v: %v done, %v failed, %v left out", b.Step, b.Done, b.Failed, b.Skipped)
	}
	for i := range g.Sample {
		t.Row("sample", sampleText(&g.Sample[i]))
	}
	return t.String() + cli.If(len(g.Sample) > 0,
		"see one: tranche run item %[1]v KEY; keep it: tranche run export %[1]v --dir DIR --step STEP\n", cli.ShortID(g.Run))
}

func sampleText(item *client.GateItem) string {
	var parts []string
	for _, r := range item.Results {
		parts = append(parts, cli.Text("%v: %v, %v bytes", r.Step, cmp.Or(r.ContentType, "JSON"), r.Bytes))
	}
	return cli.Short(cli.EscapeControl(item.Key), 40) + "  " + strings.Join(parts, "; ")
}

type runDelete struct {
	runArg
	Reason string `help:"Why, shown to callers of the deleted run and in the audit log." placeholder:"TEXT"`
	DryRun bool   `help:"Change nothing; show what would be deleted."`
}

func (r *runDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.DeleteSettings{DryRun: r.DryRun, Reason: r.Reason}
	err := cli.Say(term, deletedText)(cl.DeleteRun(ctx, r.Ref, set))
	if err == nil && !r.DryRun && !term.JSON {
		term.Note("the leader deletes its rows now, in small pieces; see tranche retention show")
	}
	return err
}

func deletedText(d *client.RunDeleted) string {
	text := cli.Text("run %v%v of plan %v, %v %v: %v in %v steps, about %v bytes", d.Run,
		cli.If(d.Name != "", " (%v)", d.Name), d.Plan, d.State, d.FinishedAt, itemCount(d.Items), d.Steps, d.Bytes) +
		cli.If(d.DeadLetters > 0, "\nwith %v dead letters; %v of them wait for an operator", d.DeadLetters,
			d.WaitingLetters) +
		cli.If(d.Quarantine > 0, "\nwith it %v messages in quarantine", d.Quarantine)
	if d.DryRun {
		return "dry run, would be deleted: " + text + "\nnothing was changed"
	}
	return "deleted: " + text
}

type runSet struct {
	runArg
	Step      string            `help:"Settings of this step, when there are several." placeholder:"NAME"`
	Priority  *int              `help:"Runs with a greater number go first." placeholder:"N"`
	MaxFailed *string           `help:"Failed items that pause the run: more than 500, or 1%; or none." placeholder:"N|P%"`
	DoneBy    *string           `help:"Deadline, which the pace follows: 06:00 by the clock here, 06:00 Europe/Berlin, a time, or none." placeholder:"TIME"`
	Gentle    *bool             `negatable:"" help:"With --done-by: only as many requests in flight as it needs."`
	Reason    string            `help:"Why, for the audit log." placeholder:"TEXT"`
	IfWas     map[string]string `help:"Refuse the change unless the setting has this value; repeatable." placeholder:"NAME=VALUE"`
	workqueue.StepOverrides
}

func (r *runSet) Validate() error {
	if reflect.DeepEqual(*r, runSet{runArg: r.runArg, Step: r.Step, Reason: r.Reason, IfWas: r.IfWas}) {
		return errors.New("say what to set: --chunk, --in-flight, --rate, --priority, --done-by, --max-failed and others")
	}
	r.DoneBy = cli.DoneBy(r.DoneBy)
	laid := gather.Overrides{Priority: r.Priority, DoneBy: r.DoneBy, StepOverrides: r.StepOverrides}
	return flagError(laid.Validate())
}

func (r *runSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	var changes client.RunChanges
	if err := cli.Fill(&changes, r); err != nil {
		return err
	}
	done, err := cl.SetRun(ctx, r.Ref, changes)
	term.Warn(done.Warnings)
	return cli.Say(term, setText)(done, err)
}

func setText(done *client.ChangedRun) string {
	if len(done.After) == 0 {
		return fmt.Sprintf("run %s has these settings already; nothing was changed", done.Run)
	}
	value := func(name string, v any) string {
		text := fmt.Sprint(v)
		if at, err := time.Parse(time.RFC3339, text); err == nil && name == "done_by" {
			return cli.Ahead(at)
		}
		return cmp.Or(text, "none")
	}
	var t cli.Table
	for _, name := range slices.Sorted(maps.Keys(done.After)) {
		t.Row("  "+strings.ReplaceAll(name, "_", " "), value(name, done.Before[name])+" → "+value(name, done.After[name]))
	}
	ofRun := func(name string, _ any) bool { // and not of the step
		return slices.Contains([]string{"priority", "max_failed", "done_by", "gentle"}, name)
	}
	settings := maps.Clone(done.After)
	maps.DeleteFunc(settings, ofRun)
	return cli.Join("\n", cli.Text("run %v%v", done.Run, cli.If(len(settings) > 0, ", step %v", done.Step)),
		strings.TrimSuffix(t.String(), "\n"),
		cli.If(len(settings) > 0, "applies to new requests; those in flight are unchanged"),
		cli.If(done.Paused != "", "the run stays paused %v\nresume with: tranche run resume %v", done.Paused, done.Run))
}
