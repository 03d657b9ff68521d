package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/alert"
)

type alertMessages struct {
	Name  string `arg:"" help:"The alert's name."`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

func (m *alertMessages) Validate() error { return cli.Within("--limit", &m.Limit, alert.MaxMessages) }

// Run lists what an alert has told.
func (m *alertMessages) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListAlertMessages(ctx, m.Name, client.ListAlertMessagesParams{Limit: m.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Messages) == 0 {
		return term.Printf("alert %s has told nothing yet\n", cli.Inert(m.Name))
	}
	t := cli.Table{Room: term.Room()}
	t.Row("MADE", "STATE", "ATTEMPTS", "SEVERITY", "WHAT", "TROUBLE")
	for i := range list.Messages {
		told := &list.Messages[i]
		said := alerts.Message{}
		_ = json.Unmarshal(told.Body, &said) // without a title, at worst
		t.Row(cli.Moment(told.MadeAt), string(told.State), fmt.Sprint(told.Attempts), told.Severity,
			cli.Inert(said.Title), cli.Inert(cli.OrDash(told.Error)))
	}
	return term.Printf("%s", t.Page(list.Next != nil))
}

type alertTest struct {
	Name string        `arg:"" help:"The alert's name."`
	Wait time.Duration `default:"60s" help:"How long to wait until it is known what became of it (${default}); 0 does not wait." placeholder:"TIME"`
}

func (t *alertTest) Validate() error {
	if t.Wait < 0 {
		return fmt.Errorf("--wait is %s; it must not be negative", t.Wait)
	}
	return nil
}

// Run has an alert tell that this is a test.
func (t *alertTest) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	sent, err := cl.TestAlert(ctx, t.Name, term.Keep())
	if err != nil {
		return err
	}
	told := client.AlertMessage{ID: sent.Message, State: client.MessageState(alert.MessageWaiting)}
	if t.Wait > 0 {
		if told, err = t.await(ctx, cl, told); err != nil {
			return err
		}
	}
	state := alert.MessageState(told.State)
	if term.JSON {
		if err = term.Document(told); err == nil && state == alert.MessageGivenUp {
			err = cli.Exit(cli.ExitOther)
		}
		return err
	}
	switch state {
	case alert.MessageDelivered:
		if told.Error != "" {
			return term.Printf("alert %s: the test was delivered, but not to all: %s\n", cli.Inert(t.Name),
				cli.Inert(told.Error))
		}
		return term.Printf("alert %s: the test was delivered\n", cli.Inert(t.Name))
	case alert.MessageGivenUp, alert.MessageDropped:
		return fmt.Errorf("alert %s: the test was not delivered: %s", t.Name, told.Error)
	case alert.MessageWaiting:
	}
	return term.Printf("alert %s: the test is on its way; see what becomes of it with: tranche alert messages %s\n",
		cli.Inert(t.Name), cli.Inert(t.Name))
}

// await looks until the message has come to its end.
func (t *alertTest) await(ctx context.Context, cl *client.Client, told client.AlertMessage) (client.AlertMessage,
	error,
) {
	err := cli.Await(ctx, t.Wait, func() (known bool, err error) {
		list, err := cl.ListAlertMessages(ctx, t.Name, client.ListAlertMessagesParams{})
		for i := range list.Messages {
			if list.Messages[i].ID == told.ID {
				told = list.Messages[i]
			}
		}
		return alert.MessageState(told.State) != alert.MessageWaiting, err
	})
	return told, err
}

type alertPause struct {
	Name string `arg:"" help:"The alert's name."`
}

func (p *alertPause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlAlert(ctx, term, p.Name, cl.PauseAlert, func(c *client.ControlledAlert) string {
		text := "is paused: it tells nothing until it is resumed"
		if c.Unchanged {
			text = "was paused before"
		}
		if c.Waiting > 0 {
			text += "; " + cli.Plural(c.Waiting, "message") + " wait for that"
		}
		return text
	})
}

type alertResume struct {
	Name string `arg:"" help:"The alert's name."`
}

func (r *alertResume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlAlert(ctx, term, r.Name, cl.ResumeAlert, func(c *client.ControlledAlert) string {
		if c.Unchanged {
			return "was not paused"
		}
		return "goes on, with what holds now"
	})
}

type alertDelete struct {
	Name string `arg:"" help:"The alert's name."`
}

func (d *alertDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlAlert(ctx, term, d.Name, cl.DeleteAlert, func(c *client.ControlledAlert) string {
		if c.Waiting > 0 {
			return "is deleted, and with it " + cli.Plural(c.Waiting, "message") + " that nobody was told"
		}
		return "is deleted"
	})
}

// controlAlert does something to an alert, and says what became of it.
func controlAlert(
	ctx context.Context, term *cli.Console, name string,
	do func(context.Context, string, ...client.CallOption) (client.ControlledAlert, error),
	say func(*client.ControlledAlert) string,
) error {
	done, err := do(ctx, name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("alert %s %s\n", cli.Inert(done.Name), say(&done))
}
