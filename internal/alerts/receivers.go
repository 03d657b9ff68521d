package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
)

// Config is what receivers are reached by.
type Config struct {
	Connections *connections.Connections // secrets, and the server that takes mail; nil: neither
	// Transport reaches the hosts of others, and guards what must not be reached: httpfetch's.
	Transport http.RoundTripper
	// Programs are the programs that rules may have run, by the names that rules have for them.
	Programs map[string]string
	// Public is the address of the dashboard as people reach it, for links; empty: there are none.
	Public string
	// Timeout bounds an attempt; 0: httpfetch.DefaultTimeout.
	Timeout time.Duration
}

// Receivers reaches who is to be told.
type Receivers struct {
	conns    *connections.Connections
	sender   *httpfetch.Sender
	programs map[string]string
	public   string
	timeout  time.Duration
}

// NewReceivers returns what reaches receivers. The error names the program, or the address, that cannot be.
func NewReceivers(config Config) (*Receivers, error) {
	sender, err := httpfetch.NewSender(httpfetch.SenderConfig{
		Connections: config.Connections, Transport: config.Transport, Timeout: config.Timeout,
	})
	if err != nil {
		return nil, err
	}
	r := &Receivers{conns: config.Connections, sender: sender, programs: config.Programs, public: config.Public,
		timeout: config.Timeout}
	if r.conns == nil {
		r.conns = &connections.Connections{}
	}
	if r.timeout <= 0 {
		r.timeout = httpfetch.DefaultTimeout
	}
	for name, path := range r.programs {
		if !ruleNames.MatchString(name) || !filepath.IsAbs(path) {
			return nil, fmt.Errorf("alerts: program %q is %q; want a name of A-Z a-z 0-9 _ - and an absolute path", name, path)
		}
	}
	if err := checkPublic(r.public); err != nil {
		return nil, err
	}
	return r, nil
}

func checkPublic(text string) error {
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("alerts: the dashboard's address is %.80q; want a URL like https://tranche.bank.example", text)
	}
	return nil
}

// BadReceiverError says why a receiver could not be told anything.
type BadReceiverError struct {
	Field string // of the rule, as in to.webhook
	Why   string
}

func (e *BadReceiverError) Error() string { return e.Field + ": " + e.Why }

var errNoSMTP = errors.New("this node has no server that takes mail (smtp in serve --connections FILE)")

// Check refuses a receiver that this node could not tell anything. The error is a *BadReceiverError.
func (r *Receivers) Check(to *Receiver) error {
	field := "to." + to.Kind()
	refuse := func(err error) error {
		if err == nil {
			return nil
		}
		return &BadReceiverError{field, r.conns.Redact(err.Error())}
	}
	switch {
	case to.Webhook != nil:
		err := httpfetch.CheckWebhook(r.conns, to.Webhook.URL, to.Webhook.Secret)
		if bad, ok := errors.AsType[*httpfetch.WebhookError](err); ok && bad.Field != "" {
			field += "." + bad.Field
		}
		return refuse(err)
	case to.Slack != nil:
		_, err := r.chatURL(to.Slack)
		return refuse(err)
	case to.Teams != nil:
		_, err := r.chatURL(to.Teams)
		return refuse(err)
	case to.Email != nil:
		return refuse(r.checkEmail(to.Email))
	}
	_, err := r.program(to.Command)
	return refuse(err)
}

func (r *Receivers) chatURL(c *Chat) (*url.URL, error) {
	secret, err := r.conns.Secret(c.Secret)
	if err != nil {
		return nil, err
	}
	u, err := secret.URL()
	if err != nil {
		return nil, fmt.Errorf("this node's secret %q is no URL of one of its hosts", c.Secret)
	}
	return u, nil
}

// tell makes one attempt at a message.
func (r *Receivers) tell(ctx context.Context, to *Receiver, m *Message) httpfetch.Delivery {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	switch {
	case to.Webhook != nil:
		return r.tellWebhook(ctx, to.Webhook, m)
	case to.Slack != nil:
		return r.tellChat(ctx, to.Slack, m, slackBody)
	case to.Teams != nil:
		return r.tellChat(ctx, to.Teams, m, teamsBody)
	case to.Email != nil:
		return r.tellEmail(ctx, to.Email, m)
	}
	return r.tellProgram(ctx, to.Command, m)
}

func (r *Receivers) tellWebhook(ctx context.Context, to *Webhook, m *Message) httpfetch.Delivery {
	data, err := json.Marshal(m)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	body, err := httpfetch.WebhookBody("alert", m.At, data)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return r.sender.Send(ctx, &httpfetch.Webhook{ID: m.ID, URL: to.URL, Secret: to.Secret, Body: body})
}

// tellChat posts to a URL that is a secret: nothing that is told of a failure has more of it than the host. So nothing
// of the answer is quoted, which may repeat any part of it.
func (r *Receivers) tellChat(ctx context.Context, to *Chat, m *Message, body func(*Message) any) httpfetch.Delivery {
	u, err := r.chatURL(to)
	if err != nil {
		return httpfetch.Delivery{Why: r.conns.Redact(err.Error())} // the operator's file may be mended
	}
	doc, err := json.Marshal(body(m))
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	header := http.Header{}
	header.Set("Idempotency-Key", m.ID)
	out := r.sender.Post(ctx, u, header, doc)
	out.Said = ""
	return out
}

// slackBody is a message as Slack's incoming webhooks take it, and what is made after them.
func slackBody(m *Message) any {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	head := escape.Replace(m.heading())
	if m.Link != "" {
		head = "<" + m.Link + "|" + strings.ReplaceAll(head, "|", "/") + ">"
	}
	return map[string]string{"text": "*" + head + "*\n" + escape.Replace(m.Text)}
}

// teamsBody is a message as the workflows of Teams take it: an adaptive card.
func teamsBody(m *Message) any {
	inert := strings.NewReplacer(`\`, `\\`, "[", `\[`, "<", "&lt;") // no links but ours
	text := func(s, weight string) map[string]any {
		return map[string]any{"type": "TextBlock", "text": inert.Replace(s), "wrap": true, "weight": weight}
	}
	body := []any{text(m.heading(), "Bolder")}
	for part := range strings.SplitSeq(m.Text, "\n\n") {
		body = append(body, text(strings.ReplaceAll(part, "\n", "\n\n"), "Default")) // a line break there
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

// heading is the title with how much it matters.
func (m *Message) heading() string { return "[" + string(m.Severity) + "] " + m.Title }
