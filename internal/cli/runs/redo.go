package runs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type runRerun struct {
	runArg
	Failed bool `xor:"which" help:"All items that failed."`
	chosen
	failedAt
	Step              string              `help:"Of this step; without it, what failed at any step." placeholder:"NAME"`
	Chunk             *workqueue.Adaptive `help:"Items in each new request, 1 to 8192, or auto." placeholder:"N|auto"`
	InFlight          *workqueue.Adaptive `help:"Requests in flight, 1 to 10000, or auto." placeholder:"N|auto"`
	Endpoint          string              `help:"Where new requests go; requests in flight stay." placeholder:"NAME"`
	Canary            int                 `within:"0," help:"Run a spread sample of N items first, and hold back the rest." placeholder:"N"`
	CanaryAutoApprove bool                `help:"Release the rest if no more of the sample fails than the run's --max-failed allows."`
	Reason            string              `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun            bool                `help:"Change nothing; show how many items and requests it would be."`
	waitFlags
}

func (r *runRerun) Validate() error {
	switch {
	case !r.Failed && r.none():
		return errors.New("say which items: --failed, " + chooseOf)
	case r.CanaryAutoApprove && r.Canary == 0:
		return errors.New("--canary-auto-approve needs --canary N")
	}
	sizing := gather.Overrides{StepOverrides: workqueue.StepOverrides{Chunk: r.Chunk, InFlight: r.InFlight}}
	return cmp.Or(r.Check(r.DryRun), flagError(sizing.Validate()))
}

func (r *runRerun) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	rerun := redoing[client.Rerun]{chosen: &r.chosen, dry: r.DryRun, add: addReruns, did: "were rerun", each: true,
		items: func(again *client.Rerun) int64 { return again.Items }, ask: asking(r, r.Ref, cl.Rerun)}
	if r.Canary > 0 {
		rerun.once = "--canary"
	}
	again, err := rerun.do(ctx, term)
	if err != nil {
		return err
	}
	term.Warn(again.Warnings)
	return r.end(ctx, term, cl, again.Run, func() error {
		return rerun.tell(term, &again, func(again *client.Rerun) string { return rerunText(again, r.CanaryAutoApprove) })
	})
}

func rerunText(again *client.Rerun, canaryAutoApprove bool) string {
	first := again.Items - again.Held
	if again.DryRun {
		return cli.Text("dry run: run %v would rerun %v, as generation %v: %v over %v\n", again.Run,
			itemCount(again.Items), again.Generation, cli.Plural(again.Slices, "request"),
			cli.Plural(int64(again.Blocks), "block")) +
			cli.If(again.Held > 0, "%v of them first, and %v held back until the canary has passed\n", first, again.Held) +
			resetSteps(again.Steps) + firstKeys(again.Examples, again.Items) + "nothing was changed\n"
	}
	next := "When the first have ended:"
	if canaryAutoApprove {
		next = "The rest follow automatically, unless more of the first fail than --max-failed of the run allows; then:"
	}
	return cli.Text("run %v reruns %v, as generation %v\n", again.Run, itemCount(again.Items), again.Generation) +
		resetSteps(again.Steps) + cli.If(again.Held > 0,
		"%v of them run first; %v are held back. %v tranche run approve %v\n", first, again.Held, next, again.Run)
}

func addReruns(sum, one *client.Rerun) client.Rerun {
	both := *one
	both.Items, both.Slices, both.Blocks = sum.Items+one.Items, sum.Slices+one.Slices, sum.Blocks+one.Blocks
	both.Steps = addSteps(sum.Steps, one.Steps)
	both.Examples = sum.Examples
	return both
}

type runReset struct {
	runArg
	Step string `help:"Step whose results to discard; optional if there is only one." placeholder:"NAME"`
	All  bool   `xor:"which" help:"Of all items."`
	chosen
	failedAt
	Cascade bool   `help:"Redo the dependent steps in any case, not only where a part that they see has changed."`
	Reason  string `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun  bool   `help:"Change nothing; show what would be done."`
	waitFlags
}

func (r *runReset) Validate() error {
	if !r.All && r.none() {
		return errors.New("choose items: --all, " + chooseOf)
	}
	return r.Check(r.DryRun)
}

func (r *runReset) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	reset := redoing[client.Reset]{chosen: &r.chosen, dry: r.DryRun, add: addResets, did: "were reset", each: true,
		items: func(done *client.Reset) int64 { return done.Items }, ask: asking(r, r.Ref, cl.Reset)}
	done, err := reset.do(ctx, term)
	if err != nil {
		return err
	}
	term.Warn(done.Warnings)
	return r.end(ctx, term, cl, done.Run, func() error { return reset.tell(term, &done, resetText) })
}

func addResets(a, b *client.Reset) client.Reset {
	sum := *b
	sum.Examples = a.Examples
	sum.Items, sum.Blocks = a.Items+b.Items, a.Blocks+b.Blocks
	sum.Notes = slices.Concat(a.Notes, b.Notes)
	sum.Steps = addSteps(a.Steps, b.Steps)
	return sum
}

func addSteps(a, b []client.StepReset) []client.StepReset {
	return addByName(a, b, func(st *client.StepReset) string { return st.Step }, func(to, st *client.StepReset) {
		to.Reset, to.Ready, to.Withdrawn = to.Reset+st.Reset, to.Ready+st.Ready, to.Withdrawn+st.Withdrawn
		to.Redone, to.Kept = to.Redone+st.Redone, to.Kept+st.Kept
		to.Waiting, to.LeftOut = to.Waiting+st.Waiting, to.LeftOut+st.LeftOut
	})
}

func resetText(done *client.Reset) string {
	dry, verb := "", "resets"
	if done.DryRun {
		dry, verb = "dry run: ", "would reset"
	}
	text := cli.Text("%vrun %v %v %v at step %v, as generation %v\n", dry, done.Run, verb, itemCount(done.Items),
		done.Step, done.Generation) + resetSteps(done.Steps) +
		cli.Each(done.Notes, func(note *string) string { return cli.Text("%v\n", note) })
	switch {
	case done.DryRun:
		return text + firstKeys(done.Examples, done.Items) + "nothing was changed\n"
	case done.Paused != "":
		return text + pausedStill(done.Paused, done.Run) + "\n"
	}
	return text + resetNext(done)
}

func resetSteps(steps []client.StepReset) string {
	var t cli.Table
	for i := range steps {
		t.Row("  "+steps[i].Step, resetParts(&steps[i]))
	}
	return t.String()
}

func resetParts(st *client.StepReset) string {
	return cmp.Or(cli.Join(", ",
		cli.If(st.Reset > 0, "%v to be recomputed", st.Reset),
		cli.If(st.Reset > st.Ready, "%v of them once the steps before are done", st.Reset-st.Ready),
		cli.If(st.Withdrawn > 0, "%v withdrawn from requests in flight", st.Withdrawn),
		cli.If(st.Redone > 0, "%v to be redone in any case", st.Redone),
		cli.If(st.Kept > 0, "%v kept unless a part changes", st.Kept),
		cli.If(st.Waiting > 0, "%v waiting for the parts", st.Waiting),
		cli.If(st.LeftOut > 0, "%v left out still", st.LeftOut)), "nothing")
}

func resetNext(done *client.Reset) string {
	var later []string
	for i := range done.Steps {
		if st := &done.Steps[i]; !st.Named && st.Redone+st.Kept+st.Waiting > 0 {
			later = append(later, st.Step)
		}
	}
	when := "where a part changes, and what was not done yet"
	if done.Cascade {
		when = "for all of them"
	}
	return cli.Text("next: step %v redoes them%v; follow it with: tranche run watch %v\n", done.Step,
		cli.If(len(later) > 0, ", then %v %v", strings.Join(later, ", "), when), done.Run)
}

type runCorrect struct {
	runArg
	Items string `aliases:"file" required:"" help:"Items with corrected data: CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	cli.KeyFlags
	Cascade bool   `help:"Redo the dependent steps in any case, not only where a part that they see has changed."`
	Reason  string `help:"Why, shown with the items and in the audit log." placeholder:"TEXT"`
	DryRun  bool   `help:"Change nothing; show what would be done."`
	waitFlags
	cli.RowFlags
	Contract string `enum:",reject,warn,off" default:"" help:"When no item has a field that the service of a step requires: reject, warn or off." placeholder:"WHAT"`
}

func (r *runCorrect) Validate() error {
	return r.Check(r.DryRun)
}

func (r *runCorrect) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	params := client.CorrectParams{Key: r.Key, Format: r.Format, Cascade: r.Cascade, DryRun: r.DryRun,
		Reason: r.Reason, Encoding: r.Encoding, Header: r.HeaderParam(), Delimiter: r.Delimiter,
		Columns: r.Columns, Rename: r.Rename, Types: r.Types, Contract: r.Contract}
	done, err := cli.Upload(term, "--items", r.Items, func(items io.Reader) (client.Corrected, error) {
		return cl.Correct(ctx, r.Ref, params, "application/octet-stream", items)
	})
	if err != nil {
		return err
	}
	if !term.JSON {
		term.Warn(done.Warnings)
	}
	return r.end(ctx, term, cl, done.Run, func() error { return cli.Say(term, correctText)(done, nil) })
}

func correctText(done *client.Corrected) string {
	verb, dry := "has", ""
	if done.DryRun {
		verb, dry = "would have", "dry run: "
	}
	begun := ""
	if done.Begun > 0 {
		begun = resetSteps(done.Steps)
	}
	unbegun := done.Items - done.Begun
	text := cli.Text("%vrun %v %v %v corrected, as generation %v%v", dry, done.Run, verb, itemCount(done.Items),
		done.Generation, cli.If(done.Key != "", "; keys from %v", done.Key)) +
		"\n  " + keysText(done.Examples, done.Items) + "\n" +
		cli.If(done.Same > 0, "  %v given with the data that the run has, and skipped\n", itemCount(done.Same)) +
		cli.If(unbegun > 0, "  %v of them had not begun\n", itemCount(unbegun)) + begun
	switch {
	case done.DryRun:
		return text + "nothing was changed"
	case done.Paused != "":
		return text + pausedStill(done.Paused, done.Run)
	}
	return text + "follow it with: tranche run watch " + done.Run
}

func pausedStill(why, run string) string {
	return cli.Text("the run is paused (%v): nothing is rerun until it is resumed: tranche run resume %v", why, run)
}
