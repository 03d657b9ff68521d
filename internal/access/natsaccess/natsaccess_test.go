package natsaccess_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds what a test waits for.
const patience = 2 * time.Minute

func grants(t *testing.T, texts ...string) []natsaccess.Grant {
	t.Helper()
	var all []natsaccess.Grant
	for _, text := range texts {
		all = append(all, testenv.Must(natsaccess.ParseGrant(text))(t))
	}
	return all
}

func system(t *testing.T, services ...string) *natsaccess.System {
	t.Helper()
	s, err := natsaccess.New(natsaccess.Roles{Services: grants(t, services...), Callers: grants(t, "web=accounts"),
		Producers: grants(t, "web=c"), Trackers: []string{"web"}, Viewers: []string{"ops"}})
	testenv.NoError(t, err)
	return s
}

// form is a way to tell a server who may say what, and users who they are.
type form struct {
	config string
	user   func(name string) nats.Option
}

func forms(t *testing.T) map[string]form {
	t.Helper()
	return formsOf(t, system(t, "accounts=accounts,other", "statement=statement"))
}

func formsOf(t *testing.T, s *natsaccess.System) map[string]form {
	t.Helper()
	passwords := s.Conf(nil)
	for _, m := range regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(passwords, -1) {
		passwords = m[1] + ": secret\n" + passwords
	}
	written := func(files []string, err error) string {
		testenv.NoError(t, err)
		return read(t, files[0])
	}
	nkeys, creds := t.TempDir(), t.TempDir()
	return map[string]form{
		"passwords": {config: passwords, user: func(name string) nats.Option { return nats.UserInfo(name, "secret") }},
		"nkeys": {config: written(s.WriteNkeys(nkeys)), user: func(name string) nats.Option {
			return credentials(t, filepath.Join(nkeys, name+".nk"))
		}},
		"operator": {config: written(s.WriteOperator(creds)), user: func(name string) nats.Option {
			return credentials(t, filepath.Join(creds, name+".creds"))
		}},
	}
}

// prepare makes the streams, and the consumers of endpoints, as a node does.
func prepare(t *testing.T, node *nats.Conn, names ...string) jetstream.JetStream {
	t.Helper()
	js := testenv.Must(jetstream.New(node, jetstream.WithDefaultTimeout(patience)))(t)
	testenv.Must(stream.Ensure(t.Context(), js, stream.Config{Memory: true}))(t)
	for _, name := range names {
		testenv.NoError(t, stream.EnsureConsumer(t.Context(), js, name, stream.ConsumerSettings{}))
	}
	return js
}

// PROOF: who may do what, 13.
// In each form the same works, without any setting but who one is; and what is not granted does not.
func TestEachFormOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for name, form := range forms(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSByConfig(t, form.config)
			conn := func(user string) *nats.Conn { return testenv.Dial(t, server.URL(), form.user(user)) }
			node := conn("node")
			prepare(t, node, "accounts", "other")
			serve(t, conn("accounts"), "accounts", "other")
			web := conn("web")
			for _, options := range [][]endpoints.CallOption{nil, {endpoints.Direct()}} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				got, err := endpoints.Call[int, int](ctx, web, "accounts", "C1", 7, append(options, endpoints.CallerName("web"))...)
				if cancel(); err != nil || got != 7 {
					t.Errorf("call with %d options: %d, %v", len(options), got, err)
				}
			}
			refuses(t, web, "tranche.work.other")
			refuses(t, web, "tranche.reply.accounts")
			refuses(t, web, wire.PartSubject("accounts"))
			refuses(t, conn("statement"), wire.PartSubject("accounts"))
			asked(t, node, conn("accounts"), wire.PartSubject("accounts"))
			for _, user := range []string{"node", "ops"} {
				seesListeners(t, conn(user), user, 2)
			}
			asked(t, node, web, "tranche.tracker.open")
			asked(t, node, web, "tranche.collect.c")
			hears(t, node, web, "tranche.event.tracker.>", "tranche.event.tracker.done")
			hears(t, node, conn("ops"), "tranche.event.>", "tranche.event.run.completed")
		})
	}
}

// PROOF: who may do what, 13.
// In each form a role has so many connections and subscriptions and no more, and whoever has all of its own keeps
// no one else from connecting.
func TestNoRoleUsesUpTheServer(t *testing.T) {
	t.Parallel()
	s := system(t, "accounts=accounts,other", "statement=statement")
	if a := s.Accounts[1]; a.MaxConnections != natsaccess.DefaultMaxConnections || s.Accounts[0].MaxConnections != 0 {
		t.Errorf("a service has %d connections, the nodes %d", a.MaxConnections, s.Accounts[0].MaxConnections)
	}
	const most = 3
	for _, a := range s.Accounts[1:] {
		a.MaxConnections, a.MaxSubscriptions = most, most
	}
	for name, form := range formsOf(t, s) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSByConfig(t, form.config)
			conn := func(user string) *nats.Conn { return testenv.Dial(t, server.URL(), form.user(user)) }
			var last *nats.Conn
			for range most {
				last = conn("accounts")
			}
			if nc, err := nats.Connect(server.URL(), form.user("accounts"), nats.Timeout(patience)); err == nil {
				nc.Close()
				t.Error("a role has more connections than it may have")
			} else if !strings.Contains(err.Error(), "maximum account") {
				t.Error(err)
			}
			for range 2 * most {
				conn("node")
			}
			conn("statement")
			refused := make(chan error, 9)
			last.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
			for range most + 1 {
				testenv.Must(last.SubscribeSync(nats.NewInbox()))(t)
			}
			select {
			case err := <-refused:
				testenv.Says(t, err, "maximum subscriptions", "a subscription too many")
			case <-time.After(patience):
				t.Error("a connection has more subscriptions than it may have")
			}
		})
	}
}

// serve runs a service whose endpoints answer with what they are given.
func serve(t *testing.T, nc *nats.Conn, names ...string) {
	t.Helper()
	service := begin(t, nc, nil, names...)
	testenv.Until(t, patience, "the service listens", func() bool { return listens(service) })
}

func listens(service *endpoints.Service) bool { return service.Stats()[0].State == wire.StateListening }

func begin(t *testing.T, nc *nats.Conn, log *zap.Logger, names ...string) *endpoints.Service {
	t.Helper()
	service := testenv.Must(endpoints.New(nc, endpoints.Config{Name: names[0], DrainTimeout: patience, Log: log}))(t)
	for _, name := range names {
		err := endpoints.HandleEach(service, name, func(_ context.Context, in int) (int, error) { return in, nil })
		testenv.NoError(t, err)
	}
	testenv.Keep(t, t.Errorf, names[0], service.Run)
	return service
}

// A service whose consumer is a node's to make says so, and warns of nothing.
func TestAServiceStartsWithoutWarnings(t *testing.T) {
	t.Parallel()
	form := forms(t)["nkeys"]
	server := testenv.NATSByConfig(t, form.config)
	js := prepare(t, testenv.Dial(t, server.URL(), form.user("node")))
	core, logs := observer.New(zapcore.InfoLevel)
	service := begin(t, testenv.Dial(t, server.URL(), form.user("accounts")), zap.New(core), "accounts")
	testenv.Until(t, patience, "it says that a node makes its consumer", func() bool {
		return logs.FilterMessageSnippet("a node makes this service's consumer").Len() > 0
	})
	testenv.NoError(t, stream.EnsureConsumer(t.Context(), js, "accounts", stream.ConsumerSettings{}))
	testenv.Until(t, patience, "the service listens", func() bool { return listens(service) })
	for _, line := range logs.All() {
		if line.Level > zapcore.InfoLevel {
			t.Errorf("it warns: %s %v", line.Message, line.ContextMap())
		}
	}
}

// seesListeners asks who listens until so many have answered, which a busy service does late.
func seesListeners(t *testing.T, nc *nats.Conn, user string, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		found, err := wire.Discover(t.Context(), nc, 100*time.Millisecond)
		if err == nil && len(found) == want {
			return
		}
		if err != nil || len(found) > want || time.Now().After(deadline) {
			t.Errorf("%s sees %d listeners, %v", user, len(found), err)
			return
		}
	}
}

// refuses checks that a user's publish is rejected immediately.
func refuses(t *testing.T, nc *nats.Conn, subject string) {
	t.Helper()
	refused := make(chan error, 1)
	before := nc.ErrorHandler()
	defer nc.SetErrorHandler(before)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case refused <- err:
		default:
		}
	})
	testenv.NoError(t, nc.Publish(subject, nil))
	select {
	case err := <-refused:
		testenv.Says(t, err, subject, "the error")
	case <-time.After(patience):
		t.Errorf("NATS takes %s", subject)
	}
}

// asked checks that a request reaches the nodes, and the answer whoever asks.
func asked(t *testing.T, node, nc *nats.Conn, subject string) {
	t.Helper()
	sub, err := node.Subscribe(subject, func(msg *nats.Msg) {
		if !strings.HasPrefix(msg.Reply, "_R_.") {
			t.Errorf("%s is to be answered at %s", subject, msg.Reply)
		}
		testenv.Same(t, msg.Respond([]byte("done")), nil, "the answer")
	})
	if err == nil {
		err = node.Flush()
	}
	testenv.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	testenv.Same(t, string(testenv.Must(nc.Request(subject, nil, patience))(t).Data), "done", "%s", subject)
}

// hears checks that what nodes publish comes to a user.
func hears(t *testing.T, node, nc *nats.Conn, pattern, subject string) {
	t.Helper()
	sub, err := nc.SubscribeSync(pattern)
	if err == nil {
		err = nc.Flush()
	}
	if err == nil {
		err = node.Publish(subject, nil)
	}
	if err == nil {
		_, err = sub.NextMsg(patience)
	}
	testenv.Same(t, err, nil, "%s", subject)
}

// Files are their owner's alone, and who has a key keeps it when a service is added.
func TestKeysStay(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(*natsaccess.System, string) ([]string, error){
		"nkeys": (*natsaccess.System).WriteNkeys, "operator": (*natsaccess.System).WriteOperator,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first := testenv.Must(write(system(t, "accounts=accounts"), dir))(t)
			before := identity(t, first[1])
			server := testenv.NATSByConfig(t, read(t, first[0]))
			second := testenv.Must(write(system(t, "accounts=accounts", "more=more"), dir))(t)
			testenv.Same(t, len(second), len(first)+1, "first %v, then", first)
			testenv.Same(t, identity(t, second[1]), before, "the key of the first user is another one")
			server.Reload(t, read(t, second[0]))
			for _, file := range second[1:] {
				testenv.Dial(t, server.URL(), credentials(t, file))
			}
			err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
				if err == nil && !info.IsDir() && info.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %s", path, info.Mode())
				}
				return err
			})
			testenv.NoError(t, err)
		})
	}
}

// A key is replaced without a moment when no one may connect: the old one is good as long as its file stays.
func TestAKeyIsReplaced(t *testing.T) {
	t.Parallel()
	s, dir := system(t, "accounts=accounts"), t.TempDir()
	files := testenv.Must(s.WriteNkeys(dir))(t)
	server := testenv.NATSByConfig(t, read(t, files[0]))
	key, old := filepath.Join(dir, "accounts.nk"), filepath.Join(dir, "accounts.old.nk")
	testenv.NoError(t, os.Rename(key, old))
	first := credentials(t, old)
	for _, replaced := range []bool{false, true} {
		if replaced {
			testenv.NoError(t, os.Remove(old))
		}
		testenv.Must(s.WriteNkeys(dir))(t)
		server.Reload(t, read(t, files[0]))
		testenv.Dial(t, server.URL(), credentials(t, key))
		nc, err := nats.Connect(server.URL(), first)
		if nc.Close(); (err != nil) != replaced {
			t.Errorf("without its file %t, the old key: %v", replaced, err)
		}
	}
}

// PROOF: who may do what, 13.
// Credentials of an operator are refused once they have ended. Revoked ones are refused once servers have reloaded, and
// their open connections end; others are issued.
func TestCredentialsEnd(t *testing.T) {
	t.Parallel()
	s, dir := system(t, "accounts=accounts", "statement=statement"), t.TempDir()
	files := testenv.Must(s.WriteOperator(dir))(t)
	server := testenv.NATSByConfig(t, read(t, files[0]))
	stolen, other := filepath.Join(t.TempDir(), "stolen.creds"), filepath.Join(dir, "statement.creds")
	testenv.NoError(t, os.WriteFile(stolen, []byte(read(t, filepath.Join(dir, "accounts.creds"))), 0o600))
	closed := make(chan error, 1)
	testenv.Dial(t, server.URL(), nats.UserCredentials(stolen), nats.NoReconnect(),
		nats.ClosedHandler(func(nc *nats.Conn) {
			closed <- nc.LastError()
		}))
	keys := filepath.Join(dir, "keys")
	testenv.NoError(t, os.Remove(filepath.Join(keys, "accounts.nk"))) // the credentials tell which it was
	testenv.NoError(t, natsaccess.Revoke(dir, "accounts"))
	s.Valid = time.Hour
	testenv.Must(s.WriteOperator(dir))(t)
	server.Reload(t, read(t, files[0]))
	testenv.Fails(t, <-closed, "a revoked connection ended without a reason")
	for file, good := range map[string]bool{stolen: false, other: true, filepath.Join(dir, "accounts.creds"): true} {
		nc, err := nats.Connect(server.URL(), nats.UserCredentials(file))
		if nc.Close(); (err == nil) != good {
			t.Errorf("%s: %v; want it good: %t", file, err, good)
		}
	}
	s.Valid = time.Nanosecond // until this second
	testenv.Must(s.WriteOperator(dir))(t)
	testenv.Until(t, patience, "credentials end", func() bool {
		nc, err := nats.Connect(server.URL(), nats.UserCredentials(other))
		nc.Close()
		return err != nil
	})
	testenv.Says(t, natsaccess.Revoke(dir, "nobody"), "no credentials of an operator", "an unknown role")
	testenv.NoError(t, os.Remove(filepath.Join(keys, "operator.nk")))
	_, err := s.WriteOperator(dir)
	testenv.Says(t, err, "restore operator.nk", "without the operator's key")
}

func read(t *testing.T, file string) string {
	t.Helper()
	return string(testenv.Must(os.ReadFile(file))(t))
}

// credentials are what a file of a user lets one connect with.
func credentials(t *testing.T, file string) nats.Option {
	t.Helper()
	if strings.HasSuffix(file, ".creds") {
		return nats.UserCredentials(file)
	}
	return testenv.Must(nats.NkeyOptionFromSeed(file))(t)
}

// identity is the seed in a file.
func identity(t *testing.T, file string) string {
	t.Helper()
	return regexp.MustCompile(`SU[A-Z0-9]{56}`).FindString(read(t, file))
}

func TestRolesThatCannotBe(t *testing.T) {
	t.Parallel()
	for why, roles := range map[string]natsaccess.Roles{
		"serves no endpoint":          {Services: grants(t, "a")},
		"is of two services":          {Services: grants(t, "a=e", "b=e")},
		"endpoint e twice":            {Services: grants(t, "a=e,e")},
		"begins with no letter":       {Viewers: []string{"123"}},
		"which no service has":        {Services: grants(t, "a=e"), Callers: grants(t, "web=x")},
		"adds to no collector":        {Producers: grants(t, "a")},
		"indistinguishable from node": {Viewers: []string{"node"}},
		"indistinguishable from a-b":  {Viewers: []string{"a-b", "a_b"}},
		"answered as caller": {Services: grants(t, "a=e", "b=f"),
			Callers: grants(t, "a=f", "e=f")},
		"endpoint name": {Trackers: []string{"no.name"}},
	} {
		_, err := natsaccess.New(roles)
		testenv.Says(t, err, why, "%s", why)
	}
	for _, text := range []string{"", "=", "a=", "a=b,", "a b", "a=b c"} {
		g, err := natsaccess.ParseGrant(text)
		testenv.Fails(t, err, "%q is read as %v", text, g)
	}
}

// What docs/protocol.md says of a pull by hand holds between accounts, too: what comes has the subject of requests, and
// what is said of the pull that of the inbox.
func TestPullsByHand(t *testing.T) {
	t.Parallel()
	form := forms(t)["nkeys"]
	server := testenv.NATSByConfig(t, form.config)
	js := prepare(t, testenv.Dial(t, server.URL(), form.user("node")), "accounts", "statement")
	testenv.Must(js.Publish(t.Context(), "tranche.work.accounts", []byte("work")))(t)
	testenv.Must(js.Publish(t.Context(), "tranche.work.statement", []byte("of another")))(t)
	nc := testenv.Dial(t, server.URL(), form.user("accounts"))
	stolen := testenv.Must(nc.SubscribeSync("stolen"))(t)
	// Read as an acknowledgement without a domain, this is one for statement, which asks for the next request.
	err := nc.PublishRequest("$JS.ACK.TRANCHE_WORK.statement.TRANCHE_WORK.accounts.1.1.1", "stolen", []byte("+NXT"))
	testenv.NoError(t, err)
	inbox := nc.NewInbox()
	sub := testenv.Must(nc.SubscribeSync(inbox))(t)
	next := func() *nats.Msg {
		return testenv.Must(sub.NextMsg(patience))(t)
	}
	body := []byte(`{"batch":2,"expires":1000000000,"max_bytes":2000000}`)
	testenv.NoError(t, nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.accounts", inbox, body))
	if work := next(); work.Subject != "tranche.work.accounts" || !strings.HasPrefix(work.Reply, "$JS.ACK.") {
		t.Errorf("work came to %s, to be acknowledged at %s", work.Subject, work.Reply)
	}
	if status := next(); status.Subject != inbox || status.Header.Get("Status") != "408" {
		t.Errorf("the end of the pull came to %s: %v", status.Subject, status.Header)
	}
	if msg, err := stolen.NextMsg(time.Millisecond); err == nil {
		t.Errorf("it got %q", msg.Data)
	}
}
