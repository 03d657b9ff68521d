package admin

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// documents is a kind of document, like alerts: a user writes one, apply saves it, and show prints its source.
type documents struct {
	noun  string // for example alert
	most  int64  // maximum size in bytes
	parse func(name string, text []byte) error
	apply func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error)
	next  func(a *client.AppliedDocument) string // what to do, or what happens, after apply

	pause, resume, drop controlDocument
	waits               string // what may wait in one, like a message
	dropped             string // what else to say about a deleted one
}

type controlDocument = func(
	cl *client.Client, ctx context.Context, name string, options ...client.CallOption,
) (client.ControlledDocument, error)

type kind interface{ documents() *documents }

type applyDocument[K kind] struct {
	File string `arg:"" help:"A file in YAML or JSON; - is standard input."`
}

func (a *applyDocument[K]) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	d := (*new(K)).documents()
	applied, err := cli.Apply(term, d.noun, a.File, d.most,
		func(name string, text []byte) (struct{}, error) { return struct{}{}, d.parse(name, text) },
		func(name string, text io.Reader) (client.AppliedDocument, error) {
			return d.apply(ctx, cl, name, text)
		})
	term.Warn(applied.Warnings)
	return cli.Say(term, d.appliedText)(applied, err)
}

func (d *documents) appliedText(a *client.AppliedDocument) string {
	name := cli.EscapeControl(a.Name)
	text := d.noun + " " + name + " is "
	switch {
	case a.Unchanged:
		text += cli.Text("unchanged: version %v, applied %v by %v", a.Version, a.ChangedAt, a.ChangedBy)
	case a.Previous > 0:
		text += fmt.Sprintf("version %d now, after version %d", a.Version, a.Previous)
	default:
		text += fmt.Sprintf("saved, version %d", a.Version)
	}
	if a.State == workqueue.DocumentPaused {
		return fmt.Sprintf("%s; it is paused; resume it with: tranche %s resume %s", text, d.noun, name)
	}
	return cli.Join("; ", text, d.next(a))
}

func printSource(term *cli.Console, source string, err error, notes func()) error {
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	notes()
	return term.Printf("%s\n", strings.TrimRight(source, "\n"))
}

type documentName struct {
	Name string `arg:"" help:"Its name."`
}

type (
	pauseDocument[K kind]  struct{ documentName }
	resumeDocument[K kind] struct{ documentName }
	deleteDocument[K kind] struct{ documentName }
)

func (p *pauseDocument[K]) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	d := (*new(K)).documents()
	return cli.Say(term, d.controlledText)(d.pause(cl, ctx, p.Name))
}

func (r *resumeDocument[K]) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	d := (*new(K)).documents()
	return cli.Say(term, d.controlledText)(d.resume(cl, ctx, r.Name))
}

func (r *deleteDocument[K]) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	d := (*new(K)).documents()
	return cli.Say(term, d.controlledText)(d.drop(cl, ctx, r.Name))
}

func (d *documents) controlledText(c *client.ControlledDocument) string {
	name, paused := cli.EscapeControl(c.Name), c.State == workqueue.DocumentPaused
	text := d.noun + " " + name
	switch {
	case c.State == workqueue.DocumentDeleted:
		return text + " is deleted" + cli.If(c.Waiting > 0, ", with %v that waited", cli.Plural(c.Waiting, d.waits)) +
			cli.If(c.Parked > 0, ", with %v that had been parked", cli.Plural(c.Parked, d.waits)) + d.dropped
	case paused && c.Unchanged:
		text += " was paused before"
	case paused:
		text += fmt.Sprintf(" is paused; resume it with: tranche %s resume %s", d.noun, name)
	case c.Unchanged:
		text += " was not paused"
	default:
		text += " continues"
	}
	return text + cli.If(paused && c.Waiting > 0, "; waiting meanwhile: %v", cli.Plural(c.Waiting, d.waits)) +
		cli.If(c.NextDue != nil, "; due next %v", c.NextDue)
}
