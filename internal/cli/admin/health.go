package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/health"
)

type healthCommands struct {
	Show  healthShow  `cmd:"" default:"1" help:"Show conditions that need a person, and their remedies."`
	Ready healthReady `cmd:"" help:"Check whether the server is ready, for a container's health check: exit 1 when it is not. Needs no token."`
	Mute  healthMute  `cmd:"" help:"Hide a condition, or all of its kind, until it worsens or the time is up: it does not count, and alerts skip it."`
	Ack   healthAck   `cmd:"" help:"Acknowledge a condition, or all of its kind, as being handled."`
	Clear healthClear `cmd:"" help:"Undo the mute or acknowledgement of a condition, or of all of its kind."`
}

type healthShow struct{}

// Run has a separate exit code for a critical condition.
func (healthShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.Health(ctx)
	return cli.FailIf(found.Counts.Critical > 0, cli.ExitFailed, cli.Print(term, healthText)(found, err))
}

type conditionArgs struct {
	Kind    string `arg:"" help:"The kind of the condition, like failed_items."`
	Subject string `arg:"" optional:"" help:"Its subject, as tranche health prints it; default: all of the kind."`
}

type healthMute struct {
	conditionArgs

	For        time.Duration `help:"For how long, like 8h." xor:"until" placeholder:"TIME"`
	UntilWorse bool          `help:"Until it gets worse, instead of --for." xor:"until"`
	Reason     string        `help:"Why, for other operators." required:"" placeholder:"TEXT"`
}

func (a *healthMute) Validate() error {
	if a.For == 0 && !a.UntilWorse {
		return errors.New("say for how long: --for TIME or --until-worse")
	}
	return nil
}

func (a *healthMute) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.MuteSettings{Kind: a.Kind, Subject: a.Subject, UntilWorse: a.UntilWorse, Reason: a.Reason}
	if !a.UntilWorse {
		set.For = a.For.String()
	}
	return cli.Say(term, markedText)(cl.MuteCondition(ctx, set))
}

type healthAck struct{ conditionArgs }

func (a *healthAck) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, markedText)(cl.AckCondition(ctx, client.ConditionName(a.conditionArgs)))
}

type healthClear struct{ conditionArgs }

func (a *healthClear) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, markedText)(cl.ClearCondition(ctx, client.ConditionName(a.conditionArgs)))
}

func markedText(said *client.MarkedCondition) string {
	what := cli.EscapeControl(strings.TrimSpace(said.Kind + " " + said.Subject))
	switch {
	case said.Unchanged:
		return what + " was neither muted nor acknowledged"
	case said.State == string(health.Muted):
		return cli.Text("%[1]v is muted by %[2]v%[3]v; undo it with: tranche health clear %[1]v", what, said.By,
			untilText(said.Until))
	case said.State == string(health.Acknowledged):
		return cli.Text("%v is acknowledged by %v", what, said.By)
	default:
		return what + " is reported again"
	}
}

func untilText(until *time.Time) string {
	if until == nil {
		return " until it gets worse"
	}
	return " until " + cli.Moment(*until)
}

func healthText(h *client.Health, room int) string {
	t := &cli.Prose{Columns: cli.ExplainWidth(room), Now: h.At}
	if len(h.Conditions) == 0 {
		t.Paragraph("", "ok: no action is needed, as of "+cli.Moment(h.At))
	} else {
		t.Paragraph("", cli.Text("%v: %v critical, %v, %v for information, as of %v", h.Status, h.Counts.Critical,
			cli.Plural(int64(h.Counts.Warning), "warning"), h.Counts.Info, h.At))
	}
	for i := range h.Kinds {
		k := &h.Kinds[i]
		of := slices.DeleteFunc(slices.Clone(h.Conditions), func(c client.Condition) bool { return c.Kind != k.Kind })
		if len(of) > 1 {
			conditionHead(t, k.Severity, k.Title, k.Kind, k.Since)
		}
		for j := range of {
			tellCondition(t, &of[j], len(of) > 1)
		}
	}
	if len(h.Muted) > 0 {
		t.B.WriteString("\n")
		t.Paragraph("", "MUTED")
	}
	for i := range h.Muted {
		c := &h.Muted[i]
		t.Paragraph("", cli.EscapeControl(c.Title))
		t.Field("of", cli.EscapeControl(c.Kind+" "+c.Subject))
		tellMark(t, c.Mark)
	}
	return t.B.String()
}

func conditionHead(t *cli.Prose, severity client.Severity, title, kind string, since time.Time) {
	t.B.WriteString("\n")
	t.Paragraph("", strings.ToUpper(string(severity))+" "+cli.EscapeControl(title))
	t.Field("kind", cli.EscapeControl(kind))
	t.Field("since", t.Ago(since))
}

func tellCondition(t *cli.Prose, c *client.Condition, several bool) {
	if several {
		t.Paragraph("", cli.EscapeControl(c.Title))
	} else {
		conditionHead(t, c.Severity, c.Title, c.Kind, c.Since)
	}
	t.Field("detail", cli.EscapeControl(c.Detail))
	t.Field("of", cli.EscapeControl(c.Subject))
	t.Field("waits on", string(c.Owner))
	tellMark(t, c.Mark)
	t.Field("remedy", cli.EscapeControl(c.Remedy))
}

func tellMark(t *cli.Prose, m *client.Mark) {
	if m == nil {
		return
	}
	text := cli.Text("by %v, %v%v", m.By, t.Ago(m.At), cli.If(m.Reason != "", ": %v", m.Reason))
	switch m.State {
	case client.MarkState(health.Acknowledged):
		t.Field("acknowledged", text)
	case client.MarkState(health.Muted):
		t.Field("muted", strings.TrimSpace(untilText(m.Until))+", "+text)
	default:
		t.Field("worse", "since it was muted "+text)
	}
}

// healthReady has the settings of a serve in the same container, used without --url.
type healthReady struct {
	Listen  string `hidden:"" env:"TRANCHE_LISTEN" default:"${listen}"`
	TLSCert string `hidden:"" name:"tls-cert" env:"TRANCHE_TLS_CERT"`
}

// server returns the address. The certificate of a server in the same container is not verified: it has other names.
func (h *healthReady) server(term *cli.Console) (url string, secure *tls.Config, err error) {
	secure = &tls.Config{}
	if term.URL != client.DefaultURL {
		if term.CA != "" {
			secure.RootCAs, err = client.Authorities(term.CA)
		}
		url, _, _ = strings.Cut(term.URL, ",")
		return strings.TrimRight(url, "/"), secure, err
	}
	host, port, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return "", nil, cli.Usage("TRANCHE_LISTEN: " + err.Error())
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http://"
	if h.TLSCert != "" {
		scheme, secure.InsecureSkipVerify = "https://", true
	}
	return scheme + net.JoinHostPort(host, port), secure, nil
}

func (h *healthReady) Run(ctx context.Context, term *cli.Console) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // longer than the server's wait for PostgreSQL
	defer cancel()
	where, secure, err := h.server(term)
	if err != nil {
		return err
	}
	where += "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--url %s: %v", term.URL, err))
	}
	transport := &http.Transport{TLSClientConfig: secure, Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("ask %s whether it is ready: %w", where, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		problem := struct{ Detail string }{}
		decoder := json.NewDecoder(io.LimitReader(answer.Body, 64<<10))
		if decoder.Decode(&problem) != nil || problem.Detail == "" { // another program answers there
			problem.Detail = answer.Status
		}
		return errors.New("not ready: " + cli.EscapeControl(problem.Detail))
	}
	if term.JSON {
		return term.Document(map[string]bool{"ready": true})
	}
	return term.Printf("ready\n")
}

type nodesCommand struct{}

func (nodesCommand) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, nodesText)(cl.ListNodes(ctx))
}

func nodesText(found *client.Nodes, room int) string {
	if len(found.Nodes) == 0 {
		return "there are no nodes\n"
	}
	refused := ""
	list := cli.List[client.NodeView]{
		Columns: "NODE|STATE|HEARD|CLAIMED>|SENT>|ITEMS>|PROCESS|VERSION|RUNS",
		Row: func(n *client.NodeView) []any {
			refused += cli.If(n.NATS != "", "%v: %v; see tranche health\n", cli.ShortID(n.Session), n.NATS)
			heard := n.HeartbeatAt
			if n.EndedAt != nil {
				heard = *n.EndedAt
			}
			return []any{cli.ShortID(n.Session), n.State + cli.If(n.Leader, ", leader"),
				since(found, heard, 100*time.Millisecond), n.Slices.Claimed, n.Slices.Sent, n.Items,
				fmt.Sprintf("%s:%d", n.Host, n.PID), n.Version, nodeRuns(n.Runs)}
		},
	}
	text := list.Text(found.Nodes, room) + refused
	if found.DatabaseReadOnly {
		return text + "PostgreSQL takes no writes: nodes cannot send heartbeats, so live ones look dead here; see " +
			"tranche health\n"
	}
	if found.Leader == nil {
		return text + "no node leads at the moment: schedules and sweeps wait for one that does\n"
	}
	return text + leaderText(found, room)
}

// since is the time since at, by the server's clock.
func since(found *client.Nodes, at time.Time, to time.Duration) string {
	return cli.Span(max(found.At.Sub(at), 0).Round(to)) + " ago"
}

func leaderText(found *client.Nodes, room int) string {
	lead := found.Leader
	text := cli.Text("\n%v leads since %v (%v), epoch %v\n", cli.ShortID(lead.Session), lead.Since,
		cli.Span(max(found.At.Sub(lead.Since), 0)), lead.Epoch)
	if len(found.LeaderTasks) == 0 {
		return text
	}
	list := cli.List[client.LeaderTaskView]{
		Columns: "TASK|RUNS>|FAILED>|LAST|TOOK>|STATE",
		Row: func(d *client.LeaderTaskView) []any {
			last := "-"
			if d.EndedAt != nil {
				last = since(found, *d.EndedAt, 100*time.Millisecond)
			}
			return []any{d.Name, d.Runs, d.Failures, last, cli.Span(cli.Seconds(d.Took).Round(time.Millisecond)),
				taskState(found, d)}
		},
	}
	return text + list.Text(found.LeaderTasks, room)
}

func taskState(found *client.Nodes, d *client.LeaderTaskView) string {
	state := "waiting"
	switch {
	case d.Running > 0:
		state = "runs for " + cli.Span(cli.Seconds(d.Running))
	case d.Failing:
		state = "failing"
	}
	if d.LastError != "" && d.FailedAt != nil {
		state += ": " + since(found, *d.FailedAt, time.Second) + ": " + d.LastError
	}
	return state
}

func nodeRuns(runs []client.NodeRun) string {
	var names []string
	for i := range runs {
		names = append(names, cmp.Or(runs[i].Name, cli.ShortID(runs[i].ID)))
	}
	return cmp.Or(strings.Join(names, ", "), "-")
}
