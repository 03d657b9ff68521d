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
	Ref     string   `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Step    string   `help:"The step whose parts are taken back; may be left out when there is only one." placeholder:"NAME"`
	All     bool     `xor:"which" help:"Of all items."`
	Key     []string `xor:"which" sep:"none" help:"Of this item; may stand more than once." placeholder:"K"`
	Keys    string   `xor:"which" help:"Of the items of a file with a key a line; - is standard input." placeholder:"FILE"`
	Code    []string `xor:"which" sep:"none" help:"Of the items that failed at the step with this code; may stand more than once." placeholder:"C"`
	Cascade bool     `help:"Redo the steps after in any case, not only where a part that they see has changed."`
	Reason  string   `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun  bool     `help:"Change nothing; say what would be done."`
	Wait    bool     `help:"Watch until the run ends; exit 3 when items failed."`
}

// Validate is called by kong.
func (r *runReset) Validate() error {
	switch {
	case !r.All && len(r.Key) == 0 && r.Keys == "" && len(r.Code) == 0:
		return errors.New("say of which items: --key K, --keys FILE, --code C or --all")
	case r.DryRun && r.Wait:
		return errors.New("give either --dry-run or --wait: a dry run sets nothing going that could be waited for")
	}
	return nil
}

// Run takes parts of a step back.
func (r *runReset) Run(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	var done client.Reset
	if r.Keys == "" {
		done, err = cl.Reset(ctx, r.Ref, r.settings(), term.Keep())
	} else {
		done, err = r.byFile(ctx, term, cl)
	}
	if err != nil {
		return err
	}
	for _, w := range done.Warnings {
		term.Note("warning: %s", w)
	}
	if term.JSON && !r.Wait && r.Keys == "" {
		return term.Sent()
	}
	if term.JSON && !r.Wait {
		return term.Document(done) // the sum of several
	}
	if !term.JSON {
		if err := term.Printf("%s", resetText(&done)); err != nil {
			return err
		}
	}
	if !r.Wait {
		return nil
	}
	return watch(ctx, term, cl, done.Run)
}

func (r *runReset) settings() client.ResetSettings {
	return client.ResetSettings{Step: r.Step, All: r.All, Keys: r.Key, Codes: r.Code, Cascade: r.Cascade, DryRun: r.DryRun,
		Reason: r.Reason}
}

// byFile resets the items of a key file. A file with more keys than a request may have goes in several requests, a
// generation each; all of them are tried before the first one changes anything.
func (r *runReset) byFile(ctx context.Context, term *cli.Console, cl *client.Client) (client.Reset, error) {
	parts, err := cli.ReadKeys(r.Keys, term.In)
	if err != nil {
		return client.Reset{}, err
	}
	if len(parts) > 1 && !r.DryRun {
		if _, err := r.each(ctx, cl, parts, true); err != nil {
			return client.Reset{}, err
		}
		term.Note("%s has keys for %d requests; each is a generation", r.Keys, len(parts))
	}
	return r.each(ctx, cl, parts, r.DryRun)
}

// each sends the parts and adds up what they did.
func (r *runReset) each(ctx context.Context, cl *client.Client, parts [][]string, dry bool) (client.Reset, error) {
	var sum client.Reset
	for i, keys := range parts {
		set := r.settings()
		set.Keys, set.DryRun = keys, dry
		one, err := cl.Reset(ctx, r.Ref, set)
		if err != nil && i > 0 && !dry {
			return sum, fmt.Errorf("request %d of %d, after %s items were reset: %w", i+1, len(parts), cli.Count(sum.Items), err)
		}
		if err != nil {
			return sum, err
		}
		sum = addResets(&sum, &one)
	}
	return sum, nil
}

// addResets is what two resets of a run did, one after the other; the warnings are those of the second.
func addResets(a, b *client.Reset) client.Reset {
	sum := *b
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
		b.WriteString("nothing was changed\n")
	case done.Paused != "":
		fmt.Fprintf(&b, "the run is paused (%s): nothing is done again until it is resumed: tranche run resume %s\n",
			cli.Inert(done.Paused), done.Run)
	default:
		b.WriteString(resetNext(done))
	}
	return b.String()
}

// resetSteps is a line for each step: what becomes of the items there.
func resetSteps(steps []client.StepReset) string {
	var b strings.Builder
	width := 0
	for i := range steps {
		width = max(width, len([]rune(cli.Inert(steps[i].Step))))
	}
	for i := range steps {
		st := &steps[i]
		fmt.Fprintf(&b, "  %-*s  %s\n", width, cli.Inert(st.Step), strings.Join(resetParts(st), ", "))
	}
	return b.String()
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

// itemCount is a number of items in words.
func itemCount(n int64) string {
	if n == 1 {
		return "1 item"
	}
	return cli.Count(n) + " items"
}
