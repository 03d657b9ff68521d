package streams_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// documented returns the configuration that the command in docs/security.md writes, with passwords.
func documented(t *testing.T) string {
	t.Helper()
	page := testenv.Must(os.ReadFile("../../docs/security.md"))(t)
	_, rest, found := strings.Cut(string(page), "    tranche nats config ")
	line, _, _ := strings.Cut(rest, "\n")
	if !found {
		t.Fatal("docs/security.md has no command")
	}
	system := testenv.Must(natsaccess.New(rolesOf(t, strings.Fields(line))))(t)
	return withPasswords(system.Conf(nil))
}

// rolesOf reads the flags of the command.
func rolesOf(t *testing.T, words []string) (roles natsaccess.Roles) {
	t.Helper()
	for i := 0; i+1 < len(words); i += 2 {
		grant, err := natsaccess.ParseGrant(words[i+1])
		if err != nil && words[i] != "--out" {
			t.Fatal(err)
		}
		switch words[i] {
		case "--service":
			roles.Services = append(roles.Services, grant)
		case "--caller":
			roles.Callers = append(roles.Callers, grant)
		case "--tracker":
			roles.Trackers = append(roles.Trackers, grant.Name)
		case "--viewer":
			roles.Viewers = append(roles.Viewers, grant.Name)
		}
	}
	return roles
}

// withPasswords gives every user the same password.
func withPasswords(config string) string {
	var passwords strings.Builder
	for _, m := range regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(config, -1) {
		fmt.Fprintf(&passwords, "%s: secret\n", m[1])
	}
	return passwords.String() + config
}

// without takes one permission from a user; from the node, which has them all, by denying it.
func without(t *testing.T, config, user, subject string) string {
	t.Helper()
	if user == natsaccess.NodeName {
		what := "publish"
		if strings.HasPrefix(subject, "_INBOX") || subject == "tranche.wake" {
			what = "subscribe"
		}
		return strings.Replace(config, "password: $NODE_PASSWORD",
			fmt.Sprintf("password: $NODE_PASSWORD, permissions: { %s: { deny: %q } }", what, subject), 1)
	}
	_, rest, found := strings.Cut(config, "{ user: "+user+",")
	if !found {
		t.Fatalf("the configuration has no user %s", user)
	}
	before, _, _ := strings.Cut(rest, "{ user: ")
	if rest, api := strings.CutPrefix(subject, "$JS.API."); api {
		subject = wire.NodesAPIPrefix + rest
	}
	after := strings.Replace(before, fmt.Sprintf("        %q", subject), `        "not.`+user+`"`, 1)
	if after == before {
		t.Fatalf("user %s has no permission for %s", user, subject)
	}
	return strings.Replace(config, before, after, 1)
}

// guarded is a node, a plain service, and a flow that asks it, each with the permissions of its user only.
type guarded struct {
	*bundle
	server *testenv.GuardedNATS
	log    *zap.Logger
	logged *observer.ObservedLogs
	shared bool // all are in one account

	mu         sync.Mutex
	violations []error // of all the connections
}

func setupGuarded(t *testing.T, config string) *guarded {
	t.Helper()
	core, logged := observer.New(zapcore.InfoLevel)
	g := &guarded{server: testenv.NATSByConfig(t, config), log: zap.New(core), logged: logged,
		shared: strings.Contains(config, "_INBOX_")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(g.violated())
			for _, entry := range logged.All() {
				t.Log(entry.Time.Format("05.000"), entry.LoggerName, entry.Message, entry.ContextMap())
			}
		}
	})
	pool := testenv.Pool(t)
	g.bundle = &bundle{&nodetest.Bundle{Pool: pool, Store: database.New(pool)}}
	node := testenv.Must(orchestrator.New(g.Store, g.conn(t, "node"), orchestrator.Config{Log: g.log.Named("node"),
		Grace: 5 * time.Second, ReconcileInterval: 200 * time.Millisecond}))(t)
	g.Node = node
	nodetest.Run(t, "node", node.Run)
	g.serveGuarded(t, "accounts", func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "accounts", nodetest.Echo)
	})
	g.serveGuarded(t, "statement", handleStatement)
	return g
}

// handleStatement is a flow: it asks accounts about each item and answers with what it hears.
func handleStatement(svc *endpoints.Service) error {
	accounts := endpoints.To[nodetest.Account, nodetest.Statement]("accounts")
	type stage = endpoints.Stage[nodetest.Account, nodetest.Statement, endpoints.None, endpoints.None]
	return endpoints.HandleFlow(svc, "statement", []func(context.Context, *stage) error{
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				accounts.Ask(item, item.In)
			}
			return nil
		},
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				item.Reply(accounts.Answer(item))
			}
			return nil
		},
	})
}

// conn connects a user as docs/security.md says.
func (g *guarded) conn(t *testing.T, user string) *nats.Conn {
	t.Helper()
	inbox := ""
	if g.shared {
		inbox = "_INBOX_" + user
	}
	nc := g.server.Conn(t, user, "secret", inbox)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if errors.Is(err, nats.ErrPermissionViolation) {
			g.violations = append(g.violations, fmt.Errorf("user %s: %w", user, err))
		}
	})
	return nc
}

func (g *guarded) serveGuarded(t *testing.T, name string, handle func(*endpoints.Service) error) {
	t.Helper()
	svc, err := endpoints.New(g.conn(t, name), endpoints.Config{Name: name, Version: "1.0.0", Log: g.log.Named(name)})
	testenv.NoError(t, err)
	testenv.NoError(t, handle(svc))
	nodetest.Run(t, name, svc.Run)
}

func (g *guarded) violated() []error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []error
	for _, v := range g.violations {
		// A service tries to make its consumer until a node has made it.
		if !strings.Contains(v.Error(), "CONSUMER.CREATE") {
			found = append(found, v)
		}
	}
	return found
}

// PROOF: who may do what, 13.
func TestDocumentedPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	g := setupGuarded(t, documented(t))
	nodetest.WantReady(t, g.Node)
	for _, endpoint := range []string{"statement", "accounts"} {
		g.Want(t, g.Start(t, nodetest.Request(endpoint), 1200), 1, 1200, 0)
	}
	web := g.conn(t, "web")
	for how, opts := range map[string][]endpoints.CallOption{
		"stored": {endpoints.CallerName("web")}, "direct": {endpoints.CallerName("web"), endpoints.Direct()},
	} {
		got := testenv.Must(endpoints.Call[nodetest.Account, nodetest.Statement](t.Context(), web, "accounts", "C1",
			nodetest.Account{ID: "C1"}, opts...))(t)
		testenv.Same(t, got.Of, "C1", "%s call", how)
	}
	g.wantListeners(t, 2)
	for _, v := range g.violated() {
		t.Error(v)
	}
	g.Check(t)
}

// wantListeners waits until operators see that so many listen.
func (g *guarded) wantListeners(t *testing.T, want int) {
	t.Helper()
	nc := g.conn(t, "ops")
	nodetest.Until(t, "operators see who listens", func() bool {
		found, err := wire.Discover(t.Context(), nc, time.Second)
		if err != nil || len(found) > want {
			t.Fatalf("operators see %v, %v; want %d listeners", found, err, want)
		}
		return len(found) == want
	})
}

// Each permission that is taken from a user is named, with where to read on; and once it is granted the
// work is done.
func TestEachMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	config := documented(t)
	for _, test := range []struct{ user, subject string }{
		{"node", "$JS.API.STREAM.INFO.TRANCHE_WORK"},
		{"node", "$JS.ACK.TRANCHE_REPLY.recorder.>"},
		{"node", "tranche.wake"},
		{"node", "_INBOX.>"},
		{"accounts", "tranche.stage.statement.*.*.accounts"},
		{"statement", "tranche.work.accounts"},
		{"statement", "$JS.API.DIRECT.GET.TRANCHE_FLOW.tranche.flow.statement.>"},
		{"statement", "$JS.API.CONSUMER.MSG.NEXT.TRANCHE_STAGE.statement"},
	} {
		t.Run(test.user+" "+test.subject, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			g := setupGuarded(t, without(t, config, test.user, test.subject))
			run := g.load(t, "statement", 20)
			told := g.told(t, test.user, test.subject)
			t.Logf("told after %s: %s", time.Since(begun).Round(time.Millisecond), told)
			g.server.Reload(t, config)
			nodetest.WantReady(t, g.Node)
			if done, _ := g.Outcome(t, run, 1); done != 20 {
				t.Errorf("%d of 20 items are done", done)
			}
		})
	}
}

// load starts a run without a node's help.
func (g *guarded) load(t *testing.T, endpoint string, n int) workqueue.RunID {
	t.Helper()
	session, err := session.New(g.Store).StartSession(t.Context(), session.NodeInfo{Host: "loader"}, time.Minute)
	testenv.NoError(t, err)
	req := nodetest.Request(endpoint)
	req.Session = session
	loaded := testenv.Must(start.New(g.Store).Load(t.Context(), req, nodetest.Items(n)))(t)
	g.Node.Wake()
	return loaded.Run
}

// told waits for a line of the user's log that names the permission and the page, and returns it.
func (g *guarded) told(t *testing.T, user, subject string) (said string) {
	t.Helper()
	pattern := regexp.QuoteMeta(strings.TrimSuffix(subject, ">"))
	matches := regexp.MustCompile(strings.ReplaceAll(pattern, `\*`, `[^. ]+`))
	nodetest.Until(t, "the log names "+subject, func() bool {
		for _, entry := range g.logged.All() {
			said = fmt.Sprint(entry.ContextMap()["error"])
			if entry.LoggerName == user && strings.Contains(entry.Message, "denies") && matches.MatchString(said) &&
				strings.Contains(said, "docs/security.md") {
				return true
			}
		}
		return false
	})
	return said
}

// A letter is written, taken in, sent again and written again, and a suspect leaves its marks.
func TestDocumentedPermissionsAreEnoughForBadRequests(t *testing.T) {
	t.Parallel()
	g := setupGuarded(t, documented(t))
	nodetest.WantReady(t, g.Node)
	web := g.conn(t, "web")
	_, err := endpoints.Call[string, nodetest.Statement](t.Context(), web, "accounts", "C1", "no account",
		endpoints.CallerName("web"))
	testenv.Same(t, testenv.As[*wire.SlotError](t, err, "the call").Code, "bad_payload", "the call ended with")
	g.Buried(t, 1)
	out := testenv.Must(g.Node.DeadLetters().Requeue(t.Context(), deadletter.DeadSelection{All: true}, "ann"))(t)
	testenv.MustSame(t, out.Requeued, 1, "requeued: %+v", out)
	g.Buried(t, 2)

	to := wire.Return{Asker: "web", Call: "token", Callee: "accounts"}
	answers, err := web.SubscribeSync("tranche.call.web.token.>")
	if err == nil {
		err = web.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
	suspect := wire.NewRequestBuilder("accounts", wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1,
		Generation: 1, Mode: wire.ModeBatch, ReplyTo: to, Deliveries: 3}, 1<<20)
	suspect.Add(0, "C2", []byte(`{"id":"C2"}`))
	testenv.Must(nodetest.JetStream(t, web).PublishMsg(t.Context(), suspect.Msg()))(t)
	_, err = answers.NextMsg(nodetest.Stuck)
	testenv.Same(t, err, nil, "the suspect was not answered")
	for _, v := range g.violated() {
		t.Error(v)
	}
}

// PROOF: who may do what, 17. Whatever becomes of items, also of those that break their service or cannot be read,
// neither the node nor the SDK logs what is in them, not even for those who look for faults.
func TestPayloadsAreNotLogged(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-4711"
	core, seen := observer.New(zap.DebugLevel)
	b := &bundle{nodetest.ServersOnly(t)}
	node := testenv.Must(orchestrator.New(b.Store, testenv.Conn(t, b.NS),
		orchestrator.Config{Log: zap.New(core), Grace: time.Second}))(t)
	b.Node = node
	nodetest.Run(t, "node", node.Run)
	nodetest.WantReady(t, node)
	svc, err := endpoints.New(testenv.Conn(t, b.NS), endpoints.Config{Name: "test", Version: "1.0.0", Log: zap.New(core)})
	testenv.NoError(t, err)
	testenv.NoError(t, endpoints.HandleList(svc, "statement", func(_ context.Context, c *nodetest.Chunk) error {
		for i, item := range c.Items() {
			switch {
			case strings.HasSuffix(item.In.ID, "panic"):
				panic("a mistake")
			case i%2 == 0:
				item.Fail("no", "it is refused")
			default:
				item.Reply(nodetest.Statement{Of: item.In.ID})
			}
		}
		return nil
	}))
	nodetest.Run(t, "service", svc.Run)
	payloads := []string{`{"id":"` + canary + `"}`, `{"id":"` + canary + `2"}`, `{"id":["` + canary + `"]}`,
		`{"id":"` + canary + `panic"}`}
	req, i := nodetest.Request("statement"), 0
	req.Steps[0].MaxAttempts = 2
	loaded := testenv.Must(node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
		if i == len(payloads) {
			return io.EOF
		}
		item.Key, item.Payload = strconv.Itoa(i), []byte(payloads[i])
		i++
		return nil
	}))(t)
	if done, failed := b.Outcome(t, loaded.Run, 1); done+failed != int64(len(payloads)) || failed == 0 {
		t.Errorf("%d done, %d failed", done, failed)
	}
	if seen.Len() == 0 {
		t.Error("nothing was logged: the test shows nothing")
	}
	for _, entry := range seen.All() {
		fields, err := json.Marshal(entry.ContextMap())
		if text := entry.Message + string(fields); err != nil || strings.Contains(text, canary) {
			t.Errorf("a payload is in the log: %s, %v", text, err)
		}
	}
}
