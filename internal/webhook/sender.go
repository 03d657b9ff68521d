package webhook

import (
	"bytes"
	"cmp"
	"context"
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

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/connections"
)

const (
	// DefaultTimeout bounds an attempt.
	DefaultTimeout = 15 * time.Second
	// answerTime bounds the wait for what stands behind the status of an answer. The status has said what counts.
	answerTime = time.Second
)

// Config is what a Sender needs.
type Config struct {
	Connections *connections.Connections // nil: there are no secrets
	// Transport reaches the hosts of others, and guards what must not be reached: httpfetch's. It follows no redirects.
	Transport http.RoundTripper
	// Now returns the time that signatures bear; nil: time.Now. Receivers compare it with their clocks.
	Now     func() time.Time
	Timeout time.Duration // of an attempt; 0: DefaultTimeout
}

// Sender makes attempts.
type Sender struct {
	conns     *connections.Connections
	transport http.RoundTripper
	now       func() time.Time
	timeout   time.Duration
}

// New returns a Sender.
func New(config Config) (*Sender, error) {
	if config.Transport == nil {
		return nil, errors.New("webhook: Config.Transport is needed")
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

// Outcome is what came of an attempt.
type Outcome struct {
	Delivered bool
	GiveUp    bool          // it is of no use to try again
	Why       string        // it was not delivered, or not to all, in words of ours: everybody may see it
	Said      string        // by the receiver, which may repeat what it was asked for
	Wait      time.Duration // at least, before the next attempt
}

// Reason makes one text of why it was not delivered and what the receiver said, which stands behind the first line
// break. There is none in either.
func (o *Outcome) Reason() string {
	if o.Said == "" {
		return o.Why
	}
	return o.Why + "\n" + o.Said
}

// Message is what is sent and signed.
type Message struct {
	ID     string // the same for each attempt
	URL    string
	Secret string // the name of the one that signs
	Body   []byte // JSON, the same for each attempt
}

// unreadSecret is what everybody is told of a secret that is not there. The error may name what is the operator's.
const unreadSecret = "this node has no secret to sign it with"

const unreadURL = "its URL cannot be read"

// Send makes one attempt at a signed message.
func (s *Sender) Send(ctx context.Context, m *Message) Outcome {
	u, err := url.Parse(m.URL)
	if err != nil {
		return Outcome{GiveUp: true, Why: unreadURL}
	}
	key, err := keyOf(s.conns, u, m.Secret)
	if err != nil {
		return Outcome{Why: unreadSecret, Said: s.Quoted([]byte(err.Error()))} // the operator's file may be mended
	}
	timestamp, signature := sign(key, m.ID, s.now(), m.Body)
	header := http.Header{}
	header.Set(headerID, m.ID)
	header.Set(headerTimestamp, timestamp)
	header.Set(headerSignature, signature)
	return s.Post(ctx, u, header, m.Body)
}

// Post makes one attempt at a body of JSON that is not signed, and judges the answer.
func (s *Sender) Post(ctx context.Context, u *url.URL, header http.Header, body []byte) Outcome {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return Outcome{GiveUp: true, Why: unreadURL}
	}
	r.Header = header
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.transport.RoundTrip(r)
	if err != nil {
		why, _ := httpfetch.Explain(err) // what is refused today, the operator may allow
		return Outcome{Why: u.Host + ": " + why}
	}
	defer func() { _ = answer.Body.Close() }() // as much was read as is of use
	defer time.AfterFunc(answerTime, cancel).Stop()
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, maxRead)) // to its end, when that is near: the connection serves on
	status := answer.StatusCode
	why := strings.TrimSpace(fmt.Sprintf("%s answers %d %s", u.Host, status, http.StatusText(status)))
	switch {
	case status >= 200 && status < 300:
		return Outcome{Delivered: true}
	case status == http.StatusGone: // by the standard: it wants no more
		return Outcome{GiveUp: true, Why: why, Said: s.Quoted(begin)}
	case status >= 300 && status < 400:
		return Outcome{Why: why + "; redirects are not followed", Said: s.Quoted(begin)}
	}
	return Outcome{Why: why, Said: s.Quoted(begin), Wait: s.retryAfter(answer.Header)}
}

const (
	// maxRead is how many bytes are read of an answer.
	maxRead = 4 << 10
	// maxSaid is how many characters of what a receiver says of an error are quoted.
	maxSaid = 200
)

// Quoted makes what a receiver says fit to be quoted: one line, and no secrets.
func (s *Sender) Quoted(body []byte) string {
	text := s.conns.Redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	unfit := func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }
	said := []rune(strings.Join(strings.FieldsFunc(text, unfit), " "))
	return string(said[:min(len(said), maxSaid)])
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

// Body is the body of a message: its type, its time and what it tells, as the standard has them.
func Body(kind string, at time.Time, data json.RawMessage) ([]byte, error) {
	return json.Marshal(struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}{kind, at, data})
}
