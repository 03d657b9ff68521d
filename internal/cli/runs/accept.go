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

type runAccept struct {
	Ref      string   `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Failed   bool     `xor:"which" help:"All items that failed."`
	Key      []string `xor:"which" sep:"none" help:"This item, if it failed; may stand more than once." placeholder:"K"`
	Keys     string   `xor:"which" help:"The items of a file with a key a line, as far as they failed; - is standard input." placeholder:"FILE"`
	Code     []string `xor:"which" sep:"none" help:"Items that failed with this code; may stand more than once." placeholder:"C"`
	Group    []string `xor:"which" sep:"none" help:"Items that failed with a message of this group of tranche run errors; may stand more than once." placeholder:"G"`
	Step     string   `help:"Failures of this step; without it, of every step." placeholder:"NAME"`
	Withdraw bool     `help:"Accept them no more."`
	Reason   string   `help:"Why; needed, but to withdraw." placeholder:"TEXT"`
	DryRun   bool     `help:"Change nothing; say what would be done."`
}

// Validate is called by kong.
func (r *runAccept) Validate() error {
	switch {
	case !r.Failed && len(r.Key) == 0 && r.Keys == "" && len(r.Code) == 0 && len(r.Group) == 0:
		return errors.New("say which failures: --failed, --key K, --code C, --group G or --keys FILE")
	case strings.TrimSpace(r.Reason) == "" && !r.Withdraw:
		return errors.New("say why, by --reason TEXT: it is shown with each failure that is accepted")
	}
	return nil
}

// Run accepts failures.
func (r *runAccept) Run(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	var done client.Accepted
	if r.Keys == "" {
		done, err = cl.Accept(ctx, r.Ref, r.settings(), term.Keep())
	} else {
		done, err = r.byFile(ctx, term, cl)
	}
	switch {
	case err != nil:
		return err
	case term.JSON && r.Keys == "":
		return term.Sent()
	case term.JSON:
		return term.Document(done) // the sum of several
	}
	return term.Printf("%s", acceptText(&done))
}

func (r *runAccept) settings() client.AcceptSettings {
	return client.AcceptSettings{Failed: r.Failed, Keys: r.Key, Codes: r.Code, Groups: r.Group, Step: r.Step,
		Withdraw: r.Withdraw, DryRun: r.DryRun, Reason: r.Reason}
}

// byFile accepts the items of a key file. A file with more keys than a request may have goes in several requests; all
// of them are tried before the first one changes anything.
func (r *runAccept) byFile(ctx context.Context, term *cli.Console, cl *client.Client) (client.Accepted, error) {
	parts, err := cli.ReadKeys(r.Keys, term.In)
	if err != nil {
		return client.Accepted{}, err
	}
	if len(parts) > 1 && !r.DryRun {
		if _, err := r.each(ctx, cl, parts, true); err != nil {
			return client.Accepted{}, err
		}
	}
	return r.each(ctx, cl, parts, r.DryRun)
}

// each sends the parts and adds up what they did.
func (r *runAccept) each(ctx context.Context, cl *client.Client, parts [][]string, dry bool) (client.Accepted, error) {
	var sum client.Accepted
	for i, keys := range parts {
		set := r.settings()
		set.Keys, set.DryRun = keys, dry
		one, err := cl.Accept(ctx, r.Ref, set)
		if err != nil && i > 0 && !dry {
			return sum, fmt.Errorf("request %d of %d, after %s items: %w", i+1, len(parts), cli.Count(sum.Items), err)
		}
		if err != nil {
			return sum, err
		}
		one.Items += sum.Items
		for _, st := range sum.Steps {
			at := slices.IndexFunc(one.Steps, func(of client.StepAccepted) bool { return of.Step == st.Step })
			if at < 0 {
				one.Steps = append(one.Steps, st)
			} else {
				one.Steps[at].Items += st.Items
			}
		}
		sum = one
	}
	return sum, nil
}

// acceptText says what was accepted, or would be, and how the run stands.
func acceptText(done *client.Accepted) string {
	what := map[[2]bool]string{
		{false, false}: "accepted:", {true, false}: "would be accepted:",
		{false, true}: "accepted no more:", {true, true}: "would be accepted no more:",
	}[[2]bool{done.DryRun, done.Withdraw}]
	text := fmt.Sprintf("run %s: %s %s %s\n", done.Run, itemCount(done.Items), what,
		failedText(done.Failed, done.Accepted))
	if len(done.Steps) > 1 {
		var t cli.Table
		for _, st := range done.Steps {
			t.Row("  "+cli.Inert(st.Step), cli.Count(st.Items))
		}
		text += t.String()
	}
	if done.DryRun {
		return "dry run: " + text + "nothing was changed\n"
	}
	return text
}

// failedText is how many items failed, and how many of them are accepted.
func failedText(failed, accepted int64) string {
	if accepted == 0 {
		return cli.Count(failed) + " failed"
	}
	return fmt.Sprintf("%s failed, of which %s accepted", cli.Count(failed), cli.Count(accepted))
}
