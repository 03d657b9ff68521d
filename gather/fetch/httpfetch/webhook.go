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

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/connections"
)

const (
	// DefaultTimeout bounds an attempt.
	DefaultTimeout = 15 * time.Second
	// answerTime bounds reading an answer's body; its status is all that counts.
	answerTime = time.Second
)

// SenderConfig configures a Sender.
type SenderConfig struct {
	Connections *connections.Connections // nil: no secrets
	// Transport connects to receivers and enforces the address rules: use Client.Transport. It follows no redirects.
	Transport http.RoundTripper
	// Now returns the time for signatures, which receivers compare with their clocks. Default time.Now.
	Now     func() time.Time
	Timeout time.Duration // of an attempt; default DefaultTimeout
}

// Sender sends messages to receivers over HTTP, unsigned or signed per https://www.standardwebhooks.com. A secret
// signs only for its hosts in the operator's file. Redirects are not followed, and answers are limited in duration and
// size. The receiver's text is kept apart from ours, since it may repeat the request. A Sender is safe for concurrent
// use.
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
	s.conns = cmp.Or(s.conns, &connections.Connections{})
	if s.now == nil {
		s.now = time.Now
	}
	return s, nil
}

// Delivery is the outcome of an attempt.
type Delivery struct {
	Delivered bool
	GiveUp    bool          // retrying is useless
	Why       string        // reason for the failure, in our words: safe to show to all
	Said      string        // the receiver's text, which may repeat the request
	Wait      time.Duration // minimum wait before the next attempt
}

// Reason joins Why and, after a line break, Said. Neither contains one.
func (o *Delivery) Reason() string {
	if o.Said == "" {
		return o.Why
	}
	return o.Why + "\n" + o.Said
}

// Webhook is a message to be signed and sent.
type Webhook struct {
	ID     string // the same for each attempt
	URL    string
	Secret string // name of the signing secret
	Body   []byte // JSON, the same for each attempt
}

// unreadSecret hides the error for a missing secret, which may name the operator's data.
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

// Post makes one attempt at an unsigned JSON body and evaluates the answer.
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
		why, _ := Explain(err) // the operator may later allow what is refused now
		return Delivery{Why: u.Host + ": " + why}
	}
	defer func() { _ = answer.Body.Close() }() // the useful part has been read
	defer time.AfterFunc(answerTime, cancel).Stop()
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, maxRead)) // reading a short body to its end keeps the connection
	status := answer.StatusCode
	why := strings.TrimSpace(fmt.Sprintf("%s answers %d %s", u.Host, status, http.StatusText(status)))
	switch {
	case status >= 200 && status < 300:
		return Delivery{Delivered: true}
	case status == http.StatusGone: // per the standard: stop sending
		return Delivery{GiveUp: true, Why: why, Said: s.Quoted(begin)}
	case status >= 300 && status < 400:
		return Delivery{Why: why + "; redirects are not followed", Said: s.Quoted(begin)}
	}
	wait, _ := retryAfter(answer.Header, s.now())
	return Delivery{Why: why, Said: s.Quoted(begin), Wait: wait}
}

const (
	// maxRead bounds the bytes read of an answer.
	maxRead = 4 << 10
	// maxQuoted bounds the characters quoted from a receiver's error.
	maxQuoted = 200
)

// Quoted returns a receiver's text on one line, without secrets.
func (s *Sender) Quoted(body []byte) string {
	said := oneLine(s.conns, body)
	return string(said[:min(len(said), maxQuoted)])
}

// Retry configures the pauses between attempts.
type Retry struct {
	First   time.Duration // after the first failure; doubled each time
	Longest time.Duration
}

// In returns the pause after the given number of failed attempts, with up to a fifth of jitter to spread out
// simultaneous failures. least, from the receiver, applies up to Longest.
func (r Retry) In(attempts int, least time.Duration) time.Duration {
	pause := backoff.Nth(r.First, r.Longest, attempts)
	pause += rand.N(pause/5 + 1)
	return max(pause, min(least, r.Longest))
}

// WebhookBody returns a message body as defined by the standard.
func WebhookBody(kind string, at time.Time, data json.RawMessage) ([]byte, error) {
	return json.Marshal(struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}{kind, at, data})
}

// WebhookError means that a webhook's settings are invalid.
type WebhookError struct {
	Field string // url or secret; empty for their combination
	Value string // safe to repeat
	Why   string
}

func (e *WebhookError) Error() string { return e.Why }

// CheckWebhook rejects a webhook that could not be sent.
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

// CheckWebhookURL parses a webhook's URL. The error is a *WebhookError.
func CheckWebhookURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, &WebhookError{"url", address, "want a URL like https://api.bank.example/done"}
	case u.User != nil:
		return nil, &WebhookError{"url", u.Redacted(), "a password has no place in a URL; receivers check the signature"}
	case u.Fragment != "":
		return nil, &WebhookError{"url", address, "the part after # is never sent"}
	}
	return u, nil
}

var errNoConnections = errors.New("this node has no secrets (serve --connections FILE)")

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

// Headers of a webhook (https://www.standardwebhooks.com).
const (
	headerID        = "webhook-id"        // the same for each attempt
	headerTimestamp = "webhook-timestamp" // of the attempt, Unix seconds
	headerSignature = "webhook-signature" // "v1," and the base64 signature
)

const (
	secretPrefix = "whsec_"
	leastSecret  = 24 // bytes
	mostSecret   = 64
)

var errSecretForm = errors.New("it must be whsec_ and 24 to 64 random bytes in base64; make one with: " +
	"echo whsec_$(openssl rand -base64 32)")

func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < leastSecret || len(key) > mostSecret {
		return nil, errSecretForm
	}
	return key, nil
}

// sign signs an attempt: HMAC-SHA256 over ID, time and body.
func sign(key []byte, id string, at time.Time, body []byte) (timestamp, signature string) {
	timestamp = strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return timestamp, "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
