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

// Accept is tranche run accept.
type Accept struct {
	Ref    string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Failed bool   `xor:"which" help:"All items that failed."`
	chosen
	Step     string `help:"Failures of this step; without it, of every step." placeholder:"NAME"`
	Withdraw bool   `help:"Accept them no more."`
	Reason   string `help:"Why; needed, but to withdraw." placeholder:"TEXT"`
	DryRun   bool   `help:"Change nothing; say what would be done."`
}

// Validate is called by kong.
func (r *Accept) Validate() error {
	switch {
	case !r.Failed && r.none():
		return errors.New("say which failures: --failed, " + chooseOf)
	case strings.TrimSpace(r.Reason) == "" && !r.Withdraw:
		return errors.New("say why, by --reason TEXT: it is shown with each failure that is accepted")
	}
	return nil
}

// Run accepts failures.
func (r *Accept) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	accept := redoing[client.Accepted]{chosen: &r.chosen, dry: r.DryRun, add: addAccepted, did: "were accepted",
		items: func(a *client.Accepted) int64 { return a.Items },
		ask: func(ctx context.Context, keys []string, dry bool, options ...client.CallOption) (client.Accepted, error) {
			return cl.Accept(ctx, r.Ref, r.settings(keys, dry), options...)
		}}
	done, err := accept.do(ctx, term)
	if err != nil {
		return err
	}
	return accept.tell(term, &done, acceptText)
}

func (r *Accept) settings(keys []string, dry bool) client.AcceptSettings {
	return client.AcceptSettings{Failed: r.Failed, Keys: keys, Codes: r.Code, Groups: r.Group, Step: r.Step,
		Withdraw: r.Withdraw, DryRun: dry, Reason: r.Reason, States: r.State, Service: r.Service, Since: pointTo(r.Since),
		Until: pointTo(r.Until), Where: r.Where, WhereResult: r.WhereResult, Corrected: r.Corrected}
}

// addAccepted is what two acceptances did, one after the other.
func addAccepted(sum, one *client.Accepted) client.Accepted {
	both := *one
	both.Items += sum.Items
	both.Examples = sum.Examples
	for _, st := range sum.Steps {
		at := slices.IndexFunc(both.Steps, func(of client.StepAccepted) bool { return of.Step == st.Step })
		if at < 0 {
			both.Steps = append(both.Steps, st)
		} else {
			both.Steps[at].Items += st.Items
		}
	}
	return both
}

// acceptText says what was accepted, or would be, and how the run stands.
func acceptText(done *client.Accepted) string {
	what := map[[2]bool]string{
		{false, false}: "accepted:", {true, false}: "would be accepted:",
		{false, true}: "accepted no more:", {true, true}: "would be accepted no more:",
	}[[2]bool{done.DryRun, done.Withdraw}]
	text := fmt.Sprintf("run %s: %s %s %s\n", done.Run, ItemCount(done.Items), what,
		FailedText(done.Failed, done.Accepted))
	if len(done.Steps) > 1 {
		var t cli.Table
		for _, st := range done.Steps {
			t.Row("  "+cli.Inert(st.Step), cli.Count(st.Items))
		}
		text += t.String()
	}
	if done.DryRun {
		return "dry run: " + text + firstKeys(true, done.Examples, done.Items) + "nothing was changed\n"
	}
	return text
}
