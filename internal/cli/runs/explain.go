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
func (r *Explain) Run(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	e, err := cl.ExplainRun(ctx, r.Ref, client.ExplainRunParams{Item: r.Item}, term.Keep())
	if err != nil {
		return err
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", cli.ExplanationText(&e, term.Room()))
}
