package admin

import (
	"context"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type endpointsExplain struct {
	Name string `arg:"" help:"The endpoint's name."`
}

// Run explains why an endpoint does not move.
func (e *endpointsExplain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.ExplainEndpoint(ctx, e.Name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s", cli.EndpointExplanationText(&found, term.Room()))
}
