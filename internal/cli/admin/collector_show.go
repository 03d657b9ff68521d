package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

type collectorShow struct {
	Name   string `arg:"" help:"The collector."`
	Source bool   `help:"Print it as it was applied, and nothing else."`
}

func (s *collectorShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	c, err := cl.GetCollector(ctx, s.Name, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case s.Source:
		return term.Printf("%s\n", strings.TrimRight(c.Source, "\n"))
	}
	return term.Printf("%s\n%s\n%s", collectorHead(&c), collectorCounts(&c), collectorWhy(&c))
}

// collectorHead is what the collector is.
func collectorHead(c *client.CollectorView) string {
	t := cli.Table{}
	p := &c.Spec
	t.Row("collector", cli.Inert(c.Name))
	state := c.State
	if c.PausedAt != nil {
		state += fmt.Sprintf(" by %s since %s", cli.Inert(c.PausedBy), cli.Moment(*c.PausedAt))
	}
	t.Row("state", state)
	t.Row("endpoint", cli.Inert(p.Endpoint))
	t.Row("flushed", fmt.Sprintf("a key with %d operations, or after %s; at most %d at once", p.MinSize,
		cli.ShortTime(p.MaxAge.String()), p.MaxSize))
	limits := fmt.Sprintf("%d flushes at once", p.InFlight)
	if p.Rate != "" {
		limits += ", " + cli.Inert(p.Rate) + " calls"
	}
	t.Row("limits", limits+", each within "+cli.ShortTime(p.Timeout.String()))
	order := p.Order
	if p.Strict {
		order += ", strict: a failed operation holds its key up"
	}
	t.Row("order", order)
	if by := p.OrderBy; by != nil {
		key := "the payload's " + cli.Inert(by.Field)
		switch {
		case by.Partitions > 0:
			key += fmt.Sprintf(", spread over %d", by.Partitions)
		case len(by.Values) > 0:
			key += ", one of " + cli.Inert(strings.Join(by.Values, ", "))
		}
		t.Row("key", key)
	}
	if p.Fold != "" {
		t.Row("folded", foldText(p))
	}
	if p.Enrich != nil {
		t.Row("stored", storedText(p.Enrich))
	}
	t.Row("failures", fmt.Sprintf("tries: %d, the second after %s, doubled up to %s; then parked", p.MaxAttempts,
		cli.ShortTime(p.Backoff.String()), cli.ShortTime(p.MaxBackoff.String())))
	if len(p.RetryCodes) > 0 {
		t.Row("tried again", cli.Inert(strings.Join(p.RetryCodes, ", "))+", whatever the service says")
	}
	if len(p.NeverRetry) > 0 {
		t.Row("not tried again", cli.Inert(strings.Join(p.NeverRetry, ", "))+", whatever the service says")
	}
	t.Row("ids", "remembered for "+cli.ShortTime(p.Dedupe.String()))
	t.Row("applied", fmt.Sprintf("%s by %s, version %d", cli.Moment(c.ChangedAt), cli.Inert(c.ChangedBy), c.Version))
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		t.Row("param", cli.Inert(name+"="+p.Params[name]))
	}
	return t.String()
}

// storedText says what is stored instead of the payload.
func storedText(e *client.Enrichment) string {
	var query struct {
		Source string `json:"source"`
	}
	if len(e.SQL) == 0 || json.Unmarshal(e.SQL, &query) != nil {
		return cli.Inert(string(e.Payload))
	}
	return cli.Inert(string(e.Payload)) + ", with a row of source " + cli.Inert(query.Source)
}

// foldText says which operations go as one.
func foldText(p *client.CollectorSpec) string {
	by := "key"
	switch {
	case p.FoldBy != "":
		by = "payload's " + cli.Inert(p.FoldBy)
	case p.OrderBy != nil && p.OrderBy.Field != order.Key:
		by = "payload's " + cli.Inert(p.OrderBy.Field)
	}
	if p.Fold == collector.FoldMerge {
		return "those of the same " + by + " go as one, with their payloads merged"
	}
	return "those of the same " + by + " go as one, the last"
}

// collectorCounts is what it has.
func collectorCounts(c *client.CollectorView) string {
	t := cli.Table{Right: map[int]bool{1: true}}
	t.Row("waiting", cli.Count(c.Waiting), oldestText(c))
	t.Row("backoff", cli.Count(c.Backoff), "failed, and tried again")
	t.Row("parked", cli.Count(c.Parked), "not tried again unless they are requeued")
	t.Row("keys", cli.Count(c.Keys), fmt.Sprintf("%s due, %s being flushed", cli.Count(c.Due),
		cli.Count(int64(c.Flushing))))
	return t.String()
}

func oldestText(c *client.CollectorView) string {
	if c.OldestAt == nil {
		return "not tried yet"
	}
	return "not tried yet, the oldest for " + cli.Span(c.At.Sub(*c.OldestAt))
}

// collectorWhy is what keeps its operations waiting, and what helps.
func collectorWhy(c *client.CollectorView) string {
	var text strings.Builder
	for _, why := range c.Why {
		fmt.Fprintf(&text, "%s: %s\n", why.Code, cli.Inert(why.Text))
	}
	switch {
	case c.Waiting+c.Backoff+c.Parked == 0:
		text.WriteString("nothing waits\n")
	case len(c.Why) == 0:
		text.WriteString("nothing keeps it from being flushed\n")
	}
	if c.Parked > 0 {
		fmt.Fprintf(&text, "see what is parked:  tranche collector ops %s --state parked\n"+
			"try it again:        tranche collector requeue %s --all\n", cli.Inert(c.Name), cli.Inert(c.Name))
	}
	return text.String()
}
