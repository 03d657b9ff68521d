package endpoints

import (
	"context"

	"github.com/tranchehq/tranche/internal/cli"
)

type endpointsExplain struct {
	Name string `arg:"" help:"The endpoint's name."`
}

// Run explains why an endpoint does not move.
func (e *endpointsExplain) Run(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	found, err := cl.ExplainEndpoint(ctx, e.Name, term.Keep())
	if err != nil {
		return err
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", cli.EndpointExplanationText(&found, term.Room()))
}
