package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/alert"
)

type alertCommands struct {
	Apply    applyDocument[alertKind]  `cmd:"" help:"Save an alert, or change it."`
	List     alertList                 `cmd:"" help:"List alerts: conditions, receivers and delivery errors."`
	Show     alertShow                 `cmd:"" help:"Show an applied alert and its last message."`
	Messages alertMessages             `cmd:"" help:"List an alert's messages, newest first, and the outcome of each."`
	Test     alertTest                 `cmd:"" help:"Send a test message to an alert's receiver, and show the outcome."`
	Pause    pauseDocument[alertKind]  `cmd:"" help:"Pause an alert: it sends nothing until it is resumed."`
	Resume   resumeDocument[alertKind] `cmd:"" help:"Resume an alert: it sends the conditions that hold then."`
	Delete   deleteDocument[alertKind] `cmd:"" help:"Delete an alert; messages not yet sent are dropped."`
}

type alertKind struct{}

func (alertKind) documents() *documents {
	return &documents{
		noun: "alert", most: alerts.MaxBytes, waits: "message",
		parse: func(name string, text []byte) error { _, err := alerts.Parse(name, text); return err },
		apply: func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error) {
			return cl.ApplyAlert(ctx, client.ApplyAlertParams{Name: name}, cli.YAML, text)
		},
		next: func(a *client.AppliedDocument) string {
			return "try it with: tranche alert test " + cli.EscapeControl(a.Name)
		},
		pause: (*client.Client).PauseAlert, resume: (*client.Client).ResumeAlert, drop: (*client.Client).DeleteAlert,
	}
}

type namesPage struct {
	After string `help:"Only those whose name follows this one." placeholder:"NAME"`
	Limit int    `default:"100" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

type alertList struct{ namesPage }

func (l *alertList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListAlerts(ctx, client.ListAlertsParams(l.namesPage))
	return (&cli.List[client.AlertSummary]{
		Columns: "ALERT|STATE|REPORTS|BY|ACTIVE|WAITING|NOTIFIED|ERROR",
		Row: func(a *client.AlertSummary) []any {
			of, by := alertText(a.Spec)
			trouble, _, _ := strings.Cut(cmp.Or(a.Error, "-"), "\n")
			return []any{a.Name, a.State, of, by, a.Holding, a.Waiting, cli.MomentOrNever(a.NotifiedAt),
				cli.If(a.FailingSince != nil, "since %v: ", a.FailingSince) + trouble}
		},
		Empty: "no saved alerts; save one with: tranche alert apply FILE", Next: list.Next,
	}).Print(term, list.Alerts, err)
}

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
	return strings.Join(parts, ", "), spec.To.Kind
}

type alertShow struct{ documentName }

func (s *alertShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	view, err := cl.GetAlert(ctx, s.Name)
	return printSource(term, view.Source, err, func() {
		term.Note("alert %s, version %d, applied %s by %s, is %s", view.Name, view.Version, cli.Moment(view.ChangedAt),
			view.ChangedBy, view.State)
		if view.Holding+view.Waiting > 0 {
			term.Note("reported conditions that still hold: %s; undelivered messages: %s",
				cli.Count(view.Holding), cli.Count(view.Waiting))
		}
		if view.NotifiedAt != nil {
			term.Note("its receiver was last notified %s", cli.Moment(*view.NotifiedAt))
		}
		if view.FailingSince != nil {
			term.Note("it has been unreachable since %s: %s", cli.Moment(*view.FailingSince), view.Error)
		} else if view.Error != "" {
			term.Note("not delivered to all: %s", view.Error)
		}
	})
}

type alertMessages struct {
	documentName
	timesPage
}

type timesPage struct {
	Before time.Time `help:"Only those before this time." placeholder:"TIME"`
	Limit  int       `default:"50" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (m *alertMessages) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListAlertMessages(ctx, m.Name, client.ListAlertMessagesParams(m.timesPage))
	return (&cli.List[client.AlertMessage]{
		Columns: "MADE|STATE|ATTEMPTS|SEVERITY|WHAT|TROUBLE",
		Row: func(told *client.AlertMessage) []any {
			said := alerts.Message{}
			_ = json.Unmarshal(told.Body, &said) // without a title, at worst
			return []any{told.MadeAt, told.State, told.Attempts, told.Severity, said.Title, cli.OrDash(told.Error)}
		},
		Empty: "alert " + cli.EscapeControl(m.Name) + " has told nothing yet", Next: list.Next, Before: true,
	}).Print(term, list.Messages, err)
}

type alertTest struct {
	documentName
	Wait time.Duration `default:"60s" within:"0s," help:"How long to wait for the outcome (${default}); 0 does not wait." placeholder:"TIME"`
}

func (t *alertTest) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	sent, err := cl.TestAlert(ctx, t.Name)
	if err != nil {
		return err
	}
	told := client.AlertMessage{ID: sent.Message, State: client.MessageState(alert.MessageWaiting)}
	if err := t.await(ctx, cl, &told); err != nil {
		return err
	}
	state, name := alert.MessageState(told.State), cli.EscapeControl(t.Name)
	switch {
	case term.JSON:
		return cli.FailIf(state == alert.MessageGivenUp, cli.ExitOther, term.Document(told))
	case state == alert.MessageDelivered && told.Error != "":
		return term.Printf("alert %s: the test was delivered, but not to all: %s\n", name, cli.EscapeControl(told.Error))
	case state == alert.MessageDelivered:
		return term.Printf("alert %s: the test was delivered\n", name)
	case state == alert.MessageGivenUp, state == alert.MessageDropped:
		return fmt.Errorf("alert %s: the test was not delivered: %s", t.Name, told.Error)
	}
	return term.Printf("alert %s: the test is not delivered yet; see its outcome with: tranche alert messages %s\n",
		name, name)
}

func (t *alertTest) await(ctx context.Context, cl *client.Client, told *client.AlertMessage) error {
	return cli.Await(ctx, t.Wait, func() (known bool, err error) {
		list, err := cl.ListAlertMessages(ctx, t.Name, client.ListAlertMessagesParams{})
		for _, m := range list.Messages {
			if m.ID == told.ID {
				*told = m
			}
		}
		return alert.MessageState(told.State) != alert.MessageWaiting, err
	})
}
