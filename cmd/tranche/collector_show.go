package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type collectorShow struct {
	Name   string `arg:"" help:"The collector."`
	Source bool   `help:"Print it as it was applied, and nothing else."`
}

// Run shows a collector.
func (s *collectorShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	c, err := cl.GetCollector(ctx, s.Name, term.keep())
	switch {
	case err != nil:
		return err
	case term.json:
		return term.sent()
	case s.Source:
		return term.printf("%s\n", strings.TrimRight(c.Source, "\n"))
	}
	return term.printf("%s\n%s\n%s", collectorHead(&c), collectorCounts(&c), collectorWhy(&c))
}

// collectorHead is what the collector is.
func collectorHead(c *client.CollectorView) string {
	t := table{}
	p := &c.Spec
	t.row("collector", inert(c.Name))
	state := c.State
	if c.PausedAt != nil {
		state += fmt.Sprintf(" by %s since %s", inert(c.PausedBy), moment(*c.PausedAt))
	}
	t.row("state", state)
	t.row("endpoint", inert(p.Endpoint))
	t.row("flushed", fmt.Sprintf("a key with %d operations, or after %s; at most %d at once", p.MinSize,
		shortTime(p.MaxAge.String()), p.MaxSize))
	limits := fmt.Sprintf("%d flushes at once", p.InFlight)
	if p.Rate != "" {
		limits += ", " + inert(p.Rate) + " calls"
	}
	t.row("limits", limits+", each within "+shortTime(p.Timeout.String()))
	order := p.Order
	if p.Strict {
		order += ", strict: a failed operation holds its key up"
	}
	t.row("order", order)
	if by := p.OrderBy; by != nil {
		key := "the payload's " + inert(by.Field)
		switch {
		case by.Partitions > 0:
			key += fmt.Sprintf(", spread over %d", by.Partitions)
		case len(by.Values) > 0:
			key += ", one of " + short(inert(strings.Join(by.Values, ", ")), 60)
		}
		t.row("key", key)
	}
	t.row("failures", fmt.Sprintf("tries: %d, the second after %s, doubled up to %s; then parked", p.MaxAttempts,
		shortTime(p.Backoff.String()), shortTime(p.MaxBackoff.String())))
	if len(p.RetryCodes) > 0 {
		t.row("tried again", inert(strings.Join(p.RetryCodes, ", "))+", whatever the service says")
	}
	if len(p.NeverRetry) > 0 {
		t.row("not tried again", inert(strings.Join(p.NeverRetry, ", "))+", whatever the service says")
	}
	t.row("ids", "remembered for "+shortTime(p.Dedupe.String()))
	t.row("applied", fmt.Sprintf("%s by %s, version %d", moment(c.ChangedAt), inert(c.ChangedBy), c.Version))
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		t.row("param", inert(name+"="+p.Params[name]))
	}
	return t.String()
}

// collectorCounts is what it has.
func collectorCounts(c *client.CollectorView) string {
	t := table{right: map[int]bool{1: true}}
	t.row("waiting", count(c.Waiting), oldestText(c))
	t.row("backoff", count(c.Backoff), "failed, and tried again")
	t.row("parked", count(c.Parked), "not tried again unless they are requeued")
	t.row("keys", count(c.Keys), fmt.Sprintf("%s due, %s being flushed", count(c.Due), count(int64(c.Flushing))))
	return t.String()
}

func oldestText(c *client.CollectorView) string {
	if c.OldestAt == nil {
		return "not tried yet"
	}
	return "not tried yet, the oldest for " + span(c.At.Sub(*c.OldestAt))
}

// collectorWhy is what keeps its operations waiting, and what helps.
func collectorWhy(c *client.CollectorView) string {
	var text strings.Builder
	for _, why := range c.Why {
		fmt.Fprintf(&text, "%s: %s\n", why.Code, inert(why.Text))
	}
	switch {
	case c.Waiting+c.Backoff+c.Parked == 0:
		text.WriteString("nothing waits\n")
	case len(c.Why) == 0:
		text.WriteString("nothing keeps it from being flushed\n")
	}
	if c.Parked > 0 {
		fmt.Fprintf(&text, "see what is parked:  tranche collector ops %s --state parked\n"+
			"try it again:        tranche collector requeue %s --all\n", inert(c.Name), inert(c.Name))
	}
	return text.String()
}
