package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/health"
)

type healthCommands struct {
	Show  healthShow  `cmd:"" default:"1" help:"What a person must do, and what helps."`
	Aside healthAside `cmd:"" help:"Put a condition aside, or all of its kind: it does not count and alerts do not tell it, until it gets worse or the time is up."`
	Take  healthTake  `cmd:"" help:"Say that you see to a condition, or to all of its kind."`
	Back  healthBack  `cmd:"" help:"Take back what was said of a condition, or of all of its kind."`
}

type healthShow struct{}

// Run says what a person must do. A condition that is critical is a failure of its own kind.
func (healthShow) Run(ctx context.Context, term *console) error {
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

// conditionArgs name a condition, or all of a kind.
type conditionArgs struct {
	Kind    string `arg:"" help:"As tranche health names it, like failed_items."`
	Subject string `arg:"" optional:"" help:"Of what, as tranche health says; all of the kind when it is left out."`
}

type healthAside struct {
	conditionArgs

	For     time.Duration `help:"For how long, like 8h." xor:"until" required:""`
	ForGood bool          `help:"Until it gets worse." xor:"until" required:""`
	Reason  string        `help:"Why, for whoever looks." required:""`
}

// Run puts a condition aside.
func (a *healthAside) Run(ctx context.Context, term *console) error {
	set := client.AsideSettings{Kind: a.Kind, Subject: a.Subject, ForGood: a.ForGood, Reason: a.Reason}
	if !a.ForGood {
		set.For = a.For.String()
	}
	return a.say(term, func(cl *client.Client) (client.MarkedCondition, error) {
		return cl.PutAside(ctx, set,
			term.keep())
	})
}

type healthTake struct{ conditionArgs }

// Run says who sees to a condition.
func (a *healthTake) Run(ctx context.Context, term *console) error {
	return a.say(term, func(cl *client.Client) (client.MarkedCondition, error) {
		return cl.TakeCondition(ctx, client.ConditionName(a.conditionArgs), term.keep())
	})
}

type healthBack struct{ conditionArgs }

// Run takes back what was said of a condition.
func (a *healthBack) Run(ctx context.Context, term *console) error {
	return a.say(term, func(cl *client.Client) (client.MarkedCondition, error) {
		return cl.BringBack(ctx, client.ConditionName(a.conditionArgs), term.keep())
	})
}

func (a *conditionArgs) say(term *console, ask func(*client.Client) (client.MarkedCondition, error)) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	said, err := ask(cl)
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	what := inert(strings.TrimSpace(said.Kind + " " + said.Subject))
	switch {
	case said.Unchanged:
		return term.printf("nothing was said of %s\n", what)
	case said.State == string(health.Aside):
		return term.printf("%s is put aside by %s%s; take that back with: tranche health back %s\n", what, inert(said.By),
			untilText(said.Until), what)
	case said.State == string(health.Taken):
		return term.printf("%s is taken by %s\n", what, inert(said.By))
	default:
		return term.printf("%s is told as it was before\n", what)
	}
}

func untilText(until *time.Time) string {
	if until == nil {
		return " for good"
	}
	return " until " + moment(*until)
}

// healthText is the conditions by their kinds, the worst first, each with its remedy; and what is put aside.
func healthText(h *client.Health, room int) string {
	t := prose{columns: explainWidth(room), now: h.At}
	if len(h.Conditions) == 0 {
		t.paragraph("", "ok: nothing is to be done, as of "+moment(h.At))
	} else {
		t.paragraph("", fmt.Sprintf("%s: %s, as of %s", inert(h.Status), countsText(&h.Counts), moment(h.At)))
	}
	for i := range h.Kinds {
		k := &h.Kinds[i]
		of := slices.DeleteFunc(slices.Clone(h.Conditions), func(c client.Condition) bool { return c.Kind != k.Kind })
		if len(of) > 1 {
			t.b.WriteString("\n")
			t.paragraph("", strings.ToUpper(string(k.Severity))+" "+inert(k.Title))
			t.field("kind", inert(k.Kind))
			t.field("since", t.ago(k.Since))
		}
		for j := range of {
			t.condition(&of[j], len(of) > 1)
		}
	}
	if len(h.Aside) > 0 {
		t.b.WriteString("\n")
		t.paragraph("", "PUT ASIDE")
	}
	for i := range h.Aside {
		c := &h.Aside[i]
		t.paragraph("", inert(c.Title))
		t.field("of", inert(c.Kind+" "+c.Subject))
		t.mark(c.Mark)
	}
	return t.b.String()
}

// condition tells one, shorter when it is one of several of its kind.
func (t *prose) condition(c *client.Condition, several bool) {
	if several {
		t.paragraph("", inert(c.Title))
	} else {
		t.b.WriteString("\n")
		t.paragraph("", strings.ToUpper(string(c.Severity))+" "+inert(c.Title))
		t.field("kind", inert(c.Kind))
		t.field("since", t.ago(c.Since))
		t.field("detail", inert(c.Detail))
	}
	t.field("of", inert(c.Subject))
	t.mark(c.Mark)
	t.field("remedy", inert(c.Remedy))
}

// mark tells what somebody said of a condition.
func (t *prose) mark(m *client.Mark) {
	if m == nil {
		return
	}
	text := "by " + inert(m.By) + ", " + t.ago(m.At)
	if m.Reason != "" {
		text += ": " + inert(m.Reason)
	}
	switch m.State {
	case client.MarkState(health.Taken):
		t.field("taken", text)
	case client.MarkState(health.Aside):
		t.field("aside", strings.TrimSpace(untilText(m.Until))+", "+text)
	default:
		t.field("worse", "since it was put aside "+text)
	}
}

func countsText(n *client.SeverityCounts) string {
	warnings := "warnings"
	if n.Warning == 1 {
		warnings = "warning"
	}
	return fmt.Sprintf("%d critical, %d %s, %d for information", n.Critical, n.Warning, warnings, n.Info)
}
