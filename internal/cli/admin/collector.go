package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

type collectorCommands struct {
	Apply   applyDocument[collectorKind]  `cmd:"" help:"Save a collector, or change it."`
	List    collectorList                 `cmd:"" help:"List collectors, with waiting operations."`
	Show    collectorShow                 `cmd:"" help:"Show a collector: its settings, and why operations wait."`
	Add     collectorAdd                  `cmd:"" help:"Add operations; they are stored when the command ends."`
	Ops     collectorOps                  `cmd:"" help:"List operations, in the order in which they were added."`
	Requeue collectorRequeue              `cmd:"" help:"Retry parked operations, and those in backoff."`
	Drop    collectorDrop                 `cmd:"" help:"Drop (delete) operations."`
	Drain   collectorDrain                `cmd:"" help:"Flush all waiting operations now, regardless of min_size and max_age."`
	Pause   pauseDocument[collectorKind]  `cmd:"" help:"Pause a collector: it takes operations, but flushes none until it is resumed."`
	Resume  resumeDocument[collectorKind] `cmd:"" help:"Resume a paused collector."`
	Delete  collectorDelete               `cmd:"" help:"Delete a collector that has no operations; with --force, any."`
}

type collectorKind struct{}

func (collectorKind) documents() *documents {
	return &documents{
		noun: "collector", most: ingest.MaxDefinition, waits: "operation",
		parse: func(name string, text []byte) error { _, err := ingest.Parse(name, text); return err },
		apply: func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error) {
			return cl.ApplyCollector(ctx, client.ApplyCollectorParams{Name: name}, cli.YAML, text)
		},
		next: func(a *client.AppliedDocument) string {
			switch {
			case a.Renumbered:
				return "it applies to later operations; before them, waiting ones are flushed under their old keys"
			case a.Previous > 0:
				return "it applies from the next flush"
			case a.Unchanged:
				return ""
			}
			return "add to it with: tranche collector add " + cli.EscapeControl(a.Name) + " FILE"
		},
		pause: (*client.Client).PauseCollector, resume: (*client.Client).ResumeCollector,
	}
}

type collectorList struct{}

func (*collectorList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListCollectors(ctx)
	return (&cli.List[client.CollectorView]{
		Columns: "COLLECTOR|ENDPOINT|STATE|KEYS>|WAITING>|BACKOFF>|PARKED>|FLUSHING>|OLDEST|NEXT DUE",
		Row: func(c *client.CollectorView) []any {
			oldest, due := "-", "-"
			if c.OldestAt != nil {
				oldest = cli.Span(c.At.Sub(*c.OldestAt))
			}
			if c.NextDue != nil {
				wait := c.NextDue.Sub(c.At)
				due = cmp.Or(cli.If(wait > 0, "in %v", cli.Span(wait)), "now")
			}
			return []any{c.Name, c.Spec.Endpoint, c.State, c.Keys, c.Waiting, c.Backoff, c.Parked, c.Flushing, oldest, due}
		},
		Empty: "no collectors; create one with: tranche collector apply FILE",
	}).Print(term, list.Collectors, err)
}

type collectorDrain struct{ documentName }

func (d *collectorDrain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.Drained) string {
		if c.Ops == 0 {
			return cli.Text("collector %v has no waiting operations", d.Name)
		}
		if c.Paused {
			term.Note("it is paused, so nothing is flushed until: tranche collector resume %s", d.Name)
		}
		return cli.Text("%v of %v no longer wait for min_size or max_age; see: tranche collector show %v",
			cli.Plural(c.Ops, "operation"), cli.Plural(c.Keys, "key"), d.Name)
	})(cl.DrainCollector(ctx, d.Name))
}

type collectorDelete struct {
	documentName
	Force bool `help:"Delete its operations, too."`
}

func (d *collectorDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, collectorKind{}.documents().controlledText)(
		cl.DeleteCollector(ctx, d.Name, client.DeleteCollectorParams{Force: d.Force}))
}

type collectorShow struct {
	documentName
	Source bool `help:"Print only the applied document."`
}

func (s *collectorShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.CollectorView) string {
		if s.Source {
			return strings.TrimRight(c.Source, "\n")
		}
		return collectorHead(c) + "\n" + collectorCounts(c) + "\n" + strings.TrimRight(collectorWhy(c), "\n")
	})(cl.GetCollector(ctx, s.Name))
}

func collectorHead(c *client.CollectorView) string {
	t := cli.Table{}
	p := &c.Spec
	t.Row("collector", c.Name)
	t.Row("state", c.State+cli.If(c.PausedAt != nil, " by %v since %v", c.PausedBy, c.PausedAt))
	t.Row("endpoint", p.Endpoint)
	t.Say("flushed", "a key with %v operations, or after %v; at most %v together", p.MinSize,
		cli.ShortTime(p.MaxAge.String()), p.MaxSize)
	t.Say("limits", "%v flushes in flight%v, each within %v", p.InFlight, cli.If(p.Rate != "", ", %v calls", p.Rate),
		cli.ShortTime(p.Timeout.String()))
	t.Row("order", p.Order+cli.If(p.Strict, ", strict: a failed operation holds its key up"))
	if by := p.OrderBy; by != nil {
		t.Row("key", "the payload's "+by.Field+cli.If(by.Partitions > 0, ", spread over %v", by.Partitions)+
			cli.If(by.Partitions == 0 && len(by.Values) > 0, ", one of %v", strings.Join(by.Values, ", ")))
	}
	t.If(p.Fold != "", "folded", "%v", foldText(p))
	if p.Enrich != nil {
		t.Row("stored", storedText(p.Enrich))
	}
	t.Say("failures", "tries: %v, the second after %v, doubled up to %v; then parked", p.MaxAttempts,
		cli.ShortTime(p.Backoff.String()), cli.ShortTime(p.MaxBackoff.String()))
	const regardless = "%v, regardless of what the service says"
	t.If(len(p.RetryCodes) > 0, "retried", regardless, strings.Join(p.RetryCodes, ", "))
	t.If(len(p.NoRetryCodes) > 0, "not retried", regardless, strings.Join(p.NoRetryCodes, ", "))
	t.Row("ids", "remembered for "+cli.ShortTime(p.Dedupe.String()))
	t.Say("applied", "%v by %v, version %v", c.ChangedAt, c.ChangedBy, c.Version)
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		t.Row("param", name+"="+p.Params[name])
	}
	return t.String()
}

func storedText(e *client.Enrichment) string {
	var query struct {
		Source string `json:"source"`
	}
	queried := len(e.SQL) > 0 && json.Unmarshal(e.SQL, &query) == nil
	return string(e.Payload) + cli.If(queried, ", with a row of source %v", query.Source) +
		cli.If(e.Endpoint != "", ", answered by endpoint %v", e.Endpoint) +
		cli.If(e.Local != "", ", made by function %v", e.Local)
}

func foldText(p *client.CollectorSpec) string {
	by := "key"
	switch {
	case p.FoldBy != "":
		by = "payload's " + p.FoldBy
	case p.OrderBy != nil && p.OrderBy.Field != order.Key:
		by = "payload's " + p.OrderBy.Field
	}
	how := "the last"
	if p.Fold == collector.FoldMerge {
		how = "with their payloads merged"
	}
	return "those of the same " + by + " go as one, " + how
}

func collectorCounts(c *client.CollectorView) string {
	oldest := ""
	if c.OldestAt != nil {
		oldest = ", the oldest for " + cli.Span(c.At.Sub(*c.OldestAt))
	}
	t := cli.NewTable("|>|", 0)
	t.Row("waiting", c.Waiting, "not tried yet"+oldest)
	t.Row("backoff", c.Backoff, "failed, and retried")
	t.Row("parked", c.Parked, "not retried unless they are requeued")
	t.Row("keys", c.Keys, cli.Text("%v due, %v being flushed", c.Due, c.Flushing))
	return t.String()
}

func collectorWhy(c *client.CollectorView) string {
	text := cli.Each(c.Why, func(why *client.CollectorReason) string { return cli.Text("%v: %v\n", why.Code, why.Text) })
	switch {
	case c.Waiting+c.Backoff+c.Parked == 0:
		text += "nothing waits\n"
	case len(c.Why) == 0:
		text += "nothing keeps it from being flushed\n"
	}
	return text + cli.If(c.Parked > 0, "see what is parked:  tranche collector ops %[1]v --state parked\n"+
		"try it again:        tranche collector requeue %[1]v --all\n", c.Name)
}

type collectorAdd struct {
	documentName
	File     string  `arg:"" optional:"" help:"Operations, one JSON object per line: {\"id\":…,\"key\":…,\"payload\":…}; - is standard input." placeholder:"FILE"`
	Payload  *string `help:"A single operation instead of a file: its payload, as JSON." placeholder:"JSON"`
	Key      string  `help:"The key of the single operation." placeholder:"KEY"`
	ID       string  `name:"id" help:"Its ID; a repeat is counted as a duplicate." placeholder:"ID"`
	Priority int     `within:"0,9" help:"Its priority, 0 to 9, the highest first." placeholder:"N"`
	DryRun   bool    `help:"Add nothing; show what would be added and how it would be stored, or what is wrong."`
}

func (a *collectorAdd) Validate() error {
	single := a.Payload != nil
	switch {
	case single && a.File != "":
		return errors.New("give either a file or --payload")
	case !single && a.File == "":
		return errors.New("say what to add: a FILE, - for standard input, or --payload JSON")
	case !single && (a.Key != "" || a.ID != "" || a.Priority != 0):
		return errors.New("--key, --id and --priority go with --payload; in a file each operation has its own")
	case single && !json.Valid([]byte(*a.Payload)):
		return fmt.Errorf("--payload is %.60q, which is not JSON; put text in quotes, like --payload '\"text\"'", *a.Payload)
	}
	return nil
}

func (a *collectorAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	send := func(ops io.Reader) (client.AddedOperations, error) {
		return cl.AddOperations(ctx, a.Name, client.AddOperationsParams{DryRun: a.DryRun}, "application/x-ndjson", ops)
	}
	if a.Payload != nil {
		op, err := a.operation()
		if err != nil {
			return err
		}
		return cli.Say(term, addedText)(send(bytes.NewReader(op)))
	}
	added, err := cli.Upload(term, "file", a.File, send)
	if refused, ok := errors.AsType[*client.ProblemError](err); ok && refused.Status == http.StatusUnprocessableEntity {
		return fmt.Errorf("%s: %w", a.File, err)
	}
	return cli.Say(term, addedText)(added, err)
}

func (a *collectorAdd) operation() ([]byte, error) {
	text, err := json.Marshal(struct {
		ID       string          `json:"id,omitempty"`
		Key      string          `json:"key,omitempty"`
		Payload  json.RawMessage `json:"payload"`
		Priority int             `json:"priority,omitempty"`
	}{a.ID, a.Key, json.RawMessage(*a.Payload), a.Priority})
	if err != nil {
		return nil, cli.Usage(fmt.Sprintf("--payload: %v", err))
	}
	return text, nil
}

func addedText(added *client.AddedOperations) string {
	text := cli.Text("%v%v added%v", cli.Plural(int64(added.Added), "operation"), cli.If(added.DryRun, " would be"),
		cli.If(added.Duplicates > 0, ", %v left out: added before, by their IDs", added.Duplicates))
	if !added.DryRun {
		return text
	}
	sample := cli.Each(added.Sample, func(o *client.Op) string {
		return cli.Text("\n  key %v%v: %v", o.Key, cli.If(o.Fold != "", ", folded by %v", o.Fold), string(o.Payload))
	})
	more := added.Added - len(added.Sample)
	return text + sample + cli.If(more > 0, "\n  and %v more", more) + "\nnothing was added (dry run)"
}

type collectorOps struct {
	documentName
	opsPage
}

type opsPage struct {
	State string `enum:",waiting,backoff,parked" default:"" help:"Only those in this state: waiting, backoff or parked." placeholder:"STATE"`
	Key   string `help:"Only those of this key." placeholder:"KEY"`
	ID    string `name:"id" help:"Only those with this ID, in full detail." placeholder:"ID"`
	Code  string `help:"Only those whose last error had this code." placeholder:"CODE"`
	After int64  `help:"Only those after this one." placeholder:"NUMBER"`
	Limit int    `default:"50" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (o *collectorOps) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListOperations(ctx, o.Name, client.ListOperationsParams(o.opsPage))
	if o.ID != "" && len(page.Ops) > 0 && !term.JSON {
		return term.Printf("%s", cli.Each(page.Ops, func(o *client.OpView) string { return opText(o, term.Room()) }))
	}
	return (&cli.List[client.OpView]{
		Columns: "NUMBER>|ID|KEY|STATE|TRIES>|ADDED|ERROR",
		Row: func(o *client.OpView) []any {
			state := o.State + cli.If(o.Flushing, ", flushing") + cli.If(o.FoldedInto != "", ", with %v", o.FoldedInto)
			return []any{strconv.FormatInt(o.Number, 10), o.ID, o.Key, state, o.Attempts, o.AddedAt,
				o.Code + cli.If(o.Message != "", ": %v", o.Message)}
		},
		Empty: "no operations", Next: page.Next,
	}).Print(term, page.Ops, err)
}

func opText(o *client.OpView, room int) string {
	t := cli.Table{}
	t.Row("operation", o.ID)
	t.Row("number", strconv.FormatInt(o.Number, 10))
	t.Row("key", o.Key)
	backoff := o.NotBefore != nil && o.State == collector.OpBackoff
	t.Row("state", o.State+cli.If(backoff, " until %v", o.NotBefore)+
		cli.If(!backoff && o.Flushing, "; its key is being flushed"))
	t.If(o.Fold != "", "folded", "with those of its key that have %v", o.Fold)
	t.If(o.FoldedInto != "", "went with", "%v, into which it was folded in its last try", o.FoldedInto)
	t.Row("added", o.AddedAt)
	t.Row("tries", o.Attempts)
	t.If(o.Code != "", "last error", "%v", cli.Shown(cli.EscapeControl(o.Code+": "+o.Message), room))
	t.If(o.FailedFirst != nil && o.FailedLast != nil, "failed", "first %v, last %v", o.FailedFirst, o.FailedLast)
	return t.String() + "\n" + cli.Shown(cli.InertText(string(o.Payload)), room) + "\n"
}

type opChoice struct {
	documentName
	IDs  []string `arg:"" optional:"" name:"id" help:"IDs of operations."`
	Key  []string `sep:"none" help:"Those of this key; repeatable." placeholder:"KEY"`
	Code string   `help:"Those whose last error had this code." placeholder:"CODE"`
	All  bool     `help:"All of them."`
}

func (c *opChoice) Validate() error {
	return chosenOnce(c.All, len(c.IDs) > 0 || len(c.Key) > 0 || c.Code != "",
		"operations: their ids, --key KEY, --code CODE or --all", "give either --all, or ids, --key or --code")
}

// tell reports how many operations were affected; given IDs that match none are an error.
func (c *opChoice) tell(term *cli.Console, n int64, did, none string, err error) error {
	if err == nil && len(c.IDs) > 0 && n == 0 {
		return fmt.Errorf("no operation with ID %s; see: tranche collector ops %s", none, cli.EscapeControl(c.Name))
	}
	return cli.Say(term, func(n *int64) string {
		if *n == 0 {
			return "no such operation " + none
		}
		return cli.Plural(*n, "operation") + " " + did
	})(n, err)
}

type collectorRequeue struct{ opChoice }

func (r *collectorRequeue) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.RequeueOperations(ctx, r.Name,
		client.OperationChoice{IDs: r.IDs, Keys: r.Key, Code: r.Code, All: r.All})
	return r.tell(term, done.Requeued, "requeued", "is parked or in backoff", err)
}

type collectorDrop struct {
	opChoice
	Waiting bool `help:"Also those that are not parked."`
}

func (d *collectorDrop) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DropOperations(ctx, d.Name,
		client.DropChoice{IDs: d.IDs, Keys: d.Key, Code: d.Code, All: d.All, Waiting: d.Waiting})
	none := "is parked; --waiting drops those that wait, too"
	if d.Waiting {
		none = "is parked, or waits"
	}
	return d.tell(term, done.Dropped, "dropped", none, err)
}
