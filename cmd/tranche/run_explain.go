package main

import (
	"context"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type runExplain struct {
	Ref  string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Item string `help:"Explain the items of this key only, with every attempt." placeholder:"KEY"`
}

// Run explains why a run, or an item, is not done.
func (r *runExplain) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	e, err := cl.ExplainRun(ctx, r.Ref, client.ExplainRunParams{Item: r.Item}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", explanationText(&e, term.room()))
}
