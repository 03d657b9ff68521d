package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Health is what a person must see to, and what is said of it.
type Health struct {
	Show  healthShow  `cmd:"" default:"1" help:"What a person must do, and what helps."`
	Ready healthReady `cmd:"" help:"Whether the server can do what it is asked, for a container's health check: exit 1 when it cannot. Needs no token."`
	Aside healthAside `cmd:"" help:"Put a condition aside, or all of its kind: it does not count and alerts do not tell it, until it gets worse or the time is up."`
	Take  healthTake  `cmd:"" help:"Say that you see to a condition, or to all of its kind."`
	Back  healthBack  `cmd:"" help:"Take back what was said of a condition, or of all of its kind."`
}

type healthShow struct{}

// Run ends with a code of its own when a condition is critical.
func (healthShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.Health(ctx, term.Keep())
	return cli.FailIf(found.Counts.Critical > 0, cli.ExitFailed, cli.Print(term, healthText)(found, err))
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

func (a *healthAside) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.AsideSettings{Kind: a.Kind, Subject: a.Subject, ForGood: a.ForGood, Reason: a.Reason}
	if !a.ForGood {
		set.For = a.For.String()
	}
	return cli.Say(term, markedText)(cl.PutAside(ctx, set, term.Keep()))
}

type healthTake struct{ conditionArgs }

func (a *healthTake) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, markedText)(cl.TakeCondition(ctx, client.ConditionName(a.conditionArgs), term.Keep()))
}

type healthBack struct{ conditionArgs }

func (a *healthBack) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, markedText)(cl.BringBack(ctx, client.ConditionName(a.conditionArgs), term.Keep()))
}

func markedText(said *client.MarkedCondition) string {
	what := cli.Inert(strings.TrimSpace(said.Kind + " " + said.Subject))
	switch {
	case said.Unchanged:
		return "nothing was said of " + what
	case said.State == string(health.Aside):
		return fmt.Sprintf("%s is put aside by %s%s; take that back with: tranche health back %s", what, cli.Inert(said.By),
			untilText(said.Until), what)
	case said.State == string(health.Taken):
		return what + " is taken by " + cli.Inert(said.By)
	default:
		return what + " is told as it was before"
	}
}

func untilText(until *time.Time) string {
	if until == nil {
		return " for good"
	}
	return " until " + cli.Moment(*until)
}

// healthText is the conditions by their kinds, the worst first, each with its remedy; and what is put aside.
func healthText(h *client.Health, room int) string {
	t := &cli.Prose{Columns: cli.ExplainWidth(room), Now: h.At}
	if len(h.Conditions) == 0 {
		t.Paragraph("", "ok: nothing is to be done, as of "+cli.Moment(h.At))
	} else {
		t.Paragraph("", fmt.Sprintf("%s: %s, as of %s", cli.Inert(h.Status), countsText(&h.Counts), cli.Moment(h.At)))
	}
	for i := range h.Kinds {
		k := &h.Kinds[i]
		of := slices.DeleteFunc(slices.Clone(h.Conditions), func(c client.Condition) bool { return c.Kind != k.Kind })
		if len(of) > 1 {
			t.B.WriteString("\n")
			t.Paragraph("", strings.ToUpper(string(k.Severity))+" "+cli.Inert(k.Title))
			t.Field("kind", cli.Inert(k.Kind))
			t.Field("since", t.Ago(k.Since))
		}
		for j := range of {
			tellCondition(t, &of[j], len(of) > 1)
		}
	}
	if len(h.Aside) > 0 {
		t.B.WriteString("\n")
		t.Paragraph("", "PUT ASIDE")
	}
	for i := range h.Aside {
		c := &h.Aside[i]
		t.Paragraph("", cli.Inert(c.Title))
		t.Field("of", cli.Inert(c.Kind+" "+c.Subject))
		tellMark(t, c.Mark)
	}
	return t.B.String()
}

// tellCondition tells one, shorter when it is one of several of its kind.
func tellCondition(t *cli.Prose, c *client.Condition, several bool) {
	if several {
		t.Paragraph("", cli.Inert(c.Title))
	} else {
		t.B.WriteString("\n")
		t.Paragraph("", strings.ToUpper(string(c.Severity))+" "+cli.Inert(c.Title))
		t.Field("kind", cli.Inert(c.Kind))
		t.Field("since", t.Ago(c.Since))
		t.Field("detail", cli.Inert(c.Detail))
	}
	t.Field("of", cli.Inert(c.Subject))
	tellMark(t, c.Mark)
	t.Field("remedy", cli.Inert(c.Remedy))
}

// tellMark tells what somebody said of a condition.
func tellMark(t *cli.Prose, m *client.Mark) {
	if m == nil {
		return
	}
	text := "by " + cli.Inert(m.By) + ", " + t.Ago(m.At)
	if m.Reason != "" {
		text += ": " + cli.Inert(m.Reason)
	}
	switch m.State {
	case client.MarkState(health.Taken):
		t.Field("taken", text)
	case client.MarkState(health.Aside):
		t.Field("aside", strings.TrimSpace(untilText(m.Until))+", "+text)
	default:
		t.Field("worse", "since it was put aside "+text)
	}
}

func countsText(n *client.SeverityCounts) string {
	return fmt.Sprintf("%d critical, %s, %d for information", n.Critical, cli.Plural(int64(n.Warning), "warning"), n.Info)
}

type healthReady struct{}

// Run asks /readyz, which asks nobody for a token.
func (healthReady) Run(ctx context.Context, term *cli.Console) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // longer than the server gives PostgreSQL to answer
	defer cancel()
	where := strings.TrimRight(term.URL, "/") + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--url %s: %v", term.URL, err))
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s whether it is ready: %w", where, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		problem := struct{ Detail string }{}
		decoder := json.NewDecoder(io.LimitReader(answer.Body, 64<<10))
		if decoder.Decode(&problem) != nil || problem.Detail == "" { // somebody else answers there
			problem.Detail = answer.Status
		}
		return errors.New("not ready: " + cli.Inert(problem.Detail))
	}
	if term.JSON {
		return term.Document(map[string]bool{"ready": true})
	}
	return term.Printf("ready\n")
}
