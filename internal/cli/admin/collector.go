package admin

import (
	"bytes"
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

	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

type collectorCommands struct {
	Apply   applyDocument[collectorKind]  `cmd:"" help:"Save a collector, or change it."`
	List    collectorList                 `cmd:"" help:"List collectors, with what waits in each."`
	Show    collectorShow                 `cmd:"" help:"Show a collector: its settings, what waits, and what keeps that waiting."`
	Add     collectorAdd                  `cmd:"" help:"Add operations; they are stored when the command ends."`
	Ops     collectorOps                  `cmd:"" help:"List operations, in the order in which they were added."`
	Requeue collectorRequeue              `cmd:"" help:"Retry operations that are parked, or wait for their next try."`
	Drop    collectorDrop                 `cmd:"" help:"Drop operations: they are deleted."`
	Drain   collectorDrain                `cmd:"" help:"Flush all that waits now, regardless of min_size and max_age."`
	Pause   pauseDocument[collectorKind]  `cmd:"" help:"Pause a collector: it takes operations, and flushes none until it is resumed."`
	Resume  resumeDocument[collectorKind] `cmd:"" help:"Resume a paused collector."`
	Delete  collectorDelete               `cmd:"" help:"Delete a collector that has no operations, or with --force any."`
}

type collectorKind struct{}

func (collectorKind) documents() *documents {
	return &documents{
		noun: "collector", most: collector.MaxBytes, waits: "operation",
		parse: func(name string, text []byte) error { _, err := collector.Parse(name, text); return err },
		apply: func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error) {
			return cl.ApplyCollector(ctx, client.ApplyCollectorParams{Name: name}, cli.YAML, text)
		},
		next: func(a *client.AppliedDocument) string {
			switch {
			case a.Renumbered:
				return "its keys are made otherwise now: what waits goes under the old ones, before what is added from now on"
			case a.Previous > 0:
				return "it holds from the next flush on"
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

type collectorDrain struct{ documentName }

func (d *collectorDrain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(c *client.Drained) string {
		if c.Ops == 0 {
			return "collector " + cli.EscapeControl(d.Name) + " has nothing that waits"
		}
		if c.Paused {
			term.Note("it is paused, so nothing goes until: tranche collector resume %s", d.Name)
		}
		return fmt.Sprintf("%s of %s need not wait for min_size or max_age any more; see: tranche collector show %s",
			cli.Plural(c.Ops, "operation"), cli.Plural(c.Keys, "key"), cli.EscapeControl(d.Name))
	})(cl.DrainCollector(ctx, d.Name))
}

type collectorDelete struct {
	documentName
	Force bool `help:"Also with operations, which are lost then."`
}

func (d *collectorDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, collectorKind{}.documents().controlledText)(
		cl.DeleteCollector(ctx, d.Name, client.DeleteCollectorParams{Force: d.Force}))
}

type collectorShow struct {
	documentName
	Source bool `help:"Print it as it was applied, and nothing else."`
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
	state := c.State
	if c.PausedAt != nil {
		state += fmt.Sprintf(" by %s since %s", c.PausedBy, cli.Moment(*c.PausedAt))
	}
	t.Row("state", state)
	t.Row("endpoint", p.Endpoint)
	t.Row("flushed", fmt.Sprintf("a key with %d operations, or after %s; at most %d together", p.MinSize,
		cli.ShortTime(p.MaxAge.String()), p.MaxSize))
	limits := fmt.Sprintf("%d flushes in flight", p.InFlight)
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
		t.Row("retried", strings.Join(p.RetryCodes, ", ")+", regardless of what the service says")
	}
	if len(p.NoRetryCodes) > 0 {
		t.Row("not retried", strings.Join(p.NoRetryCodes, ", ")+", regardless of what the service says")
	}
	t.Row("ids", "remembered for "+cli.ShortTime(p.Dedupe.String()))
	t.Row("applied", fmt.Sprintf("%s by %s, version %d", cli.Moment(c.ChangedAt), c.ChangedBy, c.Version))
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		t.Row("param", name+"="+p.Params[name])
	}
	return t.String()
}

func storedText(e *client.Enrichment) string {
	var query struct {
		Source string `json:"source"`
	}
	if len(e.SQL) == 0 || json.Unmarshal(e.SQL, &query) != nil {
		return cli.EscapeControl(string(e.Payload))
	}
	return cli.EscapeControl(string(e.Payload)) + ", with a row of source " + cli.EscapeControl(query.Source)
}

func foldText(p *client.CollectorSpec) string {
	by := "key"
	switch {
	case p.FoldBy != "":
		by = "payload's " + cli.EscapeControl(p.FoldBy)
	case p.OrderBy != nil && p.OrderBy.Field != order.Key:
		by = "payload's " + cli.EscapeControl(p.OrderBy.Field)
	}
	if p.Fold == collectorstore.FoldMerge {
		return "those of the same " + by + " go as one, with their payloads merged"
	}
	return "those of the same " + by + " go as one, the last"
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
	t.Row("keys", c.Keys, fmt.Sprintf("%s due, %s being flushed", cli.Count(c.Due), cli.Count(int64(c.Flushing))))
	return t.String()
}

func collectorWhy(c *client.CollectorView) string {
	var text strings.Builder
	for _, why := range c.Why {
		fmt.Fprintf(&text, "%s: %s\n", why.Code, cli.EscapeControl(why.Text))
	}
	switch {
	case c.Waiting+c.Backoff+c.Parked == 0:
		text.WriteString("nothing waits\n")
	case len(c.Why) == 0:
		text.WriteString("nothing keeps it from being flushed\n")
	}
	if c.Parked > 0 {
		fmt.Fprintf(&text, "see what is parked:  tranche collector ops %s --state parked\n"+
			"try it again:        tranche collector requeue %s --all\n", cli.EscapeControl(c.Name), cli.EscapeControl(c.Name))
	}
	return text.String()
}

type collectorAdd struct {
	documentName
	File     string  `arg:"" optional:"" help:"Operations, a JSON object a line: {\"id\":…,\"key\":…,\"payload\":…}; - is standard input." placeholder:"FILE"`
	Payload  *string `help:"A single operation instead of a file: its payload, as JSON." placeholder:"JSON"`
	Key      string  `help:"The key of the single operation." placeholder:"KEY"`
	ID       string  `name:"id" help:"Its id: added again, it is left out." placeholder:"ID"`
	Priority int     `within:"0,9" help:"Its priority, 0 to 9, the highest first." placeholder:"N"`
	DryRun   bool    `help:"Add nothing; say what would be added, and how it would be stored, or what is wrong."`
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
		return fmt.Errorf("--payload is %.60q, which is no JSON; put text in quotes, like --payload '\"text\"'", *a.Payload)
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
	text := cli.Plural(int64(added.Added), "operation")
	if added.DryRun {
		text += " would be"
	}
	text += " added"
	if added.Duplicates > 0 {
		text += fmt.Sprintf(", %s left out: added before, by their ids", cli.Count(int64(added.Duplicates)))
	}
	if !added.DryRun {
		return text
	}
	for i := range added.Sample {
		o := &added.Sample[i]
		fold := ""
		if o.Fold != "" {
			fold = ", folded by " + cli.EscapeControl(o.Fold)
		}
		text += fmt.Sprintf("\n  key %s%s: %s", cli.EscapeControl(o.Key), fold, cli.EscapeControl(string(o.Payload)))
	}
	if more := added.Added - len(added.Sample); more > 0 {
		text += fmt.Sprintf("\n  and %s more", cli.Count(int64(more)))
	}
	return text + "\nnothing was added; without --dry-run it is"
}

type collectorOps struct {
	documentName
	opsPage
}

type opsPage struct {
	State string `enum:",waiting,backoff,parked" default:"" help:"Only those in this state: waiting, backoff or parked." placeholder:"STATE"`
	Key   string `help:"Only those of this key." placeholder:"KEY"`
	ID    string `name:"id" help:"Only those with this id, with all that is known of them." placeholder:"ID"`
	Code  string `help:"Only those whose last error had this code." placeholder:"CODE"`
	After int64  `help:"Only those after this one." placeholder:"NUMBER"`
	Limit int    `default:"50" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (o *collectorOps) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListOperations(ctx, o.Name, client.ListOperationsParams(o.opsPage))
	if o.ID != "" && len(page.Ops) > 0 && !term.JSON {
		for i := range page.Ops {
			if err := term.Printf("%s", opText(&page.Ops[i], term.Room())); err != nil {
				return err
			}
		}
		return nil
	}
	return (&cli.List[client.OpView]{
		Columns: "NUMBER>|ID|KEY|STATE|TRIES>|ADDED|ERROR",
		Row: func(o *client.OpView) []any {
			state := o.State
			if o.Flushing {
				state += ", flushing"
			}
			if o.FoldedInto != "" {
				state += ", with " + o.FoldedInto
			}
			problem := o.Code
			if o.Message != "" {
				problem += ": " + o.Message
			}
			return []any{strconv.FormatInt(o.Number, 10), o.ID, o.Key, state, o.Attempts, o.AddedAt, problem}
		},
		Empty: "no operations", Next: page.Next,
	}).Print(term, page.Ops, err)
}

func opText(o *client.OpView, room int) string {
	t := cli.Table{}
	t.Row("operation", o.ID)
	t.Row("number", strconv.FormatInt(o.Number, 10))
	t.Row("key", o.Key)
	state := o.State
	switch {
	case o.NotBefore != nil && o.State == collectorstore.OpBackoff:
		state += " until " + cli.Moment(*o.NotBefore)
	case o.Flushing:
		state += "; its key is being flushed"
	}
	t.Row("state", state)
	if o.Fold != "" {
		t.Row("folded", "with those of its key that have "+o.Fold)
	}
	if o.FoldedInto != "" {
		t.Row("went with", o.FoldedInto+", into which it was folded in its last try")
	}
	t.Row("added", o.AddedAt)
	t.Row("tries", o.Attempts)
	if o.Code != "" {
		t.Row("last error", cli.Shown(cli.EscapeControl(o.Code+": "+o.Message), room))
	}
	if o.FailedFirst != nil && o.FailedLast != nil {
		t.Row("failed", fmt.Sprintf("first %s, last %s", cli.Moment(*o.FailedFirst), cli.Moment(*o.FailedLast)))
	}
	return fmt.Sprintf("%s\n%s\n", t.String(), cli.Shown(cli.InertText(string(o.Payload)), room))
}

type opChoice struct {
	documentName
	IDs  []string `arg:"" optional:"" name:"id" help:"Ids of operations."`
	Key  []string `sep:"none" help:"Those of this key; may stand more than once." placeholder:"KEY"`
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
		return fmt.Errorf("no operation with such an id %s; see: tranche collector ops %s", none, cli.EscapeControl(c.Name))
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
	return r.tell(term, done.Requeued, "requeued", "is parked or waits for its next try", err)
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
