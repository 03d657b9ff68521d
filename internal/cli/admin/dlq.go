package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

type dlqList struct {
	Endpoint string `help:"Only those of this endpoint." placeholder:"NAME"`
	State    string `enum:",waiting,requeued,reissued,dropped" default:"" help:"Only those in this state: waiting, requeued, reissued or dropped." placeholder:"STATE"`
	After    string `help:"Only those older than this one, by its whole id." placeholder:"ID"`
	Limit    int    `default:"20" help:"How many." placeholder:"N"`
}

func (l *dlqList) Validate() error { return cli.ListLimit(l.Limit, deadletter.MaxLetters) }

// Run lists dead letters.
func (l *dlqList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListDeadLetters(ctx, client.ListDeadLettersParams{
		Endpoint: l.Endpoint, State: l.State, After: l.After, Limit: l.Limit,
	}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(page.Letters) == 0 {
		return term.Printf("no dead letters\n")
	}
	if err := term.Printf("%s", deadLettersText(page.Letters, term.Room())); err != nil {
		return err
	}
	if page.Next != nil {
		term.Note("there are more; go on with --after %s", *page.Next)
	}
	return nil
}

func deadLettersText(letters []client.DeadLetter, room int) string {
	t := cli.Table{Room: room}
	if cli.Narrow(room) {
		t.Row("LETTER", "ENDPOINT", "CAUSE", "STATE", "DIED")
	} else {
		t.Row("LETTER", "ENDPOINT", "CAUSE", "STATE", "DIED", "MESSAGE")
	}
	for i := range letters {
		l := &letters[i]
		cells := []string{
			shortDeadLetter(l.ID), cli.Inert(l.Endpoint), cli.Inert(l.Cause), string(l.State), cli.Moment(l.At),
		}
		if !cli.Narrow(room) {
			cells = append(cells, cli.Inert(l.Message))
		}
		t.Row(cells...)
	}
	return t.String()
}

// shortDeadLetter is the time in an id, and its count within that: dead letters come in bursts.
func shortDeadLetter(id string) string { return id[:min(len(id), 18)] }

type dlqShow struct {
	ID   string `arg:"" name:"dead-letter" help:"An id, or a piece of one."`
	Full bool   `help:"All of the body, however large."`
}

// Run shows a dead letter.
func (l *dlqShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	letter, err := cl.GetDeadLetter(ctx, l.ID, client.GetDeadLetterParams{Full: l.Full}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s%s%s%s", deadLetterHead(&letter, term.Room()), cli.HeadersText(letter.Headers, term.Room()),
		cli.ContentText(&letter.Body, term.Room(), l.Full), whatToDo(&letter))
}

func deadLetterHead(l *client.DeadLetterDocument, room int) string {
	t := cli.Table{}
	t.Row("dead letter", l.ID)
	t.Row("endpoint", cli.Inert(l.Endpoint))
	t.Row("state", fmt.Sprintf("%s since %s", l.State, cli.Moment(l.ChangedAt)))
	t.Row("cause", cli.Inert(l.Cause))
	optional := func(name, value string) {
		if value != "" {
			t.Row(name, cli.Inert(value))
		}
	}
	optional("message", cli.Shown(l.Message, room))
	optional("mode", l.Mode)
	if l.Run != nil {
		t.Row("run", *l.Run)
	}
	if l.Slice != nil {
		t.Row("slice", *l.Slice)
	}
	if l.Root != nil {
		t.Row("root slice", *l.Root)
	}
	optional("waited for by", l.Stack)
	optional("origin", l.Origin)
	optional("given up by", l.Service)
	if l.Items > 0 {
		t.Row("items", cli.Count(int64(l.Items)))
	}
	if l.Deliveries > 0 {
		t.Row("deliveries", cli.Count(int64(l.Deliveries)))
	}
	t.Row("requeued", fmt.Sprintf("%d times", l.Requeued))
	t.Row("died", cli.Moment(l.At))
	return t.String()
}

func whatToDo(l *client.DeadLetterDocument) string {
	id := shortDeadLetter(l.ID)
	switch l.State {
	case client.LetterStateWaiting:
		return fmt.Sprintf("\nsend it again:  tranche dlq requeue %s\ngive it up:     tranche dlq drop %s\n", id, id)
	case client.LetterStateReissued:
		return "\nits items went on by themselves, in smaller requests: nothing is to be done for it\n"
	default:
		return ""
	}
}

// deadLetterChoice is the dead letters that a command is about.
type deadLetterChoice struct {
	IDs      []string `arg:"" optional:"" name:"dead-letter" help:"Ids, or pieces of them."`
	Endpoint string   `help:"All that wait of this endpoint." placeholder:"NAME"`
	All      bool     `help:"All that wait."`
}

// check refuses a choice that is none, or two: what is meant has to be spelled out.
func (c *deadLetterChoice) check() error {
	chosen := 0
	for _, set := range []bool{len(c.IDs) > 0, c.Endpoint != "", c.All} {
		if set {
			chosen++
		}
	}
	switch chosen {
	case 0:
		return errors.New("say which dead letters: their ids, --endpoint NAME or --all")
	case 1:
		return nil
	default:
		return errors.New("give either ids, or --endpoint, or --all")
	}
}

type dlqRequeue struct {
	deadLetterChoice
	Force bool `help:"Also those that have been requeued three times and died each time."`
}

func (r *dlqRequeue) Validate() error { return r.check() }

// Run requeues dead letters. It is a failure when one is refused.
func (r *dlqRequeue) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.RequeueDeadLetters(ctx,
		client.RequeueSettings{IDs: r.IDs, Endpoint: r.Endpoint, All: r.All, Force: r.Force}, term.Keep())
	if err != nil {
		return err
	}
	if term.JSON {
		err = term.Sent()
	} else {
		err = term.Printf("%s", requeuedText(&done))
	}
	if err == nil && done.RefusedTotal > 0 {
		err = cli.Exit(cli.ExitOther)
	}
	return err
}

func requeuedText(done *client.Requeue) string {
	if done.Requeued == 0 && done.RefusedTotal == 0 {
		return "no dead letter waits\n"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s requeued", deadLetters(done.Requeued))
	if done.RefusedTotal > 0 {
		fmt.Fprintf(&text, ", %s refused", cli.Count(int64(done.RefusedTotal)))
	}
	text.WriteString("\n")
	for _, refused := range done.Refused {
		fmt.Fprintf(&text, "  %s: %s\n", shortDeadLetter(refused.ID), cli.Inert(refused.Reason))
	}
	if more := done.RefusedTotal - len(done.Refused); more > 0 {
		fmt.Fprintf(&text, "  and %s more\n", cli.Count(int64(more)))
	}
	return text.String()
}

func deadLetters(n int) string {
	if n == 1 {
		return "1 dead letter"
	}
	return cli.Count(int64(n)) + " dead letters"
}

type dlqDrop struct{ deadLetterChoice }

func (d *dlqDrop) Validate() error { return d.check() }

// Run drops dead letters.
func (d *dlqDrop) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.DropDeadLetters(ctx,
		client.LetterSelection{IDs: d.IDs, Endpoint: d.Endpoint, All: d.All}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s dropped\n", deadLetters(done.Dropped))
}

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
