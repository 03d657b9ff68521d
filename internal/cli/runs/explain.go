package runs

import (
	"context"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Explain is tranche run explain.
type Explain struct {
	Ref  string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Item string `help:"Explain the items of this key only, with every attempt." placeholder:"KEY"`
}

// Run explains why a run, or an item, is not done.
func (r *Explain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	e, err := cl.ExplainRun(ctx, r.Ref, client.ExplainRunParams{Item: r.Item}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s", cli.ExplanationText(&e, term.Room()))
}
