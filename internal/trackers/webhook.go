package trackers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
)

const (
	// webhookTimeout bounds an attempt.
	webhookTimeout = 15 * time.Second
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = time.Hour
	// webhookPatience is how long one is tried before it is given up, and webhookAttempts how often at the least: when
	// nobody could send it, because Tranche was down, no time of its receiver's has passed.
	webhookPatience = 24 * time.Hour
	webhookAttempts = 12
	// answerTime bounds the wait for what stands behind the status of an answer. The status has said what counts.
	answerTime = time.Second
)

// webhookHosts says which hosts webhooks may go to, and signs what goes there.
type webhookHosts struct{ conns *connections.Connections }

// key returns what signs a webhook to u. The operator's file decides by the hosts of the secret.
func (w webhookHosts) key(u *url.URL, secret string) ([]byte, error) {
	if w.conns == nil {
		return nil, errNoConnections
	}
	found, err := w.conns.Secret(secret)
	if err != nil {
		return nil, err
	}
	text, err := found.Value(u)
	if err != nil {
		return nil, errors.New(w.conns.Redact(err.Error()))
	}
	key, err := signingKey(text)
	if err != nil {
		return nil, fmt.Errorf("secret %q cannot sign webhooks: %w", secret, err)
	}
	return key, nil
}

var errNoConnections = errors.New("this node has no secrets (serve --connections FILE)")

// unreadSecret is what everybody is told of a secret that is not there. The error may name what is the operator's.
const unreadSecret = "this node has no secret to sign it with"

// check refuses a webhook that could not be sent.
func (w webhookHosts) check(set *fanout.WebhookSettings) error {
	if set == nil {
		return nil
	}
	u, err := url.Parse(set.URL)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return refuseWebhook("webhook.url", set.URL, "want a URL like https://api.bank.example/done")
	case u.User != nil:
		return refuseWebhook("webhook.url", u.Redacted(), "a password has no place in a URL; receivers check the signature")
	case u.Fragment != "":
		return refuseWebhook("webhook.url", set.URL, "what stands behind # is never sent")
	case set.Secret == "":
		return refuseWebhook("webhook.secret", "", "name a secret of the operator's file, which signs what is sent")
	}
	if _, err := w.key(u, set.Secret); err != nil {
		return refuseWebhook("webhook", set.URL, err.Error())
	}
	return nil
}

func refuseWebhook(place, value, why string) *fanout.Error {
	return &fanout.Error{Code: fanout.CodeWebhook, Place: place, Value: echo(value), Message: why}
}

// delivery is what came of an attempt.
type delivery struct {
	delivered bool
	give      bool          // up: it is of no use to try again
	why       string        // it was not delivered, in words of ours: everybody may see it
	said      string        // by the receiver, which may repeat what it was asked for
	wait      time.Duration // at least
}

// deliver makes one attempt.
func (w *Webhooks) deliver(ctx context.Context, hook *service.Webhook) delivery {
	u, err := url.Parse(hook.URL)
	if err != nil {
		return delivery{give: true, why: "its URL cannot be read"}
	}
	key, err := w.hosts.key(u, hook.Secret)
	if err != nil {
		return delivery{why: unreadSecret, said: w.quoted([]byte(err.Error()))} // the operator's file may be mended
	}
	body, err := webhookBody(hook)
	if err != nil {
		return delivery{give: true, why: err.Error()}
	}
	timestamp, signature := sign(key, hook.EventID.String(), w.now(), body)
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set(headerWebhookID, hook.EventID.String())
	header.Set(headerWebhookTimestamp, timestamp)
	header.Set(headerWebhookSignature, signature)
	return w.post(ctx, u, header, body)
}

// post sends one request and judges the answer.
func (w *Webhooks) post(ctx context.Context, u *url.URL, header http.Header, body []byte) delivery {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return delivery{give: true, why: "its URL cannot be read"}
	}
	r.Header = header
	answer, err := w.transport.RoundTrip(r)
	if err != nil {
		why, _ := httpfetch.Explain(err) // what is refused today, the operator may allow
		return delivery{why: u.Host + ": " + why}
	}
	defer func() { _ = answer.Body.Close() }() // as much was read as is of use
	defer time.AfterFunc(answerTime, cancel).Stop()
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, maxRead)) // to its end, when that is near: the connection serves on
	status := answer.StatusCode
	why := strings.TrimSpace(fmt.Sprintf("%s answers %d %s", u.Host, status, http.StatusText(status)))
	switch {
	case status >= 200 && status < 300:
		return delivery{delivered: true}
	case status == http.StatusGone: // by the standard: it wants no more
		return delivery{give: true, why: why, said: w.quoted(begin)}
	case status >= 300 && status < 400:
		return delivery{why: why + "; redirects are not followed", said: w.quoted(begin)}
	}
	return delivery{why: why, said: w.quoted(begin), wait: w.retryAfter(answer.Header)}
}

const (
	// maxRead is how many bytes are read of an answer.
	maxRead = 4 << 10
	// maxSaid is how many characters of what a receiver says of an error are quoted.
	maxSaid = 200
)

// quoted makes what a receiver says fit to be quoted: one line, and no secrets.
func (w *Webhooks) quoted(body []byte) string {
	text := w.hosts.conns.Redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	unfit := func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }
	said := []rune(strings.Join(strings.FieldsFunc(text, unfit), " "))
	return string(said[:min(len(said), maxSaid)])
}

// joinReason makes one text of why a webhook was not delivered, in words of ours, and what its receiver said, which
// stands behind the first line break. There is none in either.
func joinReason(why, said string) string {
	if said == "" {
		return why
	}
	return why + "\n" + said
}

// retryAfter is how long a receiver wants to be left alone: it says so in seconds, or until when.
func (w *Webhooks) retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(at.Sub(w.now()), 0)
}

// retryIn is how long to wait after so many attempts that failed: doubled each time, and up to a fifth more, so that
// what failed together does not come back together.
func (w *Webhooks) retryIn(attempts int, least time.Duration) time.Duration {
	pause := longestRetry
	if doublings := attempts - 1; doublings < 10 {
		pause = min(w.first<<doublings, longestRetry)
	}
	pause += rand.N(pause / 5)
	return max(pause, min(least, longestRetry))
}
