package apitest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// LockedBench is a server that asks everybody who they are.
type LockedBench struct {
	*Bench
	Log *observer.ObservedLogs
}

// Locked makes the bench one that needs a login.
func (b *Bench) Locked() *LockedBench {
	b.Helper()
	return b.LockedWith(api.Config{}, access.Config{})
}

// LockedWith is Locked with settings of one's own.
func (b *Bench) LockedWith(config api.Config, how access.Config) *LockedBench {
	b.Helper()
	core, seen := observer.New(zap.DebugLevel)
	how.Log, config.Log = zap.New(core), zap.New(core)
	how.UnknownBurst = cmp.Or(how.UnknownBurst, 100_000) // most tests try more than anybody may
	gate, err := access.New(identity.New(b.Store), how)
	if err != nil {
		b.Fatal(err)
	}
	config.Access, config.Alerts = gate, tellers(b.T)
	if config.Metrics == nil {
		config.Metrics = NewMeasured()
	}
	b.Gated = true
	b.Over(NodeOf(b.Engine), testenv.Conn(b, testenv.NATS(b)), config)
	return &LockedBench{b, seen}
}

// MadeToken is a token whose secret the test knows.
type MadeToken struct {
	identity.TokenView
	Secret string
}

// Token makes a token behind the API's back. A life of less than nothing makes one that has expired.
func (b *Bench) Token(name string, role access.Role, life time.Duration) MadeToken {
	b.Helper()
	secret := access.NewSecret()
	made, err := identity.New(b.Store).CreateToken(b.Context(), identity.NewToken{
		Name: name, Role: string(role), Hash: access.HashOf(secret), ExpiresIn: max(life, 0),
	}, "the test")
	if err != nil {
		b.Fatal(err)
	}
	if life < 0 {
		if _, err := b.Pool.Exec(b.Context(), `UPDATE api_token SET expires_at = clock_timestamp() - interval '1 minute'
			WHERE id = $1`, made.ID); err != nil {
			b.Fatal(err)
		}
	}
	return MadeToken{made, secret}
}

// Browser is somebody who has logged in.
type Browser struct{ Cookie *http.Cookie }

// Headers are what it sends.
func (w Browser) Headers() []string { return []string{"Cookie", w.Cookie.Name + "=" + w.Cookie.Value} }

// LogIn logs a browser in by the secret of a token.
func (b *Bench) LogIn(secret string) Browser {
	b.Helper()
	answer := b.Send(http.MethodPost, api.Prefix+"/session", `{"token":"`+secret+`"}`, "Content-Type", "application/json")
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		b.Fatalf("the login was answered with %d and %v", answer.StatusCode, answer.Cookies())
	}
	return Browser{answer.Cookies()[0]}
}

// Head is an answer without its body.
type Head struct {
	StatusCode int
	Header     http.Header
	cookies    []*http.Cookie
}

// Cookies are those that the answer sets.
func (h *Head) Cookies() []*http.Cookie { return h.cookies }

// Send returns an answer without its body.
func (b *Bench) Send(method, path, body string, header ...string) *Head {
	b.Helper()
	answer := exchange(b.Context(), b, method, b.URL+path, strings.NewReader(body), header...)
	defer func() { _ = answer.Body.Close() }()
	return &Head{answer.StatusCode, answer.Header, answer.Cookies()}
}

// Session is the session of who asks, or of the node.
func (b *Bench) Session(header ...string) (doc api.SessionDocument) {
	b.Helper()
	code, text := b.Ask(http.MethodGet, api.Prefix+"/session", nil, header...)
	if err := json.Unmarshal(text, &doc); err != nil || code != http.StatusOK {
		b.Fatalf("GET /session: %d %s, %v", code, text, err)
	}
	return doc
}

// OpenStream opens a stream of events, and sends how long it lasted from the moment that is sent to it.
func (b *Bench) OpenStream(at string, header ...string) (opened bool, ended <-chan time.Time) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, at+api.Prefix+"/runs/it/events", nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := carried(b, req) //nolint:bodyclose // it is, when the stream has ended
	if err != nil {
		b.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		b.Logf("%s answers %s", at, answer.Status)
		_ = answer.Body.Close()
		return false, nil
	}
	lines := bufio.NewReader(answer.Body)
	if _, err := lines.ReadString('\n'); err != nil { // the first event
		b.Fatal(err)
	}
	end := make(chan time.Time, 1)
	go func() {
		defer func() { _ = answer.Body.Close() }()
		_, _ = io.Copy(io.Discard, lines)
		end <- time.Now()
	}()
	return true, end
}

// Measured hands on what it is told, while there is room for it.
type Measured struct{ Requests chan string }

// NewMeasured returns metrics that tell of each request.
func NewMeasured() *Measured { return &Measured{make(chan string, 100)} }

// ServeHTTP implements http.Handler.
func (*Measured) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("tranche_up 1\n"))
}

// Watch implements api.Metrics.
func (*Measured) Watch(func(context.Context) (*health.Report, error)) {}

// Asked implements kernel.Meter.
func (m *Measured) Asked(route, role string, code int) {
	select {
	case m.Requests <- route + " " + role + " " + strconv.Itoa(code):
	default:
	}
}
