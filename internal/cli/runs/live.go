package runs

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

const maxPage = 1000 // entries of a list that the API gives at once

// Slices is tranche run slices.
type Slices struct {
	Ref   string   `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	State []string `enum:"scheduled,claimed,sent" help:"Only those in this state; may stand more than once." placeholder:"STATE"`
	After string   `help:"Only those behind this one, by its whole id." placeholder:"ID"`
	Limit int      `default:"20" help:"How many." placeholder:"N"`
}

// Validate is called by kong.
func (r *Slices) Validate() error { return cli.ListLimit(r.Limit, maxPage) }

// Run lists requests that are under way.
func (r *Slices) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListSlices(ctx, r.Ref, client.ListSlicesParams{State: r.State, After: r.After, Limit: r.Limit},
		term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if err := term.Printf("%s", slicesText(&page, term.Room())); err != nil {
		return err
	}
	if page.Next != nil {
		term.Note("there are more; go on with --after %s", *page.Next)
	}
	return nil
}

func slicesText(page *client.LiveSlices, room int) string {
	n := &page.Counts
	head := fmt.Sprintf("%s scheduled, %s claimed, %s sent\n", cli.Count(n.Scheduled), cli.Count(n.Claimed),
		cli.Count(n.Sent))
	if len(page.Slices) == 0 {
		return head
	}
	t := cli.Table{Right: map[int]bool{3: true, 4: true}, Room: room}
	t.Row("SLICE", "STEP", "STATE", "ITEMS", "TRY", "WHY", "FIRST", "NODE", "SERVICE", "DEADLINE")
	for i := range page.Slices {
		s := &page.Slices[i]
		node, until := "-", "-"
		if s.Node != nil {
			node = fmt.Sprintf("%s:%d", cli.Inert(s.Node.Host), s.Node.PID)
		}
		if s.Deadline != nil {
			until = cli.Moment(*s.Deadline)
		} else if s.NotBefore != nil {
			until = "not before " + cli.Moment(*s.NotBefore)
		}
		t.Row(s.ID[:min(len(s.ID), 8)], cli.Inert(s.Step), s.State, cli.Count(int64(s.Remaining)),
			fmt.Sprint(s.Attempt),
			cli.Inert(s.Cause), cli.Inert(s.FirstKey), node, cli.OrDash(s.Service), until)
	}
	return head + t.String()
}

// Items is tranche run items.
type Items struct {
	Ref   string   `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	From  int64    `help:"The first ordinal." placeholder:"N"`
	To    *int64   `help:"The last ordinal." placeholder:"N"`
	Step  string   `help:"As they are at this step; over all steps when absent." placeholder:"NAME"`
	State []string `enum:"waiting,held,ready,scheduled,in_flight,done,failed,skipped,stale" help:"Only those in this state; may stand more than once." placeholder:"STATE"`
	After *int64   `help:"Only those behind this ordinal." placeholder:"N"`
	Limit int      `default:"20" help:"How many." placeholder:"N"`
}

// Validate is called by kong.
func (r *Items) Validate() error { return cli.ListLimit(r.Limit, maxPage) }

// Run lists items in their order.
func (r *Items) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListItems(ctx, r.Ref, client.ListItemsParams{From: r.From, To: r.To, Step: r.Step, State: r.State,
		After: r.After, Limit: r.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(page.Items) == 0 {
		return term.Printf("no items\n")
	}
	if err := term.Printf("%s", itemsText(page.Items, term.Room())); err != nil {
		return err
	}
	if page.Next != nil {
		term.Note("there are more; go on with --after %d", *page.Next)
	}
	return nil
}

func itemsText(items []client.ItemRow, room int) string {
	t := cli.Table{Right: map[int]bool{0: true, 3: true}, Room: room}
	t.Row("ORDINAL", "KEY", "STATE", "TRIES", "ERROR")
	for i := range items {
		item := &items[i]
		problem := ""
		if item.Error != nil {
			problem = cli.Inert(item.Error.Code) + ": " + cli.Inert(item.Error.Message)
		}
		state := item.State
		if item.Accepted {
			state += " (accepted)"
		}
		t.Row(fmt.Sprint(item.Ordinal), cli.Inert(item.Key), state, fmt.Sprint(item.Attempts), problem)
	}
	return t.String()
}
