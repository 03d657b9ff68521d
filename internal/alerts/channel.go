package alerts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/connections"
)

// Config configures Receivers.
type Config struct {
	Connections *connections.Connections // secrets and the mail server; nil: neither
	// Transport sends to hosts of others and blocks forbidden addresses, like httpfetch's.
	Transport http.RoundTripper
	// Programs are the programs that rules may run, by their names in rules.
	Programs map[string]string
	// Public is the dashboard's public URL, for links; empty: no links.
	Public string
	// Timeout limits an attempt; 0: httpfetch.DefaultTimeout.
	Timeout time.Duration
}

type channel interface {
	// check returns what is wrong with the settings, and in which field; "": the whole.
	check() (field string, err error)
	// reachable returns why this node cannot use it.
	reachable(r *Receivers) (field string, err error)
	// tell makes one attempt to send a message.
	tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery
}

// channels are all kinds of receivers. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var channels = []struct {
	name string
	make func() channel
}{
	{"webhook", func() channel { return &hook{} }},
	{"slack", func() channel { return &chat{body: slackBody} }},
	{"teams", func() channel { return &chat{body: teamsBody} }},
	{"email", func() channel { return &email{} }},
	{"command", func() channel { return new(program) }}, // a name of serve --alert-program
}

// Receiver is the receiver of a rule's messages.
type Receiver struct {
	Kind  string // the channel's name
	given int    // number of receivers in the rule

	channel
}

// ReadYAML implements [strictyaml.Reader].
func (r *Receiver) ReadYAML(v strictyaml.Value) error {
	fields := make([]strictyaml.Field, len(channels))
	for i, c := range channels {
		fields[i] = strictyaml.Field{Name: c.name, Read: func(v strictyaml.Value) error {
			r.Kind, r.channel = c.name, c.make()
			r.given++
			return v.Decode(r.channel)
		}}
	}
	return v.Fields(fields...)
}

func (r *Receiver) checkIn(doc *strictyaml.Document) error {
	if r.given != 1 {
		names := make([]string, len(channels))
		for i := range channels {
			names[i] = channels[i].name
		}
		last := len(names) - 1
		return doc.Fail("to", "want one of %s and %s; for several receivers apply several rules",
			strings.Join(names[:last], ", "), names[last])
	}
	if field, err := r.check(); err != nil {
		return doc.Fail(r.field(field), "%v", err)
	}
	return nil
}

func (r *Receiver) field(name string) string {
	if name == "" {
		return "to." + r.Kind
	}
	return "to." + r.Kind + "." + name
}

// MarshalJSON writes the channel under its name.
func (r Receiver) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]channel{r.Kind: r.channel})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Receiver) UnmarshalJSON(text []byte) error {
	var named map[string]json.RawMessage
	if err := json.Unmarshal(text, &named); err != nil {
		return err
	}
	for _, c := range channels {
		if of, is := named[c.name]; is {
			r.Kind, r.channel = c.name, c.make()
			return json.Unmarshal(of, r.channel)
		}
	}
	return fmt.Errorf("no channel is known of %.80s", text)
}

// Receivers sends messages to receivers.
type Receivers struct {
	conns    *connections.Connections
	sender   *httpfetch.Sender
	programs map[string]string
	public   string
	timeout  time.Duration
}

// NewReceivers returns a sender. The error names the invalid program or address.
func NewReceivers(config Config) (*Receivers, error) {
	sender, err := httpfetch.NewSender(httpfetch.SenderConfig{
		Connections: config.Connections, Transport: config.Transport, Timeout: config.Timeout,
	})
	if err != nil {
		return nil, err
	}
	r := &Receivers{conns: config.Connections, sender: sender, programs: config.Programs, public: config.Public,
		timeout: config.Timeout}
	r.conns = cmp.Or(r.conns, &connections.Connections{})
	r.timeout = cmp.Or(max(r.timeout, 0), httpfetch.DefaultTimeout)
	for name, path := range r.programs {
		if !ruleNames.MatchString(name) || !filepath.IsAbs(path) {
			return nil, fmt.Errorf("alerts: program %q is %q; want a name of A-Z a-z 0-9 _ - and an absolute path", name, path)
		}
	}
	u, err := url.Parse(r.public)
	if r.public != "" && (err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http") {
		return nil, fmt.Errorf("alerts: the dashboard's address is %.80q; want a URL like https://tranche.bank.example",
			r.public)
	}
	return r, nil
}

// BadReceiverError is returned for a receiver that cannot be reached.
type BadReceiverError struct {
	Field string // of the rule, as in to.webhook
	Why   string
}

func (e *BadReceiverError) Error() string { return e.Field + ": " + e.Why }

// Check refuses a receiver that this node cannot reach, with a *BadReceiverError.
func (r *Receivers) Check(to *Receiver) error {
	if field, err := to.reachable(r); err != nil {
		return &BadReceiverError{to.field(field), r.conns.Redact(err.Error())}
	}
	return nil
}

func (r *Receivers) tell(ctx context.Context, to *Receiver, m *Message) httpfetch.Delivery {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return to.channel.tell(ctx, r, m)
}

// unreachable is an attempt that this node cannot make. It is retried: the operator's file may be fixed, or another
// node may allow it.
func (r *Receivers) unreachable(err error) httpfetch.Delivery {
	return httpfetch.Delivery{Why: r.conns.Redact(err.Error())}
}

func (r *Receivers) unwritable(err error) httpfetch.Delivery {
	return httpfetch.Delivery{GiveUp: true, Why: r.conns.Redact(err.Error())}
}

type hook struct {
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

func (h *hook) check() (field string, err error) {
	switch {
	case h.URL == "":
		return "", errors.New("it has no url")
	case h.Secret == "":
		return "", errors.New("it has no secret: name one of the operator's file, which signs what is sent")
	}
	_, err = httpfetch.CheckWebhookURL(h.URL)
	return "url", err
}

func (h *hook) reachable(r *Receivers) (field string, err error) {
	err = httpfetch.CheckWebhook(r.conns, h.URL, h.Secret)
	if bad, ok := errors.AsType[*httpfetch.WebhookError](err); ok {
		field = bad.Field
	}
	return field, err
}

func (h *hook) tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery {
	data, err := json.Marshal(m)
	if err != nil {
		return r.unwritable(err)
	}
	body, err := httpfetch.WebhookBody("alert", m.At, data)
	if err != nil {
		return r.unwritable(err)
	}
	return r.sender.Send(ctx, &httpfetch.Webhook{ID: m.ID, URL: h.URL, Secret: h.Secret, Body: body})
}

type chat struct {
	Secret string `json:"secret"`

	body func(*Message) any
}

func (c *chat) check() (field string, err error) {
	if c.Secret == "" {
		return "", errors.New("it has no secret: name one of the operator's file, which is the channel's URL")
	}
	return "", nil
}

func (c *chat) reachable(r *Receivers) (field string, err error) {
	_, err = c.url(r)
	return "", err
}

func (c *chat) url(r *Receivers) (*url.URL, error) {
	secret, err := r.conns.Secret(c.Secret)
	if err != nil {
		return nil, err
	}
	u, err := secret.URL()
	if err != nil {
		return nil, fmt.Errorf("this node's secret %q is not a URL of one of its hosts", c.Secret)
	}
	return u, nil
}

// tell posts to the secret URL. Failure texts have only its host, and quote nothing of the answer, which may repeat
// the URL.
func (c *chat) tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery {
	u, err := c.url(r)
	if err != nil {
		return r.unreachable(err)
	}
	doc, err := json.Marshal(c.body(m))
	if err != nil {
		return r.unwritable(err)
	}
	header := http.Header{}
	header.Set("Idempotency-Key", m.ID)
	out := r.sender.Post(ctx, u, header, doc)
	out.Said = ""
	return out
}

func slackBody(m *Message) any {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	head := escape.Replace(m.heading())
	if m.Link != "" {
		head = "<" + m.Link + "|" + strings.ReplaceAll(head, "|", "/") + ">"
	}
	return map[string]string{"text": "*" + head + "*\n" + escape.Replace(m.Text)}
}

func teamsBody(m *Message) any {
	inert := strings.NewReplacer(`\`, `\\`, "[", `\[`, "<", "&lt;") // only our own links
	text := func(s, weight string) map[string]any {
		return map[string]any{"type": "TextBlock", "text": inert.Replace(s), "wrap": true, "weight": weight}
	}
	body := []any{text(m.heading(), "Bolder")}
	for part := range strings.SplitSeq(m.Text, "\n\n") {
		body = append(body, text(strings.ReplaceAll(part, "\n", "\n\n"), "Default")) // a line break in Markdown
	}
	card := map[string]any{
		"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
		"body": body,
	}
	if m.Link != "" {
		card["actions"] = []any{map[string]any{"type": "Action.OpenUrl", "title": "Open", "url": m.Link}}
	}
	return map[string]any{"type": "message", "attachments": []any{map[string]any{
		"contentType": "application/vnd.microsoft.card.adaptive", "content": card,
	}}}
}

func (m *Message) heading() string { return "[" + string(m.Severity) + "] " + m.Title }

type program string

func (p *program) check() (field string, err error) { return "", nil }

func (p *program) reachable(r *Receivers) (field string, err error) {
	_, err = p.path(r)
	return "", err
}

const (
	// maxOutput limits what is kept of a program's output.
	maxOutput = 4 << 10
	// afterKill is how long to wait for the output of a program that ended or was killed.
	afterKill = time.Second
)

func (p *program) path(r *Receivers) (string, error) {
	if path, ok := r.programs[string(*p)]; ok {
		return path, nil
	}
	known := "it allows none"
	if len(r.programs) > 0 {
		known = "it allows " + strings.Join(slices.Sorted(maps.Keys(r.programs)), ", ")
	}
	return "", fmt.Errorf("this node runs no program %.64q; %s (serve --alert-program NAME=PATH)", *p, known)
}

// tell runs the program with the message as JSON on standard input. There is no shell and there are no arguments. Of
// this process's environment, which may hold secrets, it gets PATH only. At the timeout it is killed with its
// descendants.
func (p *program) tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery {
	path, err := p.path(r)
	if err != nil {
		return r.unreachable(err)
	}
	input, err := json.Marshal(m)
	if err != nil {
		return r.unwritable(err)
	}
	said := &bounded{}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), said, said
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TRANCHE_ALERT=" + m.Alert, "TRANCHE_ALERT_ID=" + m.ID,
		"TRANCHE_ALERT_STATUS=" + m.Status, "TRANCHE_ALERT_SEVERITY=" + string(m.Severity),
		"TRANCHE_ALERT_TITLE=" + strings.ReplaceAll(m.Title, "\x00", ""), "TRANCHE_ALERT_LINK=" + m.Link,
	}
	cmd.Dir = "/"
	withDescendants(cmd)
	cmd.WaitDelay = afterKill
	err = cmd.Run()
	switch ended := cmd.ProcessState; {
	case ended != nil && ended.Success():
		if err != nil { // a descendant holds its output
			_ = cmd.Cancel() // which may have ended since
		}
		return httpfetch.Delivery{Delivered: true}
	case ctx.Err() != nil:
		return httpfetch.Delivery{Why: "program " + string(*p) + ": it did not end before its timeout",
			Said: r.sender.Quoted(said.kept)}
	}
	why := "it cannot be run"
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		why = ended.String() // without its path
	}
	return httpfetch.Delivery{Why: "program " + string(*p) + ": " + why, Said: r.sender.Quoted(said.kept)}
}

type bounded struct{ kept []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxOutput-len(b.kept))]...)
	return len(p), nil
}
