package endpointstest

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/stream"
)

// DefaultPatience is how long a call waits for what must happen, unless Patience says otherwise.
const DefaultPatience = 20 * time.Second

// Option changes a kit.
type Option func(*settings)

type settings struct {
	patience   time.Duration
	maxPayload int32
}

// Patience is how long a call waits for what must happen. Default 20 s. It does not hurry the kit itself: starting the
// server or sending a request may take DefaultPatience even when less is set.
func Patience(d time.Duration) Option { return func(s *settings) { s.patience = d } }

// MaxPayload is the server's max_payload in bytes, at most 8 MiB. Default 1 MiB. A small one has replies come in
// several messages.
func MaxPayload(bytes int) Option { return func(s *settings) { s.maxPayload = int32(bytes) } }

// Kit is a NATS server with Tranche's streams, and the node's side of the protocol.
type Kit struct {
	t        testing.TB
	ctx      context.Context //nolint:containedctx // of the test, as testing.T has it; every wait ends with it
	patience time.Duration
	server   *server.Server
	nc       *nats.Conn
	js       jetstream.JetStream
	inbox    *inbox
	log      *zap.Logger
	logged   *observer.ObservedLogs

	deliveries atomic.Int64

	mu        sync.Mutex
	instances []*Instance
	kills     []*Kill
}

// New starts a server for one test. It is stopped when the test ends.
func New(t testing.TB, opts ...Option) *Kit {
	t.Helper()
	s := settings{patience: DefaultPatience, maxPayload: 1 << 20}
	for _, set := range opts {
		set(&s)
	}
	core, logged := observer.New(zap.InfoLevel)
	k := &Kit{t: t, ctx: t.Context(), patience: s.patience, log: zap.New(core), logged: logged}
	k.start(s)
	k.nc = k.Conn()
	var err error
	if k.js, err = jetstream.New(k.nc); err != nil {
		t.Fatalf("endpointstest: %v", err)
	}
	k.streams()
	k.inbox = newInbox(k)
	return k
}

func (k *Kit) start(s settings) {
	k.t.Helper()
	ns, err := server.NewServer(&server.Options{ServerName: "endpointstest", DontListen: true, JetStream: true,
		StoreDir: k.t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: s.maxPayload})
	if err != nil {
		k.t.Fatalf("endpointstest: start NATS: %v", err)
	}
	ns.Start()
	k.t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(k.ownPatience()) || !ns.JetStreamEnabled() {
		k.t.Fatal("endpointstest: the NATS server did not start, or without JetStream")
	}
	k.server = ns
}

func (k *Kit) streams() {
	k.t.Helper()
	ctx, cancel := k.own()
	defer cancel()
	if _, err := stream.Ensure(ctx, k.js, stream.Config{Memory: true}); err != nil {
		k.t.Fatalf("endpointstest: %v", err)
	}
}

// Conn returns a connection to the server, for callers such as endpoints.Call. It is closed when the test ends.
func (k *Kit) Conn() *nats.Conn {
	k.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(k.server), nats.Name(k.t.Name()), nats.Timeout(k.ownPatience()))
	if err != nil {
		k.t.Fatalf("endpointstest: connect to NATS: %v", err)
	}
	k.t.Cleanup(nc.Close)
	return nc
}

// ownPatience is how long something may take that the kit does itself.
func (k *Kit) ownPatience() time.Duration { return max(k.patience, DefaultPatience) }

// own returns a context for one thing that the kit does itself.
func (k *Kit) own() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.ctx, k.ownPatience())
}

// Log returns what the services have logged so far, from level info on, a line an entry.
func (k *Kit) Log() []string {
	var lines []string
	for _, entry := range k.logged.All() {
		parts := []string{entry.Level.String(), entry.Message}
		for _, field := range entry.Context {
			if err, ok := field.Interface.(error); ok {
				parts = append(parts, err.Error())
			}
		}
		lines = append(lines, strings.Join(parts, ": "))
	}
	return lines
}

// dialer connects an instance through a tap.
type dialer struct {
	instance *Instance
}

// Dial implements nats.CustomDialer.
func (d dialer) Dial(string, string) (net.Conn, error) {
	conn, err := d.instance.kit.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return d.instance.attach(conn)
}
