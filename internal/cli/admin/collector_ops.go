package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type collectorAdd struct {
	collectorName
	File     string  `arg:"" optional:"" help:"Operations, a JSON object a line: {\"id\":…,\"key\":…,\"payload\":…}; - is standard input." placeholder:"FILE"`
	Payload  *string `help:"A single operation instead of a file: its payload, as JSON." placeholder:"JSON"`
	Key      string  `help:"The key of the single operation." placeholder:"KEY"`
	ID       string  `name:"id" help:"Its id: added again, it is left out." placeholder:"ID"`
	Priority int     `help:"Its priority, 0 to 9, the highest first." placeholder:"N"`
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
	case a.Priority < 0 || a.Priority > collector.MaxOpPriority:
		return fmt.Errorf("--priority is %d; it must lie between 0 and %d", a.Priority, collector.MaxOpPriority)
	}
	return nil
}

func (a *collectorAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	send := func(ops io.Reader) (client.AddedOperations, error) {
		return cl.AddOperations(ctx, a.Name, client.AddOperationsParams{DryRun: a.DryRun}, "application/x-ndjson", ops,
			term.Keep())
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

// operation is the single one.
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

// addedText says what was added, or what would be.
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
			fold = ", folded by " + cli.Inert(o.Fold)
		}
		text += fmt.Sprintf("\n  key %s%s: %s", cli.Inert(o.Key), fold, cli.Inert(string(o.Payload)))
	}
	if more := added.Added - len(added.Sample); more > 0 {
		text += fmt.Sprintf("\n  and %s more", cli.Count(int64(more)))
	}
	return text + "\nnothing was added; without --dry-run it is"
}

type collectorOps struct {
	collectorName
	State string `enum:",waiting,backoff,parked" default:"" help:"Only those in this state: waiting, backoff or parked." placeholder:"STATE"`
	Key   string `help:"Only those of this key." placeholder:"KEY"`
	ID    string `name:"id" help:"Only those with this id, with all that is known of them." placeholder:"ID"`
	Code  string `help:"Only those whose last error had this code." placeholder:"CODE"`
	After int64  `help:"Only those after this one." placeholder:"NUMBER"`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

const maxOpsShown = 500

func (o *collectorOps) Validate() error { return cli.Within("--limit", &o.Limit, maxOpsShown) }

func (o *collectorOps) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListOperations(ctx, o.Name, client.ListOperationsParams{
		State: o.State, Key: o.Key, ID: o.ID, Code: o.Code, After: o.After, Limit: o.Limit,
	}, term.Keep())
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

// opText is all about one operation.
func opText(o *client.OpView, room int) string {
	t := cli.Table{}
	t.Row("operation", o.ID)
	t.Row("number", strconv.FormatInt(o.Number, 10))
	t.Row("key", o.Key)
	state := o.State
	switch {
	case o.NotBefore != nil && o.State == collector.OpBackoff:
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
		t.Row("last error", cli.Shown(cli.Inert(o.Code+": "+o.Message), room))
	}
	if o.FailedFirst != nil && o.FailedLast != nil {
		t.Row("failed", fmt.Sprintf("first %s, last %s", cli.Moment(*o.FailedFirst), cli.Moment(*o.FailedLast)))
	}
	return fmt.Sprintf("%s\n%s\n", t.String(), cli.Shown(cli.InertText(string(o.Payload)), room))
}

// opChoice is the operations that a command is about.
type opChoice struct {
	collectorName
	IDs  []string `arg:"" optional:"" name:"id" help:"Ids of operations."`
	Key  []string `help:"Those of this key; may stand more than once." placeholder:"KEY"`
	Code string   `help:"Those whose last error had this code." placeholder:"CODE"`
	All  bool     `help:"All of them."`
}

// Validate refuses a choice that is none, or two: what is meant has to be spelled out.
func (c *opChoice) Validate() error {
	return chosenOnce(c.All, len(c.IDs) > 0 || len(c.Key) > 0 || c.Code != "",
		"operations: their ids, --key KEY, --code CODE or --all", "give either --all, or ids, --key or --code")
}

type collectorRequeue struct{ opChoice }

func (r *collectorRequeue) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.RequeueOperations(ctx, r.Name,
		client.OperationChoice{IDs: r.IDs, Keys: r.Key, Code: r.Code, All: r.All}, term.Keep())
	if err == nil && len(r.IDs) > 0 && done.Requeued == 0 {
		return errors.New("no operation with such an id is parked or waits for its next try; see: tranche collector ops " +
			cli.Inert(r.Name))
	}
	return cli.Say(term, func(done *client.RequeuedOperations) string {
		if done.Requeued == 0 {
			return "no such operation is parked or waits for its next try"
		}
		return cli.Plural(done.Requeued, "operation") + " requeued"
	})(done, err)
}

type collectorDrop struct {
	opChoice
	Waiting bool `help:"Also those that are not parked."`
}

func (d *collectorDrop) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DropOperations(ctx, d.Name,
		client.DropChoice{IDs: d.IDs, Keys: d.Key, Code: d.Code, All: d.All, Waiting: d.Waiting}, term.Keep())
	none := "is parked; --waiting drops those that wait, too"
	if d.Waiting {
		none = "is parked, or waits"
	}
	if err == nil && len(d.IDs) > 0 && done.Dropped == 0 {
		return errors.New("no operation with such an id " + none)
	}
	return cli.Say(term, func(done *client.DroppedOperations) string {
		if done.Dropped == 0 {
			return "no such operation " + none
		}
		return cli.Plural(done.Dropped, "operation") + " dropped"
	})(done, err)
}
