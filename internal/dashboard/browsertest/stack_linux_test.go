package browsertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

const grace = 2 * time.Second

type stackConfig struct {
	locked bool   // whoever comes has to log in
	base   string // the path before all others
}

// stack is a server with all that it needs: a database, NATS and a node.
type stack struct {
	*testing.T
	*nodetest.Bundle
	config stackConfig
	addr   string
	url    string
	secret string // of who posts; empty: bob, without one
	stop   func() // the server alone
}

func newStack(t *testing.T, config stackConfig) *stack {
	t.Helper()
	s := &stack{T: t, Bundle: nodetest.SetupOn(t, wide(t)), config: config, addr: testenv.QuietAddr(t)}
	s.serve()
	return s
}

// wide is a database with so many connections that what a page asks for concurrently does not wait for its turn: on a
// machine that is stalled it would be told to come again.
func wide(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config := testenv.Must(pgxpool.ParseConfig(testenv.Database(t)))(t)
	config.MaxConns = 64
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	return pool
}

// serve starts the server, at the address where it was before.
func (s *stack) serve() {
	s.Helper()
	listener := s.bound()
	s.url = "http://" + s.addr
	pages := testenv.Must(dashboard.Handler(dashboard.Config{Base: s.config.base}))(s)
	settings := api.Config{Build: buildinfo.Info{Version: "test"}, Dashboard: pages, QueryTimeout: patience,
		BasePath: s.config.base, Links: map[string]string{"logs": "http://logs.test/?q={slice}"}}
	settings.Alerts = testenv.Must(alerts.NewReceivers(alerts.Config{Transport: http.DefaultTransport,
		Programs: map[string]string{"page": "/bin/true"}}))(s)
	if s.config.locked {
		settings.Access = testenv.Must(access.New(identity.New(s.Store), access.Config{}))(s)
	}
	server := testenv.Must(api.New(s.Store, api.NodeOf(s.Node), s.NC, settings))(s)
	s.stop = s.keep(func(ctx context.Context) error { return server.Serve(ctx, listener, grace) })
}

// bound is a listener at the stack's address, which a browser that is being started may have for a moment.
func (s *stack) bound() (listener net.Listener) {
	s.Helper()
	testenv.Until(s, patience, "the server's address is free", func() bool {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(s.Context(), "tcp", s.addr)
		return err == nil
	})
	return listener
}

// keep runs f until the end of the test, or until it is told to stop.
func (s *stack) keep(f func(context.Context) error) (stop func()) {
	return testenv.Keep(s, s.Logf, "it", f)
}

type bill struct {
	Name string `json:"name"`
}

type statement struct {
	For string `json:"for"`
}

// bills is a service that cannot do some items until it is told that all is well.
type bills struct {
	well  atomic.Bool
	gate  chan struct{} // one for each chunk that may be done; nil: all may
	codes func(key string) (code, message string)
}

// listen runs the service of the endpoint statement.
func (s *stack) listen(b *bills) {
	s.Helper()
	nc := testenv.Conn(s.T, s.NS)
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "billing", Version: "1.0.0", Log: zap.NewNop()}))(s)
	err := endpoints.HandleList(svc, "statement", func(
		ctx context.Context, chunk *endpoints.Chunk[bill, statement],
	) error {
		if b.gate != nil {
			select {
			case <-b.gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, item := range chunk.Items() {
			if code, message := b.codes(item.Key); code != "" && !b.well.Load() {
				item.Fail(code, "%s", message)
				continue
			}
			item.Reply(statement{For: item.In.Name})
		}
		return nil
	})
	testenv.NoError(s, err)
	s.keep(svc.Run)
}

// load starts a run of items that are made by their number.
func (s *stack) load(req startstore.LoadRequest, n int, item func(i int) (key, payload string)) workqueue.RunID {
	s.Helper()
	i := 0
	loaded := testenv.Must(s.Node.Runs().Start(s.Context(), req, func(into *startstore.LoadItem) error {
		if i == n {
			return io.EOF
		}
		key, payload := item(i)
		into.Key, into.Payload = key, []byte(payload)
		i++
		return nil
	}))(s)
	return loaded.Run
}

func request(name, endpoint string) startstore.LoadRequest {
	return startstore.LoadRequest{Name: name, Plan: endpoint, CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 100, InFlight: 4, MaxAttempts: 1,
			Timeout: time.Hour, RetryBackoff: time.Millisecond}, // a chunk may wait for its gate
	}}}
}

// post has bob tell the server something, or who has the secret of the stack, and returns the answer.
func (s *stack) post(path, kind, text string) (answer map[string]any) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+api.Prefix+path, strings.NewReader(text))
	testenv.NoError(s, err)
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Tranche-Actor", "bob")
	if s.secret != "" {
		req.Header.Set("Authorization", "Bearer "+s.secret)
	}
	code, text := testenv.Do(s, req)
	if code >= http.StatusMultipleChoices || json.Unmarshal([]byte(text), &answer) != nil {
		s.Fatalf("POST %s: %d %s", path, code, text)
	}
	return answer
}

func (s *stack) ended(run workqueue.RunID) {
	s.Helper()
	testenv.Until(s, patience, "the run ends", func() bool {
		view, err := inspect.New(s.Store).Run(s.Context(), run)
		return err == nil && view.State == "completed"
	})
}

func (s *stack) token(role access.Role) (secret string) { return s.granted(role, nil) }

func (s *stack) granted(role access.Role, grants map[string]string) (secret string) {
	s.Helper()
	secret = access.NewSecret()
	testenv.Must(identity.New(s.Store).CreateToken(s.Context(), identity.NewToken{
		Name: fmt.Sprint("the ", role), Role: string(role), Hash: access.HashOf(secret), Grants: grants,
	}, "test"))(s)
	return secret
}

// evil runs when it is taken for HTML, a script, a template or an address, and spoils lines when it is shown as it is.
const evil = `<img src=x onerror="window.__ran=1">"><script>window.__ran=1</script>` +
	"\u202egnp.exe\u202c \x1b[31mred\x1b[0m ${window.__ran=1} {{constructor.constructor('window.__ran=1')()}}"

func start(text string, n int) string {
	if all := []rune(text); len(all) > n {
		return string(all[:n])
	}
	return text
}

// villains is what hostile has made.
type villains struct {
	run, waiting workqueue.RunID
	key          string
}

// hostile fills a stack with texts that want to harm whoever looks at them, wherever someone else can put a text.
func (s *stack) hostile() villains {
	s.Helper()
	long := strings.Repeat("W", 400)
	keys := []string{evil, `javascript:window.__ran=1`, long, "..", "a/b?c#d", `"quoted"`, "Ünïcödé 数据 \U0001F4A9"}
	service := &bills{codes: func(key string) (string, string) {
		switch key {
		case evil, "..":
			return "bad_" + strings.Repeat("x", 40), evil
		case long:
			return "long", strings.Repeat("M", 2000)
		}
		return "", ""
	}}
	s.listen(service)
	payload := testenv.Must(json.Marshal(map[string]any{"name": evil, evil: []any{evil, long, nil, 1e300}}))(s)
	req := request(evil, "statement")
	req.Source, req.CreatedBy = start(evil, 60)+".csv", start(evil, 80)
	req.Params = map[string]string{"title": evil}
	run := s.load(req, 300, func(i int) (string, string) {
		if i < len(keys) {
			return keys[i], string(payload)
		}
		return plainItem(i)
	})
	s.ended(run)
	waiting := s.load(request(start(long, 200), "nobody"), 50, plainItem)

	for _, cause := range []string{"handler_error", "no_reply"} {
		letter := deadletter.DeadLetter{MsgID: uuid.NewString(), Endpoint: "statement", Cause: cause, Message: evil,
			Run:     &run,
			Service: start(evil, 100), Origin: start(evil, 90), Headers: map[string][]string{"Evil": {evil}}, Body: payload}
		testenv.Must(deadletter.New(s.Store).Add(s.Context(), letter))(s)
	}
	testenv.NoError(s, deadletter.New(s.Store).Quarantine(s.Context(), deadletter.Quarantined{
		Reason: "json", Detail: evil, Subject: "tranche.reply." + start(evil, 30), Run: uuid.UUID(run),
		Headers: map[string][]string{"Evil": {evil}}, Body: payload}))
	token := identity.NewToken{Name: start(evil, 90), Role: "viewer", Hash: [32]byte{1}}
	testenv.Must(identity.New(s.Store).CreateToken(s.Context(), token, start(evil, 60)))(s)
	for _, sql := range []string{
		`INSERT INTO audit_log (actor, action, subject, detail, before, after)
			VALUES ($1, 'pause', $1, jsonb_build_object('reason', $1::text), jsonb_build_object($1::text, $1::text), '{}')`,
		`INSERT INTO node_session (id, host, pid, version, expires_at)
			VALUES (gen_random_uuid(), $1, 66, $1, tranche_now() - interval '1 minute')`,
	} {
		testenv.Must(s.Pool.Exec(s.Context(), sql, fmt.Sprint(evil)))(s)
	}
	return villains{run: run, waiting: waiting, key: evil}
}

// hostileServices does the same to what other systems use: a batch of the tracker, whose id it returns, a collector
// and a schedule. Their names are held to letters; what they carry is not.
func (s *stack) hostileServices(secret string) (batch string) {
	s.Helper()
	const yaml = "application/yaml"
	s.secret = secret
	post := func(path string, body map[string]any) map[string]any {
		s.Helper()
		text := testenv.Must(json.Marshal(body))(s)
		return s.post(path, "application/json", string(text))
	}
	const note = "# <img src=x onerror=window.__ran=1> ${window.__ran=1}\n"
	batch, _ = post("/trackers", map[string]any{"owner": start(evil, 60), "key": start(evil, 50)})["id"].(string)
	post("/trackers/"+batch+"/groups", map[string]any{"items": 20_000})
	post("/trackers/"+batch+"/ack", map[string]any{"ranges": []string{"0:1-5", "1:7-4000"}, "code": "<b>bad</b>"})
	s.post("/collectors", yaml, note+"name: hostile\nendpoint: nobody\nmin_size: 2\n")
	post("/collectors/hostile/ops", map[string]any{"ops": []map[string]any{
		{"id": start(evil, 60), "key": start(evil, 50), "payload": evil},
		{"id": strings.Repeat("W", 200), "key": start(evil, 50), "payload": 1},
	}})
	s.post("/plans", yaml, note+"name: hostile\nsteps: [{endpoint: statement}]\n")
	s.post("/alerts", yaml, note+"name: hostile\nwhen: {runs: [paused], health: info}\n"+
		"plans: [\"<b>\"]\nto: {command: page}\n")
	post("/alerts/hostile/test", map[string]any{})
	s.post("/schedules", yaml, note+"name: hostile\ncron: 0 3 * * *\nplan: nothing\nitems:\n  file: \"<b>.csv\"\n")
	return batch
}
