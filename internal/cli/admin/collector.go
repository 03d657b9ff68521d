package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

// Collectors are the commands about collectors.
type Collectors struct {
	Apply   collectorApply   `cmd:"" help:"Make a collector, or change it."`
	List    collectorList    `cmd:"" help:"List collectors, with what waits in each."`
	Show    collectorShow    `cmd:"" help:"A collector: its settings, what waits, and what keeps that waiting."`
	Add     collectorAdd     `cmd:"" help:"Add operations; they are stored when the command ends."`
	Ops     collectorOps     `cmd:"" help:"List operations, in the order in which they were added."`
	Requeue collectorRequeue `cmd:"" help:"Have operations tried again that are parked, or wait for their next try."`
	Drop    collectorDrop    `cmd:"" help:"Give operations up: they are deleted."`
	Drain   collectorDrain   `cmd:"" help:"Flush all that waits now, whatever min_size and max_age say."`
	Pause   collectorPause   `cmd:"" help:"Flush nothing more until it is resumed; it goes on taking operations."`
	Resume  collectorResume  `cmd:"" help:"Go on with a paused collector."`
	Delete  collectorDelete  `cmd:"" help:"Delete a collector that has no operations, or with --force any."`
}

type collectorApply struct {
	File string `arg:"" help:"A collector in YAML or JSON; - is standard input."`
}

func (a *collectorApply) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.AppliedCollector) string {
		if c.Renumbered {
			term.Note("its keys are made otherwise now: what waits goes under the old ones, before what is added from now on")
		}
		name := cli.Inert(c.Name)
		switch {
		case c.Created:
			return fmt.Sprintf("collector %s is there; add to it with: tranche collector add %s FILE", name, name)
		case !c.Unchanged:
			return fmt.Sprintf("collector %s is changed: version %d, from the next flush on", name, c.Version)
		}
		return document{"collector", c.Name, c.Version, 0, true, c.ChangedAt, c.ChangedBy}.text("")
	})(cli.Apply(term, "collector", a.File, collector.MaxBytes, collector.Parse,
		func(name string, text io.Reader) (client.AppliedCollector, error) {
			return cl.ApplyCollector(ctx, client.ApplyCollectorParams{Name: name}, cli.YAML, text, term.Keep())
		}))
}

type collectorList struct{}

func (*collectorList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListCollectors(ctx, term.Keep())
	return (&cli.List[client.CollectorView]{
		Columns: "COLLECTOR|ENDPOINT|STATE|KEYS>|WAITING>|BACKOFF>|PARKED>|FLUSHING>|OLDEST|NEXT DUE",
		Row: func(c *client.CollectorView) []any {
			oldest, due := "-", "-"
			if c.OldestAt != nil {
				oldest = cli.Span(c.At.Sub(*c.OldestAt))
			}
			if c.NextDue != nil {
				due = "now"
				if wait := c.NextDue.Sub(c.At); wait > 0 {
					due = "in " + cli.Span(wait)
				}
			}
			return []any{c.Name, c.Spec.Endpoint, c.State, c.Keys, c.Waiting, c.Backoff, c.Parked, c.Flushing, oldest, due}
		},
		Empty: "no collectors; make one with: tranche collector apply FILE",
	}).Print(term, list.Collectors, err)
}

// collectorName is the argument of commands about one collector.
type collectorName struct {
	Name string `arg:"" help:"The collector."`
}

type collectorPause struct{ collectorName }

func (p *collectorPause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.CollectorSwitched) string {
		if !c.Changed {
			return "collector " + cli.Inert(c.Name) + " was paused already"
		}
		return fmt.Sprintf("collector %[1]s is paused; go on with: tranche collector resume %[1]s", cli.Inert(c.Name))
	})(cl.PauseCollector(ctx, p.Name, term.Keep()))
}

type collectorResume struct{ collectorName }

func (r *collectorResume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.CollectorSwitched) string {
		if !c.Changed {
			return "collector " + cli.Inert(c.Name) + " was not paused"
		}
		return "collector " + cli.Inert(c.Name) + " goes on"
	})(cl.ResumeCollector(ctx, r.Name, term.Keep()))
}

type collectorDrain struct{ collectorName }

func (d *collectorDrain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.Drained) string {
		if c.Ops == 0 {
			return "collector " + cli.Inert(d.Name) + " has nothing that waits"
		}
		if c.Paused {
			term.Note("it is paused, so nothing goes until: tranche collector resume %s", d.Name)
		}
		return fmt.Sprintf("%s of %s need not wait for min_size or max_age any more; see: tranche collector show %s",
			cli.Plural(c.Ops, "operation"), cli.Plural(c.Keys, "key"), cli.Inert(d.Name))
	})(cl.DrainCollector(ctx, d.Name, term.Keep()))
}

type collectorDelete struct {
	collectorName
	Force bool `help:"Also with operations, which are lost then."`
}

func (d *collectorDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(gone *client.DeletedCollector) string {
		text := "collector " + cli.Inert(gone.Name) + " is deleted"
		if gone.Ops+gone.Parked > 0 {
			text += fmt.Sprintf(", and with it %s that waited and %s that were parked",
				cli.Plural(gone.Ops, "operation"), cli.Count(gone.Parked))
		}
		return text
	})(cl.DeleteCollector(ctx, d.Name, client.DeleteCollectorParams{Force: d.Force}, term.Keep()))
}

type collectorShow struct {
	collectorName
	Source bool `help:"Print it as it was applied, and nothing else."`
}

func (s *collectorShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.CollectorView) string {
		if s.Source {
			return strings.TrimRight(c.Source, "\n")
		}
		return collectorHead(c) + "\n" + collectorCounts(c) + "\n" + strings.TrimRight(collectorWhy(c), "\n")
	})(cl.GetCollector(ctx, s.Name, term.Keep()))
}

// collectorHead is what the collector is.
func collectorHead(c *client.CollectorView) string {
	t := cli.Table{}
	p := &c.Spec
	t.Row("collector", c.Name)
	state := c.State
	if c.PausedAt != nil {
		state += fmt.Sprintf(" by %s since %s", c.PausedBy, cli.Moment(*c.PausedAt))
	}
	t.Row("state", state)
	t.Row("endpoint", p.Endpoint)
	t.Row("flushed", fmt.Sprintf("a key with %d operations, or after %s; at most %d at once", p.MinSize,
		cli.ShortTime(p.MaxAge.String()), p.MaxSize))
	limits := fmt.Sprintf("%d flushes at once", p.InFlight)
	if p.Rate != "" {
		limits += ", " + p.Rate + " calls"
	}
	t.Row("limits", limits+", each within "+cli.ShortTime(p.Timeout.String()))
	order := p.Order
	if p.Strict {
		order += ", strict: a failed operation holds its key up"
	}
	t.Row("order", order)
	if by := p.OrderBy; by != nil {
		key := "the payload's " + by.Field
		switch {
		case by.Partitions > 0:
			key += fmt.Sprintf(", spread over %d", by.Partitions)
		case len(by.Values) > 0:
			key += ", one of " + strings.Join(by.Values, ", ")
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
		t.Row("tried again", strings.Join(p.RetryCodes, ", ")+", whatever the service says")
	}
	if len(p.NeverRetry) > 0 {
		t.Row("not tried again", strings.Join(p.NeverRetry, ", ")+", whatever the service says")
	}
	t.Row("ids", "remembered for "+cli.ShortTime(p.Dedupe.String()))
	t.Row("applied", fmt.Sprintf("%s by %s, version %d", cli.Moment(c.ChangedAt), c.ChangedBy, c.Version))
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		t.Row("param", name+"="+p.Params[name])
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
	if p.Fold == collectorstore.FoldMerge {
		return "those of the same " + by + " go as one, with their payloads merged"
	}
	return "those of the same " + by + " go as one, the last"
}

// collectorCounts is what it has.
func collectorCounts(c *client.CollectorView) string {
	oldest := ""
	if c.OldestAt != nil {
		oldest = ", the oldest for " + cli.Span(c.At.Sub(*c.OldestAt))
	}
	t := cli.NewTable("|>|", 0)
	t.Row("waiting", c.Waiting, "not tried yet"+oldest)
	t.Row("backoff", c.Backoff, "failed, and tried again")
	t.Row("parked", c.Parked, "not tried again unless they are requeued")
	t.Row("keys", c.Keys, fmt.Sprintf("%s due, %s being flushed", cli.Count(c.Due), cli.Count(int64(c.Flushing))))
	return t.String()
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
