package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
)

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
		return nil, fmt.Errorf("this node's secret %q is no URL of one of its hosts", c.Secret)
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
