package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type collectorAdd struct {
	Name     string  `arg:"" help:"The collector."`
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

// Run adds operations.
func (a *collectorAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	ops, size, err := a.open(term)
	if err != nil {
		return err
	}
	defer func() { _ = ops.Close() }()
	upload := &cli.Upload{From: ops, Size: size, Term: term, Live: cli.IsTerminal(term.Err)}
	added, err := cl.AddOperations(ctx, a.Name, client.AddOperationsParams{DryRun: a.DryRun}, "application/x-ndjson",
		upload, term.Keep())
	upload.End()
	switch {
	case err != nil && upload.Err != nil:
		return fmt.Errorf("read %s: %w", a.File, upload.Err)
	case err != nil && a.Payload == nil && refusedInput(err):
		return fmt.Errorf("%s: %w", a.File, err)
	case err != nil || term.JSON:
		return term.Answered(err)
	}
	return term.Printf("%s", addedText(&added))
}

// addedText says what was added, or what would be.
func addedText(added *client.AddedOperations) string {
	var text strings.Builder
	text.WriteString(cli.Plural(int64(added.Added), "operation"))
	if added.DryRun {
		text.WriteString(" would be")
	}
	text.WriteString(" added")
	if added.Duplicates > 0 {
		fmt.Fprintf(&text, ", %s left out: added before, by their ids", cli.Count(int64(added.Duplicates)))
	}
	text.WriteString("\n")
	if !added.DryRun {
		return text.String()
	}
	for i := range added.Sample {
		o := &added.Sample[i]
		fold := ""
		if o.Fold != "" {
			fold = ", folded by " + cli.Inert(o.Fold)
		}
		fmt.Fprintf(&text, "  key %s%s: %s\n", cli.Inert(o.Key), fold, cli.Inert(string(o.Payload)))
	}
	if more := added.Added - len(added.Sample); more > 0 {
		fmt.Fprintf(&text, "  and %s more\n", cli.Count(int64(more)))
	}
	text.WriteString("nothing was added; without --dry-run it is\n")
	return text.String()
}

// refusedInput reports whether it is what was sent that is wrong.
func refusedInput(err error) bool {
	refused, ok := errors.AsType[*client.ProblemError](err)
	return ok && refused.Status == http.StatusUnprocessableEntity
}

func (a *collectorAdd) open(term *cli.Console) (io.ReadCloser, int64, error) {
	if a.Payload == nil {
		return cli.OpenItems("file", a.File, term.In)
	}
	op := map[string]any{"payload": json.RawMessage(*a.Payload)}
	if a.ID != "" {
		op["id"] = a.ID
	}
	if a.Key != "" {
		op["key"] = a.Key
	}
	if a.Priority != 0 {
		op["priority"] = a.Priority
	}
	text, err := json.Marshal(op)
	if err != nil {
		return nil, 0, cli.Usage(fmt.Sprintf("--payload: %v", err))
	}
	return io.NopCloser(strings.NewReader(string(text))), int64(len(text)), nil
}

type collectorOps struct {
	Name  string `arg:"" help:"The collector."`
	State string `enum:",waiting,backoff,parked" default:"" help:"Only those in this state: waiting, backoff or parked." placeholder:"STATE"`
	Key   string `help:"Only those of this key." placeholder:"KEY"`
	ID    string `name:"id" help:"Only those with this id, with all that is known of them." placeholder:"ID"`
	Code  string `help:"Only those whose last error had this code." placeholder:"CODE"`
	After int64  `help:"Only those after this one." placeholder:"NUMBER"`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

const maxOpsShown = 500

func (o *collectorOps) Validate() error { return cli.ListLimit(o.Limit, maxOpsShown) }

// Run lists operations.
func (o *collectorOps) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListOperations(ctx, o.Name, client.ListOperationsParams{
		State: o.State, Key: o.Key, ID: o.ID, Code: o.Code, After: o.After, Limit: o.Limit,
	}, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case len(page.Ops) == 0:
		return term.Printf("no operations\n")
	case o.ID != "":
		for i := range page.Ops {
			if err := term.Printf("%s", opText(&page.Ops[i], term.Room())); err != nil {
				return err
			}
		}
		return nil
	}
	if err := term.Printf("%s", opsText(page.Ops, term.Room())); err != nil {
		return err
	}
	if page.Next != 0 {
		term.Note("there are more; go on with --after %d", page.Next)
	}
	return nil
}

func opsText(ops []client.OpView, room int) string {
	t := cli.Table{Right: map[int]bool{0: true, 4: true}, Room: room}
	t.Row("NUMBER", "ID", "KEY", "STATE", "TRIES", "ADDED", "ERROR")
	for i := range ops {
		o := &ops[i]
		state := o.State
		if o.Flushing {
			state += ", flushing"
		}
		if o.FoldedInto != "" {
			state += ", with " + cli.Inert(o.FoldedInto)
		}
		problem := cli.Inert(o.Code)
		if o.Message != "" {
			problem += ": " + cli.Inert(o.Message)
		}
		t.Row(strconv.FormatInt(o.Number, 10), cli.Inert(o.ID), cli.Inert(o.Key), state,
			strconv.Itoa(o.Attempts), cli.Moment(o.AddedAt), problem)
	}
	return t.String()
}

// opText is all about one operation.
func opText(o *client.OpView, room int) string {
	t := cli.Table{}
	t.Row("operation", cli.Inert(o.ID))
	t.Row("number", strconv.FormatInt(o.Number, 10))
	t.Row("key", cli.Inert(o.Key))
	state := o.State
	switch {
	case o.NotBefore != nil && o.State == collector.OpBackoff:
		state += " until " + cli.Moment(*o.NotBefore)
	case o.Flushing:
		state += "; its key is being flushed"
	}
	t.Row("state", state)
	if o.Fold != "" {
		t.Row("folded", "with those of its key that have "+cli.Inert(o.Fold))
	}
	if o.FoldedInto != "" {
		t.Row("went with", cli.Inert(o.FoldedInto)+", into which it was folded in its last try")
	}
	t.Row("added", cli.Moment(o.AddedAt))
	t.Row("tries", strconv.Itoa(o.Attempts))
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
	Name string   `arg:"" help:"The collector."`
	IDs  []string `arg:"" optional:"" name:"id" help:"Ids of operations."`
	Key  []string `help:"Those of this key; may stand more than once." placeholder:"KEY"`
	Code string   `help:"Those whose last error had this code." placeholder:"CODE"`
	All  bool     `help:"All of them."`
}

// check refuses a choice that is none, or two: what is meant has to be spelled out.
func (c *opChoice) check() error {
	narrowed := len(c.IDs) > 0 || len(c.Key) > 0 || c.Code != ""
	switch {
	case c.All && narrowed:
		return errors.New("give either --all, or ids, --key or --code")
	case !c.All && !narrowed:
		return errors.New("say which operations: their ids, --key KEY, --code CODE or --all")
	}
	return nil
}

type collectorRequeue struct{ opChoice }

func (r *collectorRequeue) Validate() error { return r.check() }

// Run requeues operations.
func (r *collectorRequeue) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.RequeueOperations(ctx, r.Name,
		client.OperationChoice{IDs: r.IDs, Keys: r.Key, Code: r.Code, All: r.All}, term.Keep())
	switch {
	case err != nil:
		return err
	case len(r.IDs) > 0 && done.Requeued == 0:
		return errors.New("no operation with such an id is parked or waits for its next try; see: tranche collector ops " +
			cli.Inert(r.Name))
	case term.JSON:
		return term.Sent()
	case done.Requeued == 0:
		return term.Printf("no such operation is parked or waits for its next try\n")
	}
	return term.Printf("%s requeued\n", cli.Plural(done.Requeued, "operation"))
}

type collectorDrop struct {
	opChoice
	Waiting bool `help:"Also those that are not parked."`
}

func (d *collectorDrop) Validate() error { return d.check() }

// Run drops operations.
func (d *collectorDrop) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DropOperations(ctx, d.Name,
		client.DropChoice{IDs: d.IDs, Keys: d.Key, Code: d.Code, All: d.All, Waiting: d.Waiting}, term.Keep())
	switch {
	case err != nil:
		return err
	case len(d.IDs) > 0 && done.Dropped == 0:
		return errors.New("no operation with such an id " + map[bool]string{true: "is parked, or waits",
			false: "is parked; --waiting drops those that wait, too"}[d.Waiting])
	case term.JSON:
		return term.Sent()
	case done.Dropped == 0 && !d.Waiting:
		return term.Printf("no such operation is parked; --waiting drops those that wait, too\n")
	case done.Dropped == 0:
		return term.Printf("there is no such operation\n")
	}
	return term.Printf("%s dropped\n", cli.Plural(done.Dropped, "operation"))
}
