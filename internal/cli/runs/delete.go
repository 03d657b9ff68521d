package runs

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Delete is tranche run delete.
type Delete struct {
	Ref    string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Reason string `help:"Why, for whoever asks for the run and for the audit log." placeholder:"TEXT"`
	DryRun bool   `help:"Change nothing; say what would go."`
}

// Run deletes a finished run.
func (r *Delete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DeleteRun(ctx, r.Ref, client.DeleteSettings{DryRun: r.DryRun, Reason: r.Reason}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if err := term.Printf("%s", deletedText(&done)); err != nil {
		return err
	}
	if !r.DryRun {
		term.Note("the node that leads deletes its rows now, in small pieces; see tranche retention show")
	}
	return nil
}

// deletedText says what went, or would.
func deletedText(d *client.RunDeleted) string {
	which := "run " + d.Run
	if d.Name != "" {
		which += fmt.Sprintf(" (%s)", cli.Inert(d.Name))
	}
	text := fmt.Sprintf("%s of plan %s, %s %s: %s in %d steps, about %s bytes\n", which, cli.Inert(d.Plan), d.State,
		cli.Moment(d.FinishedAt), ItemCount(d.Items), d.Steps, cli.Count(d.Bytes))
	if d.DeadLetters > 0 {
		text += fmt.Sprintf("with it %s dead letters, of which %s wait for somebody\n", cli.Count(d.DeadLetters),
			cli.Count(d.WaitingLetters))
	}
	if d.Quarantine > 0 {
		text += fmt.Sprintf("with it %s messages in quarantine\n", cli.Count(d.Quarantine))
	}
	if d.DryRun {
		return "dry run, would be deleted: " + text + "nothing was changed\n"
	}
	return "deleted: " + text
}
