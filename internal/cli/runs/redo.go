package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	Chunk             *workqueue.Adaptive `help:"Items in a request from now on, 1 to 8192, or auto." placeholder:"N|auto"`
	InFlight          *workqueue.Adaptive `help:"Requests in flight from now on, 1 to 10000, or auto." placeholder:"N|auto"`
	Endpoint          string              `help:"Where requests go from now on; those that are out stay where they are." placeholder:"NAME"`
	Canary            int                 `within:"0," help:"Run a spread sample of N items first, and hold back the rest." placeholder:"N"`
	CanaryAutoApprove bool                `help:"Release the rest if no more of the sample fails than the run's --max-failed allows."`
	Reason            string              `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun            bool                `help:"Change nothing; say how many items and requests it would be."`
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
	rerun := redoing[client.Rerun]{chosen: &r.chosen, dry: r.DryRun, add: addReruns, did: "were set going", each: true,
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
	if again.DryRun {
		text := fmt.Sprintf("dry run: run %s would run %s again, as generation %d: %s over %s\n",
			again.Run, cli.Plural(again.Items, "item"), again.Generation, cli.Plural(again.Slices, "request"),
			cli.Plural(int64(again.Blocks), "block"))
		if again.Held > 0 {
			text += fmt.Sprintf("%s of them first, and %s held back until the canary has passed\n",
				cli.Count(again.Items-again.Held), cli.Count(again.Held))
		}
		return text + resetSteps(again.Steps) + firstKeys(again.Examples, again.Items) + "nothing was changed\n"
	}
	text := fmt.Sprintf("run %s runs %s again, as generation %d\n", again.Run, cli.Plural(again.Items, "item"),
		again.Generation)
	text += resetSteps(again.Steps)
	if again.Held > 0 {
		text += fmt.Sprintf("%s of them run first; %s are held back. ", cli.Count(again.Items-again.Held),
			cli.Count(again.Held))
		next := "When the first have ended:"
		if canaryAutoApprove {
			next = "They follow by themselves, unless more of the first fail than --max-failed of the run allows; then:"
		}
		text += fmt.Sprintf("%s tranche run approve %s\n", next, again.Run)
	}
	return text
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
	Step string `help:"The step whose parts are taken back; may be left out when there is only one." placeholder:"NAME"`
	All  bool   `xor:"which" help:"Of all items."`
	chosen
	failedAt
	Cascade bool   `help:"Redo the steps after in any case, not only where a part that they see has changed."`
	Reason  string `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun  bool   `help:"Change nothing; say what would be done."`
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
	var b strings.Builder
	verb := "resets"
	if done.DryRun {
		verb = "would reset"
		b.WriteString("dry run: ")
	}
	fmt.Fprintf(&b, "run %s %s %s at step %s, as generation %d\n", done.Run, verb, itemCount(done.Items),
		cli.EscapeControl(done.Step), done.Generation)
	b.WriteString(resetSteps(done.Steps))
	for _, note := range done.Notes {
		fmt.Fprintf(&b, "%s\n", cli.EscapeControl(note))
	}
	switch {
	case done.DryRun:
		b.WriteString(firstKeys(done.Examples, done.Items) + "nothing was changed\n")
	case done.Paused != "":
		b.WriteString(pausedStill(done.Paused, done.Run) + "\n")
	default:
		b.WriteString(resetNext(done))
	}
	return b.String()
}

func resetSteps(steps []client.StepReset) string {
	var t cli.Table
	for i := range steps {
		t.Row("  "+steps[i].Step, strings.Join(resetParts(&steps[i]), ", "))
	}
	return t.String()
}

func resetParts(st *client.StepReset) (parts []string) {
	say := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, cli.Count(n)+" "+what)
		}
	}
	say(st.Reset, "to be recomputed")
	if st.Reset > st.Ready {
		say(st.Reset-st.Ready, "of them once the steps before are done")
	}
	say(st.Withdrawn, "withdrawn from requests that were out")
	say(st.Redone, "to be redone in any case")
	say(st.Kept, "kept unless a part changes")
	say(st.Waiting, "waiting for the parts")
	say(st.LeftOut, "left out still")
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	return parts
}

func resetNext(done *client.Reset) string {
	var later []string
	for i := range done.Steps {
		if st := &done.Steps[i]; !st.Named && st.Redone+st.Kept+st.Waiting > 0 {
			later = append(later, cli.EscapeControl(st.Step))
		}
	}
	text := "next: step " + cli.EscapeControl(done.Step) + " does them again"
	if len(later) > 0 {
		when := "where a part changes, and what was not done yet"
		if done.Cascade {
			when = "for all of them"
		}
		text += ", then " + strings.Join(later, ", ") + " " + when
	}
	return text + fmt.Sprintf("; follow it with: tranche run watch %s\n", done.Run)
}

type runCorrect struct {
	runArg
	Items string `aliases:"file" required:"" help:"The items whose data was wrong, as it should be: CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	cli.KeyFlags
	Cascade bool   `help:"Redo the steps after in any case, not only where a part that they see has changed."`
	Reason  string `help:"Why, shown with the items and in the audit log." placeholder:"TEXT"`
	DryRun  bool   `help:"Change nothing; say what would be done."`
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
	text := fmt.Sprintf("%srun %s %s %s corrected, as generation %d", dry, done.Run, verb, itemCount(done.Items),
		done.Generation)
	if done.Key != "" {
		text += "; keys from " + cli.EscapeControl(done.Key)
	}
	text += "\n  " + keysText(done.Examples, done.Items) + "\n"
	if done.Same > 0 {
		text += "  " + itemCount(done.Same) + " given with the data that the run has, and left alone\n"
	}
	if n := done.Items - done.Begun; n > 0 {
		text += "  " + itemCount(n) + " of them had not been begun with\n"
	}
	if done.Begun > 0 {
		text += resetSteps(done.Steps)
	}
	switch {
	case done.DryRun:
		return text + "nothing was changed"
	case done.Paused != "":
		return text + pausedStill(done.Paused, done.Run)
	}
	return text + "follow it with: tranche run watch " + done.Run
}

func pausedStill(why, run string) string {
	return fmt.Sprintf("the run is paused (%s): nothing is rerun until it is resumed: tranche run resume %s",
		cli.EscapeControl(why), run)
}
