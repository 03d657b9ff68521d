package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/alert"
)

// Alerts are the commands about alerts.
type Alerts struct {
	Apply    alertApply    `cmd:"" help:"Put an alert on record, or change it."`
	List     alertList     `cmd:"" help:"List alerts: whom each tells of what, and whether that goes well."`
	Show     alertShow     `cmd:"" help:"An alert as it was applied, and what it told last."`
	Messages alertMessages `cmd:"" help:"What an alert has told, newest first, and what became of each message."`
	Test     alertTest     `cmd:"" help:"Have an alert tell its receiver that this is a test, and say what became of it."`
	Pause    alertPause    `cmd:"" help:"Let an alert tell nothing until it is resumed."`
	Resume   alertResume   `cmd:"" help:"End the pause of an alert: it tells what holds then."`
	Delete   alertDelete   `cmd:"" help:"Take an alert off the record; what it has not told is dropped."`
}

type alertApply struct {
	File string `arg:"" help:"An alert in YAML or JSON; - is standard input."`
}

// Run puts an alert on record.
func (a *alertApply) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	file, err := cli.ReadText("alert", a.File, term.In, alerts.MaxBytes)
	if err != nil {
		return err
	}
	applied, err := cl.ApplyAlert(ctx, client.ApplyAlertParams{Name: file.Name}, "application/yaml",
		strings.NewReader(file.Text), term.Keep())
	if err != nil {
		return cli.Explain(&file, err, alerts.Parse)
	}
	if term.JSON {
		return term.Sent()
	}
	next := "try it with: tranche alert test " + cli.Inert(applied.Name)
	if applied.State == alert.StatePaused {
		next = "it is paused; go on with: tranche alert resume " + cli.Inert(applied.Name)
	}
	switch {
	case applied.Unchanged:
		return term.Printf("alert %s is unchanged: version %d, applied %s by %s; %s\n", cli.Inert(applied.Name),
			applied.Version,
			cli.Moment(applied.ChangedAt), cli.Inert(applied.ChangedBy), next)
	case applied.Previous > 0:
		return term.Printf("alert %s is version %d now, after version %d; %s\n", cli.Inert(applied.Name), applied.Version,
			applied.Previous, next)
	}
	return term.Printf("alert %s is on record, version %d; %s\n", cli.Inert(applied.Name), applied.Version, next)
}

type alertList struct {
	Limit int `default:"100" help:"How many, at most 500." placeholder:"N"`
}

func (l *alertList) Validate() error { return cli.Within("--limit", &l.Limit, alert.MaxAlerts) }

func (l *alertList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListAlerts(ctx, client.ListAlertsParams{Limit: l.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Alerts) == 0 {
		return term.Printf("no alerts on record; put one there with: tranche alert apply FILE\n")
	}
	t := cli.Table{Room: term.Room()}
	t.Row("ALERT", "STATE", "TELLS OF", "BY", "HOLDING", "WAITING", "TOLD", "TROUBLE")
	for i := range list.Alerts {
		a := &list.Alerts[i]
		of, by := alertText(a.Spec)
		told, trouble := "never", "-"
		if a.ToldAt != nil {
			told = cli.Moment(*a.ToldAt)
		}
		if a.FailingSince != nil {
			why, _, _ := strings.Cut(a.Error, "\n")
			trouble = fmt.Sprintf("since %s: %s", cli.Moment(*a.FailingSince), why)
		} else if a.Error != "" {
			trouble, _, _ = strings.Cut(a.Error, "\n")
		}
		t.Row(cli.Inert(a.Name), a.State, cli.Inert(of), by, cli.Count(a.Holding), cli.Count(a.Waiting), told,
			cli.Inert(trouble))
	}
	return term.Printf("%s", t.Page(list.Next != ""))
}

// alertText says of what an alert tells, and by what.
func alertText(doc json.RawMessage) (of, by string) {
	spec := alerts.Spec{}
	if err := json.Unmarshal(doc, &spec); err != nil {
		return "-", "-"
	}
	var parts []string
	for _, change := range spec.Runs {
		parts = append(parts, strings.ReplaceAll(string(change), "_", " "))
	}
	if spec.Health != "" {
		parts = append(parts, "health: "+string(spec.Health))
	}
	return strings.Join(parts, ", "), spec.To.Kind()
}

type alertShow struct {
	Name string `arg:"" help:"The alert's name."`
}

// Run prints an alert as it was applied; how it stands goes to the person beside it.
func (s *alertShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	view, err := cl.GetAlert(ctx, s.Name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	term.Note("alert %s, version %d, applied %s by %s, is %s", view.Name, view.Version, cli.Moment(view.ChangedAt),
		view.ChangedBy, view.State)
	if view.Holding+view.Waiting > 0 {
		term.Note("conditions that it has told and that hold still: %s; messages not delivered yet: %s",
			cli.Count(view.Holding), cli.Count(view.Waiting))
	}
	if view.ToldAt != nil {
		term.Note("its receiver was last told something %s", cli.Moment(*view.ToldAt))
	}
	if view.FailingSince != nil {
		term.Note("it could not be told anything since %s: %s", cli.Moment(*view.FailingSince), view.Error)
	} else if view.Error != "" {
		term.Note("not everybody was told: %s", view.Error)
	}
	return term.Printf("%s\n", strings.TrimRight(view.Source, "\n"))
}

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
