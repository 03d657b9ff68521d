package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type dlqList struct {
	Endpoint string `help:"Only those of this endpoint." placeholder:"NAME"`
	State    string `enum:",waiting,requeued,reissued,dropped" default:"" help:"Only those in this state: waiting, requeued, reissued or dropped." placeholder:"STATE"`
	Limit    int    `default:"20" within:"1,500" help:"How many, at most 500." placeholder:"N"`
	After    string `help:"Only those older than this one, by its whole ID." placeholder:"ID"`
}

func (l *dlqList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListDeadLetters(ctx, client.ListDeadLettersParams(*l))
	return (&cli.List[client.DeadLetter]{
		Columns: "LETTER|ENDPOINT|CAUSE|STATE|DIED|MESSAGE?",
		Row: func(l *client.DeadLetter) []any {
			return []any{shortDeadLetter(l.ID), l.Endpoint, l.Cause, l.State, l.At, l.Message}
		},
		Empty: "no dead letters", Next: page.Next,
	}).Print(term, page.Letters, err)
}

func shortDeadLetter(id string) string { return id[:min(len(id), 18)] }

type dlqShow struct {
	ID   string `arg:"" name:"dead-letter" help:"ID, or part of one."`
	Full bool   `help:"Print the whole body."`
}

func (l *dlqShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, func(d *client.DeadLetterDocument, room int) string {
		return deadLetterHead(d, room) + headersText(d.Headers, room) + contentText(&d.Body, room, l.Full) +
			whatToDo(d)
	})(cl.GetDeadLetter(ctx, l.ID, client.GetDeadLetterParams{Full: l.Full}))
}

func deadLetterHead(l *client.DeadLetterDocument, room int) string {
	t := cli.Table{}
	t.Row("dead letter", l.ID)
	t.Row("endpoint", l.Endpoint)
	t.Say("state", "%v since %v", l.State, l.ChangedAt)
	t.Row("cause", l.Cause)
	t.Field("message", cli.Shown(l.Message, room))
	t.Field("mode", l.Mode)
	t.Field("run", l.Run)
	t.Field("slice", l.Slice)
	t.Field("root slice", l.Root)
	t.Field("waited for by", l.Stack)
	t.Field("origin", l.Origin)
	t.Field("abandoned by", l.Service)
	t.Field("items", l.Items)
	t.Field("deliveries", l.Deliveries)
	t.Say("requeued", "%v times", l.Requeued)
	t.Row("died", l.At)
	return t.String()
}

func whatToDo(l *client.DeadLetterDocument) string {
	id := shortDeadLetter(l.ID)
	switch l.State {
	case client.LetterStateWaiting:
		return fmt.Sprintf("\nsend it again:  tranche dlq requeue %s\ndrop it:        tranche dlq drop %s\n", id, id)
	case client.LetterStateReissued:
		return "\nits items were retried automatically, in smaller requests: no action is needed\n"
	default:
		return ""
	}
}

type deadLetterChoice struct {
	IDs      []string `arg:"" optional:"" name:"dead-letter" help:"IDs, or parts of them."`
	Endpoint string   `help:"All waiting ones of this endpoint." placeholder:"NAME"`
	All      bool     `help:"All waiting ones."`
}

func (c *deadLetterChoice) Validate() error {
	const either = "give either ids, or --endpoint, or --all"
	if len(c.IDs) > 0 && c.Endpoint != "" {
		return errors.New(either)
	}
	return chosenOnce(c.All, len(c.IDs) > 0 || c.Endpoint != "", "dead letters: their ids, --endpoint NAME or --all",
		either)
}

type dlqRequeue struct {
	deadLetterChoice
	Force bool `help:"Also those that were requeued three times without success."`
}

func (r *dlqRequeue) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.RequeueDeadLetters(ctx,
		client.RequeueSettings{IDs: r.IDs, Endpoint: r.Endpoint, All: r.All, Force: r.Force})
	return cli.FailIf(done.RefusedTotal > 0, cli.ExitOther, cli.Say(term, requeuedText)(done, err))
}

func requeuedText(done *client.Requeue) string {
	if done.Requeued == 0 && done.RefusedTotal == 0 {
		return "no dead letter waits"
	}
	text := cli.Plural(int64(done.Requeued), "dead letter") + " requeued" +
		cli.If(done.RefusedTotal > 0, ", %v refused", done.RefusedTotal)
	refused := cli.Each(done.Refused, func(l *client.RefusedLetter) string {
		return cli.Text("\n  %v: %v", shortDeadLetter(l.ID), l.Reason)
	})
	more := done.RefusedTotal - len(done.Refused)
	return text + refused + cli.If(more > 0, "\n  and %v more", more)
}

type dlqDrop struct{ deadLetterChoice }

func (d *dlqDrop) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(done *client.Dropped) string {
		return cli.Plural(int64(done.Dropped), "dead letter") + " dropped"
	})(cl.DropDeadLetters(ctx, client.LetterSelection{IDs: d.IDs, Endpoint: d.Endpoint, All: d.All}))
}

type quarantineList struct{ quarantinePage }

type quarantinePage struct {
	Run   string `name:"run" help:"Only those about this run: ID, part of an ID, name, or last." placeholder:"RUN"`
	After int64  `help:"Only those older than this one." placeholder:"NUMBER"`
	Limit int    `default:"20" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (q *quarantineList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListQuarantined(ctx, client.ListQuarantinedParams(q.quarantinePage))
	return (&cli.List[client.QuarantinedView]{
		Columns: "NUMBER>|TIME|REASON|RUN|DETAIL",
		Row: func(m *client.QuarantinedView) []any {
			return []any{strconv.FormatInt(m.ID, 10), m.At, m.Reason, cli.ShortRun(m.Run), m.Detail}
		},
		Empty: "nothing is in quarantine", Next: page.Next,
	}).Print(term, page.Messages, err)
}

type quarantineShow struct {
	Number int64 `arg:"" help:"Its number in the list."`
	Full   bool  `help:"Print the whole stored body, at most 64 KiB."`
}

func (q *quarantineShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, func(m *client.QuarantinedDocument, room int) string {
		return quarantinedHead(m, room) + headersText(m.Headers, room) + contentText(&m.Body, room, q.Full)
	})(cl.GetQuarantined(ctx, q.Number))
}

func quarantinedHead(m *client.QuarantinedDocument, room int) string {
	t := cli.Table{}
	t.Row("number", strconv.FormatInt(m.ID, 10))
	t.Row("time", m.At)
	t.Row("reason", m.Reason)
	t.Row("detail", cli.Shown(cli.EscapeControl(m.Detail), room))
	t.Row("subject", m.Subject)
	t.Field("run", m.Run)
	t.Field("slice", m.Slice)
	return t.String()
}

func headersText(headers map[string][]string, room int) string {
	if len(headers) == 0 {
		return ""
	}
	t := cli.Table{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		t.Row("  "+cli.EscapeControl(name), cli.Shown(cli.EscapeControl(strings.Join(headers[name], ", ")), room))
	}
	return "\nheaders\n" + t.String()
}

func contentText(c *client.Content, room int, full bool) string {
	head := cli.Text("\nbody, %v bytes%v", c.Size, cli.If(c.Unpacked != "", " unpacked from %v", c.Unpacked))
	text := c.Text
	switch {
	case c.Size == 0:
		return head + "\n"
	case len(c.JSON) > 0:
		var indented bytes.Buffer
		if json.Indent(&indented, c.JSON, "", "  ") == nil {
			text = indented.String()
		}
	case len(c.Base64) > 0:
		head += " in base64"
		text = base64.StdEncoding.EncodeToString(c.Base64)
	}
	text = cli.InertText(text)
	cut := c.Truncated
	if shown := cli.Shown(text, room); !full && shown != text {
		text, cut = shown, true
	}
	text += cli.If(cut, "\n(there is more: --full shows all of it)")
	return head + "\n" + strings.TrimRight(text, "\n") + "\n"
}
