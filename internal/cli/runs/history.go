package runs

import (
	"context"
	"slices"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// History is tranche run history.
type History struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
}

// Run shows what happened to a run, oldest first.
func (r *History) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	history, err := cl.GetHistory(ctx, r.Ref, term.Keep())
	if err != nil {
		return err
	}
	return printHistory(term, history)
}

func printHistory(term *cli.Console, history client.RunHistory) error {
	if term.JSON {
		return term.Sent()
	}
	var t cli.Table
	t.Row("AT", "KIND", "WHAT", "BY, OR AT", "")
	for _, e := range slices.Backward(history.Entries) {
		t.Row(cli.Moment(e.At), e.Kind, cli.Inert(e.What), cli.Inert(e.Who), cli.Inert(e.Text))
	}
	return term.Printf("%s", t.String())
}

// Note is tranche run note.
type Note struct {
	Ref  string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Text string `arg:"" help:"What is to be known of the run, 2,000 characters at the most."`
}

// Run writes a note of a run.
func (r *Note) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	history, err := cl.NoteRun(ctx, r.Ref, client.RunNote{Text: r.Text}, term.Keep())
	if err != nil {
		return err
	}
	return printHistory(term, history)
}
