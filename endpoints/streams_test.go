package endpoints

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestEnsureStreamsIsIdempotentAndUpdates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := testenv.Must(stream.Ensure(b.ctx, b.js, stream.Config{}))(t)
	second := testenv.Must(stream.Ensure(b.ctx, b.js, stream.Config{WorkMaxBytes: 5 << 20}))(t)
	if first != second || first.WorkCreated.IsZero() || first.ReplyCreated.IsZero() {
		t.Errorf("%+v, then %+v", first, second)
	}
	work := testenv.Must(b.js.Stream(b.ctx, wire.StreamWork))(t)
	got := work.CachedInfo().Config
	if got.MaxBytes != 5<<20 || got.Discard != jetstream.DiscardNew || !got.AllowMsgTTL {
		t.Errorf("config %+v", got)
	}
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	third := testenv.Must(stream.Ensure(b.ctx, b.js, stream.Config{}))(t)
	if !third.WorkCreated.After(first.WorkCreated) || third.ReplyCreated != first.ReplyCreated {
		t.Errorf("a recreated stream does not show: %+v, then %+v", first, third)
	}
}

func TestEnsureStreamsRefusesAnotherKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamReply))
	testenv.Must(b.js.CreateStream(b.ctx, jetstream.StreamConfig{Name: wire.StreamReply,
		Subjects: []string{"tranche.reply.*"}}))(t)
	_, err := stream.Ensure(b.ctx, b.js, stream.Config{})
	var conflict *stream.ConflictError
	if !errors.As(err, &conflict) || conflict.Stream != wire.StreamReply || conflict.Setting != "retention" {
		t.Errorf("error %v", err)
	}
}

func TestMisuseIsReported(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, config := range []Config{{}, {Name: "a b"}, {Name: "a", Version: "one"}, {Name: "a", DrainTimeout: -1},
		{Name: "a", Wrap: []Wrapper{nil}}} {
		_, err := New(b.nc, config)
		testenv.Fails(t, err, "New took %+v", config)
	}
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	for name, err := range map[string]error{
		"name":        HandleEach(svc, "a.b", squares),
		"twice":       HandleEach(svc, "square", squares),
		"concurrency": HandleEach(svc, "c", squares, Concurrency(0)),
		"timeout":     HandleEach(svc, "c", squares, Timeout(0)),
		"flush":       HandleEach(svc, "c", squares, FlushBytes(0)),
		"wrapper":     HandleEach(svc, "c", squares, Wrap(nil)),
		"no handler":  b.service().Run(b.ctx),
	} {
		testenv.Fails(t, err, "%s: no error", name)
	}
	check(t, b.Run(svc)())
	if svc.Run(b.ctx) == nil {
		t.Error("a service ran twice")
	}
}

func TestRunEndsWhenTheConnectionIsClosed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	done := make(chan error, 1)
	go func() { done <- svc.Run(b.ctx) }()
	b.logs("listening", 1)
	svc.host.NC.Close()
	testenv.Fails(t, await(t, "end of Run", done), "no error")
}

func TestHandlerThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service(func(c *Config) { c.DrainTimeout = 10 * time.Millisecond })
	svc.grace = 10 * time.Millisecond
	begun, finish := make(chan struct{}), make(chan struct{})
	check(t, HandleEach(svc, "stuck", func(context.Context, number) (int, error) {
		close(begun)
		<-finish
		return 0, nil
	}))
	stop := b.Run(svc)
	b.ask("stuck", numbers(1))
	await(t, "handler", begun)
	err := stop()
	close(finish)
	testenv.Same(t, testenv.As[*DrainError](t, err, "the stop").Left["stuck"], 1, "requests that are left")
	eventually(t, "the handler is gone", func() bool { return len(svc.endpoints[0].Work.Room.Deliveries()) == 0 })
}

// TestConsumerOfAServiceIsKept has a service make its consumer with what JetStream cannot change later.
func TestConsumerOfAServiceIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testenv.Must(b.js.CreateConsumer(b.ctx, wire.StreamWork, jetstream.ConsumerConfig{
		Durable: "square", FilterSubject: wire.WorkSubject("square"), AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 7,
	}))(t)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{Concurrency: 3}))
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, "square"))(t)
	info := consumer.CachedInfo()
	if c := info.Config; c.MaxWaiting != 7 || c.AckWait != stream.AckWait || c.MaxDeliver != wire.MaxDeliver {
		t.Errorf("config %+v", c)
	}
	testenv.Same(t, stream.SettingsOf(info).Concurrency, 3, "settings")
}

func TestConsumerThatLosesWhatItDeliversIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// A work queue takes no other consumer than an explicit one; the stream of states would.
	testenv.Must(b.js.CreateConsumer(b.ctx, wire.StreamEvent, jetstream.ConsumerConfig{
		Durable: "square", AckPolicy: jetstream.AckNonePolicy,
	}))(t)
	if _, err := stream.EnsureDurable(b.ctx, b.js, wire.StreamEvent,
		stream.ConsumerConfig("square", wire.EventSubject(">"))); err == nil {
		t.Error("a consumer that acknowledges nothing is taken")
	}
}

// A service whose stream is missing, and then its server, logs why it waits, and works once both are there.
func TestEachReasonForAWaitIsLogged(t *testing.T) {
	t.Parallel()
	b := setup(t, own)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	serveEach(b, "square", squares)
	b.logs("waiting for a Tranche node to create stream "+wire.StreamWork, 1)
	b.stop()
	b.logs("waiting for a NATS server", 1)
	b.logs("start `tranche serve`, or set NATS_URL", 1)
	b.start()
	eventually(t, "the node is connected", b.nc.IsConnected)
	b.streams()
	testenv.Same(t, b.reply("square", numbers(2)).answered, 2, "answered")
}

// A service that is refused says how it gets in, in its log and in what its readiness probe is told.
func TestARefusedServiceSaysHowToGetIn(t *testing.T) {
	t.Parallel()
	b := setup(t, own)
	b.stop()
	b.opts.Username, b.opts.Password = "u", "p"
	b.start()
	nc := testenv.Must(nats.Connect(b.url, append(Options(), nats.UserInfo("u", "wrong"))...))(t)
	t.Cleanup(nc.Close)
	svc := testenv.Must(New(nc, Config{Name: "tester", Version: "1.2.3", Log: b.log}))(t)
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	remedy := "refuses this user (nats: Authorization Violation): for the private server of `tranche serve`, " +
		"set NATS_URL=$(cat DIR/nats-url)"
	b.logs(remedy, 1)
	eventually(t, "the probe is told how", func() bool {
		err := svc.Ready()
		return err != nil && strings.Contains(err.Error(), remedy)
	})
}

func TestConnectByContext(t *testing.T) {
	b := setup(t)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("NATS_URL", "")
	t.Setenv("NATS_CONTEXT", "bank")
	_, err := Connect()
	testenv.Fails(t, err, "a missing context was taken")
	dir := filepath.Join(home, "nats", "context")
	check(t, os.MkdirAll(dir, 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "bank.json"), []byte(`{"url":"`+b.url+`"}`), 0o600))
	nc := testenv.Must(Connect())(t)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
}

func TestLogToTellsOfDeniedPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t, own)
	b.stop()
	b.opts.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"secret"}}}}}
	b.start()
	core, logged := observer.New(zap.DebugLevel)
	nc, err := nats.Connect(b.server.ClientURL(), nats.UserInfo("u", "p"), LogTo(zap.New(core)), nats.Timeout(patience))
	check(t, err)
	defer nc.Close()
	check(t, nc.Publish("secret", nil))
	eventually(t, "the denial is logged", func() bool { return logged.FilterMessageSnippet("denies").Len() == 1 })
}

// A server that starts may refuse users for a while: the service that says who they are is not up yet.
// The environment says who they are.
func TestConnectGoesOnWhenItIsRefused(t *testing.T) { // t.Setenv forbids t.Parallel
	b := setup(t, own)
	b.stop()
	b.opts.Username, b.opts.Password = "u", "p"
	b.start()
	t.Setenv("NATS_URL", "nats://"+b.server.Addr().String())
	t.Setenv("NATS_USER", "u")
	t.Setenv("NATS_PASSWORD", "p")
	var refused atomic.Int64
	core, logged := observer.New(zap.DebugLevel)
	nc := testenv.Must(Connect(LogTo(zap.New(core)), func(o *nats.Options) error {
		tell := o.AsyncErrorCB
		o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) {
				refused.Add(1)
			}
			tell(nc, sub, err)
		}
		return nil
	}))(t)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
	b.stop()
	b.opts.Password = "another"
	b.start()
	eventually(t, "it has been refused repeatedly, or has given up", func() bool {
		return refused.Load() >= 3 || nc.IsClosed()
	})
	if nc.IsClosed() {
		t.Fatalf("the connection is closed permanently: %v", nc.LastError())
	}
	b.stop()
	b.opts.Password = "p"
	b.start()
	eventually(t, "it is connected again", nc.IsConnected)
	testenv.Same(t, logged.FilterMessageSnippet("refuses this user").Len(), 1, "refusals were logged")
	t.Setenv("NATS_NKEY", filepath.Join(t.TempDir(), "no.seed"))
	_, err := Connect()
	testenv.Says(t, err, "no.seed", "a missing file")
}

// Servers that refuse log each try; those that do not exist are to be found again immediately.
func TestServersThatRefuseAreTriedMoreSeldom(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.DebugLevel)
	var o nats.Options
	check(t, LogTo(zap.New(core))(&o))
	nc := &nats.Conn{}
	for tries, millis := range []int{250, 250, 500, 1000, 2000, 4000, 4000} {
		if tries > 0 {
			o.ReconnectErrCB(nc, nats.ErrAuthorization)
		}
		shortest := time.Duration(millis) * time.Millisecond
		if wait := o.CustomReconnectDelayCB(tries); wait < shortest || wait > shortest+reconnectWait/2 {
			t.Errorf("after %d refusals the next try waits %v, want %v or a little more", tries, wait, shortest)
		}
	}
	o.ReconnectErrCB(nc, nats.ErrNoServers)
	if wait := o.CustomReconnectDelayCB(9); wait > 2*reconnectWait {
		t.Errorf("the next try at a server that does not exist waits %v", wait)
	}
	if n := logged.FilterMessageSnippet("NATS_URL=$(cat DIR/nats-url)").Len(); n != 2 || logged.Len() != 2 {
		t.Errorf("%d lines of which %d say what to do; want one for each of the two troubles", logged.Len(), n)
	}
}

// The server that serve runs is found in its data directory, with the password for it, which no other server is told.
func TestConnectToTheLocalServer(t *testing.T) {
	b := setup(t, own)
	b.stop()
	b.opts.Username, b.opts.Password = "tranche", "secret"
	b.start()
	at, dir := b.server.Addr().String(), t.TempDir()
	t.Setenv("TRANCHE_DATA_DIR", dir)
	t.Setenv("NATS_URL", "nats://"+at)
	early := testenv.Must(Connect(nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))(t)
	defer early.Close()
	if early.IsConnected() {
		t.Error("let in without a password")
	}
	check(t, os.WriteFile(filepath.Join(dir, "nats-url"), []byte("nats://tranche:secret@"+at+"\n"), 0o600))
	eventually(t, "it is let in once there is a file", early.IsConnected)
	for _, url := range []string{"", "nats://" + at, at} {
		t.Setenv("NATS_URL", url)
		nc := testenv.Must(Connect())(t)
		eventually(t, "it is connected", nc.IsConnected)
		nc.Close()
	}
	for _, url := range []string{"127.0.0.1:1", "nats://10.0.0.1:4222", "nats://u:p@" + at, at + "," + at} {
		o := nats.Options{Url: url}
		check(t, localLogin(&o))
		if o.UserInfo == nil {
			continue
		}
		if user, password := o.UserInfo(); user != "" || password != "" {
			t.Errorf("%s is told the password", url)
		}
	}
}
