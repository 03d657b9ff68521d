package admin

import (
	"context"
	"strings"

	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
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
