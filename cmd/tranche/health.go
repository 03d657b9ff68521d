package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type healthCommand struct{}

// Run says what a person must do. A condition that is critical is a failure of its own kind.
func (healthCommand) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.Health(ctx, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		err = term.sent()
	} else {
		err = term.printf("%s", healthText(&found, term.room()))
	}
	if err == nil && found.Counts.Critical > 0 {
		err = &exitError{exitFailed}
	}
	return err
}

// healthText is the conditions, the worst first, each with its remedy.
func healthText(h *client.Health, room int) string {
	if len(h.Conditions) == 0 {
		return fmt.Sprintf("ok: nothing is to be done, as of %s\n", moment(h.At))
	}
	t := prose{columns: explainWidth(room), now: h.At}
	t.paragraph("", fmt.Sprintf("%s: %s, as of %s", inert(h.Status), countsText(&h.Counts), moment(h.At)))
	for i := range h.Conditions {
		c := &h.Conditions[i]
		t.b.WriteString("\n")
		t.paragraph("", strings.ToUpper(string(c.Severity))+" "+inert(c.Title))
		t.field("of", inert(c.Subject))
		t.field("since", t.ago(c.Since))
		t.field("detail", inert(c.Detail))
		t.field("remedy", inert(c.Remedy))
	}
	return t.b.String()
}

func countsText(n *client.SeverityCounts) string {
	warnings := "warnings"
	if n.Warning == 1 {
		warnings = "warning"
	}
	return fmt.Sprintf("%d critical, %d %s, %d for information", n.Critical, n.Warning, warnings, n.Info)
}
