package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

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
		return errors.New("say of which items: --all, " + chooseOf)
	}
	return r.Check(r.DryRun)
}

func (r *runReset) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	reset := redoing[client.Reset]{chosen: &r.chosen, dry: r.DryRun, add: addResets, did: "were reset", each: true,
		items: func(done *client.Reset) int64 { return done.Items },
		ask: func(ctx context.Context, keys []string, dry bool, options ...client.CallOption) (done client.Reset, err error) {
			set := client.ResetSettings{Step: r.Step, All: r.All, FailedAt: r.FailedAt, Cascade: r.Cascade, DryRun: dry,
				Reason: r.Reason}
			if err := r.fill(&set, keys); err != nil {
				return done, err
			}
			return cl.Reset(ctx, r.Ref, set, options...)
		}}
	done, err := reset.do(ctx, term)
	if err != nil {
		return err
	}
	term.Warn(done.Warnings)
	return r.end(ctx, term, cl, done.Run, func() error { return reset.tell(term, &done, resetText) })
}

// addResets is what two resets of a run did, one after the other; the warnings are those of the second.
func addResets(a, b *client.Reset) client.Reset {
	sum := *b
	sum.Examples = a.Examples
	sum.Items, sum.Blocks = a.Items+b.Items, a.Blocks+b.Blocks
	sum.Notes = slices.Concat(a.Notes, b.Notes)
	sum.Steps = addSteps(a.Steps, b.Steps)
	return sum
}

// addSteps adds up what became of the steps, by their names.
func addSteps(a, b []client.StepReset) []client.StepReset {
	for _, st := range b {
		i := slices.IndexFunc(a, func(of client.StepReset) bool { return of.Step == st.Step })
		if i < 0 {
			a = append(a, st)
			continue
		}
		to := &a[i]
		to.Reset, to.Ready, to.Withdrawn = to.Reset+st.Reset, to.Ready+st.Ready, to.Withdrawn+st.Withdrawn
		to.Redone, to.Kept = to.Redone+st.Redone, to.Kept+st.Kept
		to.Waiting, to.LeftOut = to.Waiting+st.Waiting, to.LeftOut+st.LeftOut
	}
	return a
}

// resetText says what was taken back, or would be, and what comes next.
func resetText(done *client.Reset) string {
	var b strings.Builder
	verb := "resets"
	if done.DryRun {
		verb = "would reset"
		b.WriteString("dry run: ")
	}
	fmt.Fprintf(&b, "run %s %s %s at step %s, as generation %d\n", done.Run, verb, itemCount(done.Items),
		cli.Inert(done.Step), done.Generation)
	b.WriteString(resetSteps(done.Steps))
	for _, note := range done.Notes {
		fmt.Fprintf(&b, "%s\n", cli.Inert(note))
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

// resetSteps is a line for each step: what becomes of the items there.
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
	say(st.Reset, "to be done again")
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

// resetNext says what happens now.
func resetNext(done *client.Reset) string {
	var later []string
	for i := range done.Steps {
		if st := &done.Steps[i]; !st.Named && st.Redone+st.Kept+st.Waiting > 0 {
			later = append(later, cli.Inert(st.Step))
		}
	}
	text := "next: step " + cli.Inert(done.Step) + " does them again"
	if len(later) > 0 {
		when := "where a part changes, and what was not done yet"
		if done.Cascade {
			when = "for all of them"
		}
		text += ", then " + strings.Join(later, ", ") + " " + when
	}
	return text + fmt.Sprintf("; follow it with: tranche run watch %s\n", done.Run)
}
