package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Approve is tranche run approve.
type Approve struct {
	whichRuns
	Step   string     `help:"Let this step begin, which waits for it (barrier: approve); without it, what a canary holds back." placeholder:"NAME"`
	Seen   *time.Time `help:"With --step: since when it waited as you looked at it, as --dry-run says; refused when it has waited anew since." placeholder:"TIME"`
	DryRun bool       `help:"With --step: approve nothing; show what waits there, a sample, and what is different from the run before."`
}

// Validate is called by kong.
func (r *Approve) Validate() error {
	if err := r.whichRuns.Validate(); err != nil {
		return err
	}
	switch {
	case r.Step != "" && r.All:
		return errors.New("--step is of one run; name it")
	case r.Seen != nil && r.Step == "":
		return errors.New("--seen says how a step was looked at; name it by --step NAME")
	case r.DryRun && r.Step == "":
		return errors.New("--dry-run shows what waits at a step; name it by --step NAME")
	}
	return nil
}

// Run approves canaries, or lets a step begin.
func (r *Approve) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.DryRun {
		return r.show(ctx, term, cl)
	}
	return r.do(ctx, term, cl.ApproveAllRuns, func(keep client.CallOption) (client.Controlled, error) {
		return cl.ApproveRun(ctx, r.Ref, client.ApproveSettings{Reason: r.Reason, Step: r.Step, Seen: r.Seen}, keep)
	}, func(done *client.Controlled) string {
		switch {
		case len(done.Runs) == 0:
			return "no run waits for approval"
		case r.Step != "":
			return fmt.Sprintf("%s: step %s approved for %s", runsText(done), r.Step, cli.Plural(done.Items, "item"))
		}
		return fmt.Sprintf("%s approved: what was held back, %s, is let go", runsText(done), cli.Plural(done.Items, "item"))
	})
}

// show tells what somebody has to know before they approve.
func (r *Approve) show(ctx context.Context, term *cli.Console, cl *client.Client) error {
	gate, err := cl.GetGate(ctx, r.Ref, client.GetGateParams{Step: r.Step}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	text := gateText(&gate, term.Room())
	if gate.State == "waiting" && gate.Since != nil && gate.Refused == "" {
		text += fmt.Sprintf("let exactly this go on: tranche run approve %s --step %s --seen %s\n", cli.ShortID(gate.Run),
			cli.ShellWord(gate.Step), gate.Since.UTC().Format(time.RFC3339Nano))
	}
	if gate.Earlier == nil || gate.State == "shut" {
		return term.Printf("%s", text)
	}
	report, err := cl.ReportRun(ctx, gate.Run, client.ReportRunParams{Against: gate.Earlier.Run, Before: gate.Step})
	if err != nil {
		return err
	}
	return term.Printf("%s%s", text, ReportAgainst(&report))
}

func gateText(g *client.GateDocument, room int) string {
	t := cli.Table{Room: room}
	state := string(g.State)
	switch g.State {
	case "waiting":
		state = "waits for an approval"
		if g.Since != nil {
			state += " since " + cli.Moment(*g.Since)
		}
	case "approved":
		state += " by " + cli.Inert(g.ApprovedBy)
	case "shut":
		state = "not there yet: steps before have not ended for all items"
	}
	t.Row("step", cli.Inert(g.Step))
	t.Row("state", state)
	by := "anybody who may change runs"
	if g.ApproveBy == "other" {
		by = "anybody but " + cli.Inert(g.StartedBy) + ", who started the run"
	}
	t.Row("by", by)
	if g.Refused != "" {
		t.Row("not by you", cli.Inert(g.Refused))
	}
	t.Row("items", fmt.Sprintf("%s go on, %s are left out", cli.Count(g.Items), cli.Count(g.LeftOut)))
	for i := range g.Before {
		b := &g.Before[i]
		t.Row("before", fmt.Sprintf("%s: %s done, %s failed, %s left out", cli.Inert(b.Step), cli.Count(b.Done),
			cli.Count(b.Failed), cli.Count(b.Skipped)))
	}
	for i := range g.Sample {
		t.Row("sample", sampleText(&g.Sample[i]))
	}
	text := t.String()
	if len(g.Sample) > 0 {
		text += fmt.Sprintf("see one: tranche run item %s KEY; keep it: tranche run export %s --dir DIR --step STEP\n",
			cli.ShortID(g.Run), cli.ShortID(g.Run))
	}
	return text
}

func sampleText(item *client.GateItem) string {
	var parts []string
	for i := range item.Results {
		r := &item.Results[i]
		kind := "JSON"
		if r.ContentType != "" {
			kind = cli.Inert(r.ContentType)
		}
		parts = append(parts, fmt.Sprintf("%s: %s, %s bytes", cli.Inert(r.Step), kind, cli.Count(r.Bytes)))
	}
	return cli.Short(cli.Inert(item.Key), 40) + "  " + strings.Join(parts, "; ")
}
