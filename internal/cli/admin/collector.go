package admin

import (
	"context"
	"encoding/json"
	"fmt"
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

// Run makes or changes a collector.
func (a *collectorApply) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	file, err := cli.ReadText("collector", a.File, term.In, collector.MaxBytes)
	if err != nil {
		return err
	}
	done, err := cl.ApplyCollector(ctx, client.ApplyCollectorParams{Name: file.Name}, "application/yaml",
		strings.NewReader(file.Text), term.Keep())
	if err != nil {
		return cli.Explain(&file, err, collector.Parse)
	}
	switch {
	case term.JSON:
		return term.Sent()
	case done.Unchanged:
		return term.Printf("collector %s is unchanged: version %d, applied %s by %s\n", cli.Inert(done.Name), done.Version,
			cli.Moment(done.ChangedAt), cli.Inert(done.ChangedBy))
	case done.Renumbered:
		term.Note("its keys are made otherwise now: what waits goes under the old ones, before what is added from now on")
	}
	if done.Created {
		return term.Printf("collector %s is there; add to it with: tranche collector add %s FILE\n", cli.Inert(done.Name),
			cli.Inert(done.Name))
	}
	return term.Printf("collector %s is changed: version %d, from the next flush on\n", cli.Inert(done.Name), done.Version)
}

type collectorList struct{}

func (*collectorList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListCollectors(ctx, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case len(list.Collectors) == 0:
		return term.Printf("no collectors; make one with: tranche collector apply FILE\n")
	}
	return term.Printf("%s", collectorsText(list.Collectors, term.Room()))
}

func collectorsText(all []client.CollectorView, room int) string {
	t := cli.Table{Right: map[int]bool{3: true, 4: true, 5: true, 6: true, 7: true}, Room: room}
	t.Row("COLLECTOR", "ENDPOINT", "STATE", "KEYS", "WAITING", "BACKOFF", "PARKED", "FLUSHING", "OLDEST", "NEXT DUE")
	for i := range all {
		c := &all[i]
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
		t.Row(cli.Inert(c.Name), cli.Inert(c.Spec.Endpoint), c.State, cli.Count(c.Keys), cli.Count(c.Waiting),
			cli.Count(c.Backoff),
			cli.Count(c.Parked), cli.Count(int64(c.Flushing)), oldest, due)
	}
	return t.String()
}

type collectorPause struct {
	Name string `arg:"" help:"The collector."`
}

func (p *collectorPause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.PauseCollector(ctx, p.Name, term.Keep())
	name := cli.Inert(done.Name)
	return switched(term, done.Changed, err, "collector "+name+" is paused; go on with: tranche collector resume "+name,
		"collector "+name+" was paused already")
}

type collectorResume struct {
	Name string `arg:"" help:"The collector."`
}

func (r *collectorResume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.ResumeCollector(ctx, r.Name, term.Keep())
	name := cli.Inert(done.Name)
	return switched(term, done.Changed, err, "collector "+name+" goes on", "collector "+name+" was not paused")
}

// switched says what became of a pause or its end, or that it was so before.
func switched(term *cli.Console, changed bool, err error, now, before string) error {
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case !changed:
		return term.Printf("%s\n", before)
	}
	return term.Printf("%s\n", now)
}

type collectorDrain struct {
	Name string `arg:"" help:"The collector."`
}

func (d *collectorDrain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DrainCollector(ctx, d.Name, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case done.Ops == 0:
		return term.Printf("collector %s has nothing that waits\n", cli.Inert(d.Name))
	}
	if done.Paused {
		term.Note("it is paused, so nothing goes until: tranche collector resume %s", d.Name)
	}
	return term.Printf("%s of %s need not wait for min_size or max_age any more; see: tranche collector show %s\n",
		cli.Plural(done.Ops, "operation"), cli.Plural(done.Keys, "key"), cli.Inert(d.Name))
}

type collectorDelete struct {
	Name  string `arg:"" help:"The collector."`
	Force bool   `help:"Also with operations, which are lost then."`
}

func (d *collectorDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	gone, err := cl.DeleteCollector(ctx, d.Name, client.DeleteCollectorParams{Force: d.Force}, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case gone.Ops+gone.Parked > 0:
		return term.Printf("collector %s is deleted, and with it %s that waited and %s that were parked\n",
			cli.Inert(gone.Name),
			cli.Plural(gone.Ops, "operation"), cli.Count(gone.Parked))
	}
	return term.Printf("collector %s is deleted\n", cli.Inert(gone.Name))
}

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
	if p.Fold == collectorstore.FoldMerge {
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
