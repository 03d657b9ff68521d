package main

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type collectorCommands struct {
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
func (a *collectorApply) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	file, err := readText("collector", a.File, term.in, collector.MaxBytes)
	if err != nil {
		return err
	}
	done, err := cl.ApplyCollector(ctx, client.ApplyCollectorParams{Name: file.name}, "application/yaml",
		strings.NewReader(file.text), term.keep())
	if err != nil {
		return explainCollector(&file, err)
	}
	switch {
	case term.json:
		return term.sent()
	case done.Unchanged:
		return term.printf("collector %s is unchanged: version %d, applied %s by %s\n", inert(done.Name), done.Version,
			moment(done.ChangedAt), inert(done.ChangedBy))
	case done.Renumbered:
		term.note("its keys are made otherwise now: what waits goes under the old ones, before what is added from now on")
	}
	if done.Created {
		return term.printf("collector %s is there; add to it with: tranche collector add %s FILE\n", inert(done.Name),
			inert(done.Name))
	}
	return term.printf("collector %s is changed: version %d, from the next flush on\n", inert(done.Name), done.Version)
}

// explainCollector names the file, and the line in it, when the server refused the collector for what stands in it.
func explainCollector(file *textFile, err error) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || refused.Status != http.StatusUnprocessableEntity {
		return err
	}
	_, wrong := collector.Parse(file.name, []byte(file.text))
	if bad, ok := errors.AsType[*strictyaml.Error](wrong); ok {
		bad.Name = file.path
		return bad
	}
	return err
}

type collectorList struct{}

// Run lists collectors.
func (*collectorList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	list, err := cl.ListCollectors(ctx, term.keep())
	switch {
	case err != nil:
		return err
	case term.json:
		return term.sent()
	case len(list.Collectors) == 0:
		return term.printf("no collectors; make one with: tranche collector apply FILE\n")
	}
	return term.printf("%s", collectorsText(list.Collectors, term.room()))
}

func collectorsText(all []client.CollectorView, room int) string {
	t := table{right: map[int]bool{3: true, 4: true, 5: true, 6: true, 7: true}, room: room}
	t.row("COLLECTOR", "ENDPOINT", "STATE", "KEYS", "WAITING", "BACKOFF", "PARKED", "FLUSHING", "OLDEST", "NEXT DUE")
	for i := range all {
		c := &all[i]
		oldest, due := "-", "-"
		if c.OldestAt != nil {
			oldest = span(c.At.Sub(*c.OldestAt))
		}
		if c.NextDue != nil {
			due = "now"
			if wait := c.NextDue.Sub(c.At); wait > 0 {
				due = "in " + span(wait)
			}
		}
		t.row(inert(c.Name), inert(c.Spec.Endpoint), c.State, count(c.Keys), count(c.Waiting), count(c.Backoff),
			count(c.Parked), count(int64(c.Flushing)), oldest, due)
	}
	return t.String()
}

type collectorPause struct {
	Name string `arg:"" help:"The collector."`
}

// Run pauses a collector.
func (p *collectorPause) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	done, err := cl.PauseCollector(ctx, p.Name, term.keep())
	name := inert(done.Name)
	return switched(term, done.Changed, err, "collector "+name+" is paused; go on with: tranche collector resume "+name,
		"collector "+name+" was paused already")
}

type collectorResume struct {
	Name string `arg:"" help:"The collector."`
}

// Run resumes a collector.
func (r *collectorResume) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	done, err := cl.ResumeCollector(ctx, r.Name, term.keep())
	name := inert(done.Name)
	return switched(term, done.Changed, err, "collector "+name+" goes on", "collector "+name+" was not paused")
}

// switched says what became of a pause or its end, or that it was so before.
func switched(term *console, changed bool, err error, now, before string) error {
	switch {
	case err != nil:
		return err
	case term.json:
		return term.sent()
	case !changed:
		return term.printf("%s\n", before)
	}
	return term.printf("%s\n", now)
}

type collectorDrain struct {
	Name string `arg:"" help:"The collector."`
}

// Run drains a collector.
func (d *collectorDrain) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	done, err := cl.DrainCollector(ctx, d.Name, term.keep())
	switch {
	case err != nil:
		return err
	case term.json:
		return term.sent()
	case done.Ops == 0:
		return term.printf("collector %s has nothing that waits\n", inert(d.Name))
	}
	if done.Paused {
		term.note("it is paused, so nothing goes until: tranche collector resume %s", d.Name)
	}
	return term.printf("%s of %s need not wait for min_size or max_age any more; see: tranche collector show %s\n",
		plural(done.Ops, "operation"), plural(done.Keys, "key"), inert(d.Name))
}

type collectorDelete struct {
	Name  string `arg:"" help:"The collector."`
	Force bool   `help:"Also with operations, which are lost then."`
}

// Run deletes a collector.
func (d *collectorDelete) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	gone, err := cl.DeleteCollector(ctx, d.Name, client.DeleteCollectorParams{Force: d.Force}, term.keep())
	switch {
	case err != nil:
		return err
	case term.json:
		return term.sent()
	case gone.Ops+gone.Parked > 0:
		return term.printf("collector %s is deleted, and with it %s that waited and %s that were parked\n", inert(gone.Name),
			plural(gone.Ops, "operation"), count(gone.Parked))
	}
	return term.printf("collector %s is deleted\n", inert(gone.Name))
}
