package main

import (
	"context"
	"strconv"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

type quarantineList struct {
	Of    string `name:"run" help:"Only those about this run: an id, a piece of one, a name, or last." placeholder:"RUN"`
	After int64  `help:"Only those older than this one." placeholder:"NUMBER"`
	Limit int    `default:"20" help:"How many." placeholder:"N"`
}

// Validate is called by kong.
func (q *quarantineList) Validate() error { return listLimit(q.Limit, deadletter.MaxQuarantined) }

// Run lists quarantined messages.
func (q *quarantineList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	page, err := cl.ListQuarantined(ctx, client.ListQuarantinedParams{
		Run: q.Of, After: q.After, Limit: q.Limit,
	}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	if len(page.Messages) == 0 {
		return term.printf("nothing is in quarantine\n")
	}
	if err := term.printf("%s", quarantineText(page.Messages, term.room())); err != nil {
		return err
	}
	if page.Next != 0 {
		term.note("there are more; go on with --after %d", page.Next)
	}
	return nil
}

func quarantineText(messages []client.QuarantinedView, room int) string {
	t := table{right: map[int]bool{0: true}, room: room}
	t.row("NUMBER", "TIME", "REASON", "RUN", "DETAIL")
	for i := range messages {
		m := &messages[i]
		run := "-"
		if m.Run != nil {
			run = shortID(*m.Run)
		}
		t.row(strconv.FormatInt(m.ID, 10), moment(m.At)[5:16], short(inert(m.Reason), 20), run, inert(m.Detail))
	}
	return t.String()
}

type quarantineShow struct {
	Number int64 `arg:"" help:"Its number in the list."`
	Full   bool  `help:"All that is kept of the body: 64 KiB."`
}

// Run shows a quarantined message.
func (q *quarantineShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	m, err := cl.GetQuarantined(ctx, q.Number, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s%s%s", quarantinedHead(&m), headersText(m.Headers), contentText(&m.Body, q.Full))
}

func quarantinedHead(m *client.QuarantinedDocument) string {
	t := table{}
	t.row("number", strconv.FormatInt(m.ID, 10))
	t.row("time", moment(m.At))
	t.row("reason", inert(m.Reason))
	t.row("detail", short(inert(m.Detail), maxShown))
	t.row("subject", inert(m.Subject))
	if m.Run != nil {
		t.row("run", *m.Run)
	}
	if m.Slice != nil {
		t.row("slice", *m.Slice)
	}
	return t.String()
}
