package admin

import (
	"context"
	"strconv"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

type quarantineList struct {
	Of    string `name:"run" help:"Only those about this run: an id, a piece of one, a name, or last." placeholder:"RUN"`
	After int64  `help:"Only those older than this one." placeholder:"NUMBER"`
	Limit int    `default:"20" help:"How many." placeholder:"N"`
}

func (q *quarantineList) Validate() error { return cli.ListLimit(q.Limit, deadletter.MaxQuarantined) }

// Run lists quarantined messages.
func (q *quarantineList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListQuarantined(ctx, client.ListQuarantinedParams{
		Run: q.Of, After: q.After, Limit: q.Limit,
	}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(page.Messages) == 0 {
		return term.Printf("nothing is in quarantine\n")
	}
	if err := term.Printf("%s", quarantineText(page.Messages, term.Room())); err != nil {
		return err
	}
	if page.Next != 0 {
		term.Note("there are more; go on with --after %d", page.Next)
	}
	return nil
}

func quarantineText(messages []client.QuarantinedView, room int) string {
	t := cli.Table{Right: map[int]bool{0: true}, Room: room}
	t.Row("NUMBER", "TIME", "REASON", "RUN", "DETAIL")
	for i := range messages {
		m := &messages[i]
		run := "-"
		if m.Run != nil {
			run = cli.ShortID(*m.Run)
		}
		t.Row(strconv.FormatInt(m.ID, 10), cli.Moment(m.At), cli.Inert(m.Reason), run,
			cli.Inert(m.Detail))
	}
	return t.String()
}

type quarantineShow struct {
	Number int64 `arg:"" help:"Its number in the list."`
	Full   bool  `help:"All that is kept of the body: 64 KiB."`
}

// Run shows a quarantined message.
func (q *quarantineShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	m, err := cl.GetQuarantined(ctx, q.Number, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s%s%s", quarantinedHead(&m, term.Room()), cli.HeadersText(m.Headers, term.Room()),
		cli.ContentText(&m.Body, term.Room(), q.Full))
}

func quarantinedHead(m *client.QuarantinedDocument, room int) string {
	t := cli.Table{}
	t.Row("number", strconv.FormatInt(m.ID, 10))
	t.Row("time", cli.Moment(m.At))
	t.Row("reason", cli.Inert(m.Reason))
	t.Row("detail", cli.Shown(cli.Inert(m.Detail), room))
	t.Row("subject", cli.Inert(m.Subject))
	if m.Run != nil {
		t.Row("run", *m.Run)
	}
	if m.Slice != nil {
		t.Row("slice", *m.Slice)
	}
	return t.String()
}
