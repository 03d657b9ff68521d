package main

import (
	"context"
)

type endpointsExplain struct {
	Name string `arg:"" help:"The endpoint's name."`
}

// Run explains why an endpoint does not move.
func (e *endpointsExplain) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.ExplainEndpoint(ctx, e.Name, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", endpointExplanationText(&found, term.room()))
}
