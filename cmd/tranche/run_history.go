package main

import (
	"context"
	"slices"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type runHistory struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
}

// Run shows what happened to a run, oldest first.
func (r *runHistory) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	history, err := cl.GetHistory(ctx, r.Ref, term.keep())
	if err != nil {
		return err
	}
	return printHistory(term, history)
}

func printHistory(term *console, history client.RunHistory) error {
	if term.json {
		return term.sent()
	}
	var t table
	t.row("AT", "KIND", "WHAT", "BY, OR AT", "")
	for _, e := range slices.Backward(history.Entries) {
		t.row(moment(e.At), e.Kind, inert(e.What), inert(e.Who), inert(e.Text))
	}
	return term.printf("%s", t.String())
}

type runNote struct {
	Ref  string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Text string `arg:"" help:"What is to be known of the run, 2,000 characters at the most."`
}

// Run writes a note of a run.
func (r *runNote) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	history, err := cl.NoteRun(ctx, r.Ref, client.RunNote{Text: r.Text}, term.keep())
	if err != nil {
		return err
	}
	return printHistory(term, history)
}
