package httpfetch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/connections"
)

const (
	// DefaultTimeout bounds an attempt.
	DefaultTimeout = 15 * time.Second
	// answerTime bounds the wait for what stands behind the status of an answer. The status has said what counts.
	answerTime = time.Second
)

// SenderConfig is what a Sender needs.
type SenderConfig struct {
	Connections *connections.Connections // nil: there are no secrets
	// Transport reaches the hosts of others, and guards what must not be reached: httpfetch's. It follows no redirects.
	Transport http.RoundTripper
	// Now returns the time that signatures bear; nil: time.Now. Receivers compare it with their clocks.
	Now     func() time.Time
	Timeout time.Duration // of an attempt; 0: DefaultTimeout
}

// Sender sends messages to receivers by HTTP: signed as https://www.standardwebhooks.com specifies, or unsigned. A
// secret signs only for the hosts in the operator's file, redirects are not followed, and the time and size of an
// answer are bounded. What the receiver said is kept apart from our own words, since it may repeat the request. Safe
// for concurrent use.
type Sender struct {
	conns     *connections.Connections
	transport http.RoundTripper
	now       func() time.Time
	timeout   time.Duration
}

// NewSender returns a Sender.
func NewSender(config SenderConfig) (*Sender, error) {
	if config.Transport == nil {
		return nil, errors.New("httpfetch: SenderConfig.Transport is needed")
	}
	s := &Sender{
		conns: config.Connections, transport: config.Transport, now: config.Now,
		timeout: cmp.Or(max(config.Timeout, 0), DefaultTimeout),
	}
	if s.conns == nil {
		s.conns = &connections.Connections{}
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s, nil
}

// Delivery is what came of an attempt.
type Delivery struct {
	Delivered bool
	GiveUp    bool          // it is of no use to try again
	Why       string        // it was not delivered, or not to all, in words of ours: everybody may see it
	Said      string        // by the receiver, which may repeat what it was asked for
	Wait      time.Duration // at least, before the next attempt
}

// Reason makes one text of why it was not delivered and what the receiver said, which stands behind the first line
// break. There is none in either.
func (o *Delivery) Reason() string {
	if o.Said == "" {
		return o.Why
	}
	return o.Why + "\n" + o.Said
}

// Webhook is what is sent and signed.
type Webhook struct {
	ID     string // the same for each attempt
	URL    string
	Secret string // the name of the one that signs
	Body   []byte // JSON, the same for each attempt
}

// unreadSecret is what everybody is told of a secret that is not there. The error may name what is the operator's.
const unreadSecret = "this node has no secret to sign it with"

const unreadURL = "its URL cannot be read"

// Send makes one attempt at a signed message.
func (s *Sender) Send(ctx context.Context, m *Webhook) Delivery {
	u, err := url.Parse(m.URL)
	if err != nil {
		return Delivery{GiveUp: true, Why: unreadURL}
	}
	key, err := keyOf(s.conns, u, m.Secret)
	if err != nil {
		return Delivery{Why: unreadSecret, Said: s.Quoted([]byte(err.Error()))} // the operator's file may be fixed
	}
	timestamp, signature := sign(key, m.ID, s.now(), m.Body)
	header := http.Header{}
	header.Set(headerID, m.ID)
	header.Set(headerTimestamp, timestamp)
	header.Set(headerSignature, signature)
	return s.Post(ctx, u, header, m.Body)
}

// Post makes one attempt at a body of JSON that is not signed, and judges the answer.
func (s *Sender) Post(ctx context.Context, u *url.URL, header http.Header, body []byte) Delivery {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return Delivery{GiveUp: true, Why: unreadURL}
	}
	r.Header = header
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.transport.RoundTrip(r)
	if err != nil {
		why, _ := Explain(err) // what is refused today, the operator may allow
		return Delivery{Why: u.Host + ": " + why}
	}
	defer func() { _ = answer.Body.Close() }() // as much was read as is of use
	defer time.AfterFunc(answerTime, cancel).Stop()
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, maxRead)) // to its end, when that is near: the connection serves on
	status := answer.StatusCode
	why := strings.TrimSpace(fmt.Sprintf("%s answers %d %s", u.Host, status, http.StatusText(status)))
	switch {
	case status >= 200 && status < 300:
		return Delivery{Delivered: true}
	case status == http.StatusGone: // by the standard: it wants no more
		return Delivery{GiveUp: true, Why: why, Said: s.Quoted(begin)}
	case status >= 300 && status < 400:
		return Delivery{Why: why + "; redirects are not followed", Said: s.Quoted(begin)}
	}
	return Delivery{Why: why, Said: s.Quoted(begin), Wait: s.retryAfter(answer.Header)}
}

const (
	// maxRead is how many bytes are read of an answer.
	maxRead = 4 << 10
	// maxQuoted is how many characters of what a receiver says of an error are quoted.
	maxQuoted = 200
)

// Quoted makes what a receiver says fit to be quoted: one line, and no secrets.
func (s *Sender) Quoted(body []byte) string {
	text := s.conns.Redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	unfit := func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }
	said := []rune(strings.Join(strings.FieldsFunc(text, unfit), " "))
	return string(said[:min(len(said), maxQuoted)])
}

// retryAfter is how long a receiver wants to be left alone: it says so in seconds, or until when.
func (s *Sender) retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(at.Sub(s.now()), 0)
}

// Retry says how long to wait between attempts.
type Retry struct {
	First   time.Duration // after the first that failed; doubled with each
	Longest time.Duration
}

// In is how long to wait after so many attempts that failed: doubled each time, and up to a fifth more, so that what
// failed together does not come back together. A receiver may want least, up to the longest.
func (r Retry) In(attempts int, least time.Duration) time.Duration {
	pause := backoff.Nth(r.First, r.Longest, attempts)
	pause += rand.N(pause/5 + 1)
	return max(pause, min(least, r.Longest))
}

// WebhookBody is the body of a message: its type, its time and what it tells, as the standard has them.
func WebhookBody(kind string, at time.Time, data json.RawMessage) ([]byte, error) {
	return json.Marshal(struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}{kind, at, data})
}

// WebhookError says what is wrong with where a webhook is to go.
type WebhookError struct {
	Field string // url, secret; empty when it is both together
	Value string // fit to be repeated
	Why   string
}

func (e *WebhookError) Error() string { return e.Why }

// CheckWebhook refuses a webhook that could not be sent.
func CheckWebhook(conns *connections.Connections, address, secret string) error {
	u, err := CheckWebhookURL(address)
	if err != nil {
		return err
	}
	if secret == "" {
		return &WebhookError{Field: "secret", Why: "name a secret of the operator's file, which signs what is sent"}
	}
	if _, err := keyOf(conns, u, secret); err != nil {
		return &WebhookError{Value: address, Why: err.Error()}
	}
	return nil
}

// CheckWebhookURL reads the URL of a webhook. The error is a *WebhookError.
func CheckWebhookURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, &WebhookError{"url", address, "want a URL like https://api.bank.example/done"}
	case u.User != nil:
		return nil, &WebhookError{"url", u.Redacted(), "a password has no place in a URL; receivers check the signature"}
	case u.Fragment != "":
		return nil, &WebhookError{"url", address, "what stands behind # is never sent"}
	}
	return u, nil
}

var errNoConnections = errors.New("this node has no secrets (serve --connections FILE)")

// keyOf returns what signs a webhook to u. The operator's file decides by the hosts of the secret.
func keyOf(conns *connections.Connections, u *url.URL, secret string) ([]byte, error) {
	if conns == nil {
		return nil, errNoConnections
	}
	found, err := conns.Secret(secret)
	if err != nil {
		return nil, err
	}
	text, err := found.Value(u)
	if err != nil {
		return nil, errors.New(conns.Redact(err.Error()))
	}
	key, err := signingKey(text)
	if err != nil {
		return nil, fmt.Errorf("secret %q cannot sign webhooks: %w", secret, err)
	}
	return key, nil
}

// Headers of a webhook, as https://www.standardwebhooks.com has them.
const (
	headerID        = "webhook-id"        // the same for each attempt
	headerTimestamp = "webhook-timestamp" // of the attempt, in seconds
	headerSignature = "webhook-signature" // "v1," and the signature, in base64
)

const (
	secretPrefix = "whsec_"
	leastSecret  = 24 // bytes
	mostSecret   = 64
)

var errSecretForm = errors.New("it must be whsec_ and 24 to 64 random bytes in base64; make one with: " +
	"echo whsec_$(openssl rand -base64 32)")

// signingKey reads a secret as the standard writes it.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < leastSecret || len(key) > mostSecret {
		return nil, errSecretForm
	}
	return key, nil
}

// sign signs an attempt at a webhook: HMAC-SHA256 over its id, its time and its body.
func sign(key []byte, id string, at time.Time, body []byte) (timestamp, signature string) {
	timestamp = strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return timestamp, "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
