// Package endpointstest runs services in unit tests, on a NATS server inside the test process, and acts as the node.
// It needs no PostgreSQL.
//
//	kit := endpointstest.New(t)
//	kit.Serve(func(svc *endpoints.Service) error {
//	    return endpoints.HandleList(svc, "interest", yearEnd)
//	})
//	reply := kit.Send("interest",
//	    endpointstest.Item("ACC-1", account{Balance: 100}), endpointstest.Item("ACC-2", account{Balance: -5}))
//	got := endpointstest.Result[interest](t, reply, "ACC-1")
//	if err := reply.Err("ACC-2"); err == nil || err.Code != "overdrawn" { … }
//
// # Failures
//
// [Kit.Redeliver] delivers a request again; [Kit.Reissue] sends its items again, as a node does after a retryable
// error. [Instance.Kill] simulates a crash: nothing more reaches the server. [Kit.KillBetween] and
// [Kit.KillBeforeReply] do so at the two critical points: after a stage's messages but before their acknowledgement,
// and before them. The server redelivers a killed instance's messages immediately. [Kit.Stub] replaces an endpoint
// that a flow queries.
//
// # Guarantees
//
// Nothing sleeps: calls return as soon as their event has happened, or fail the test with an explanation after
// Timeout (DefaultTimeout for the kit's own actions). Requests and replies use JetStream and the real codecs.
// Instances stop at the end of the test, which fails if one returns an error or does not stop.
//
// The kit makes none of a node's decisions: the test chooses what to retry, when, and in which chunks.
//
// # Concurrency
//
// A Kit and its instances are safe for concurrent use, but calls that may fail the test (all that return no error)
// must run in the test's goroutine. Use [Kit.Post] for concurrent requests.
package endpointstest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
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

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
)

// DefaultTimeout is the default of Timeout.
const DefaultTimeout = 20 * time.Second

// Option configures a Kit.
type Option func(*settings)

type settings struct {
	patience   time.Duration
	maxPayload int32
}

// Timeout bounds the wait for an expected event; the default is 20 s. The kit's own actions, such as starting the
// server, may always take DefaultTimeout.
func Timeout(d time.Duration) Option { return func(s *settings) { s.patience = d } }

// MaxPayload sets the server's max_payload in bytes, at most 8 MiB; the default is 1 MiB. A small value splits
// replies into several messages.
func MaxPayload(bytes int) Option { return func(s *settings) { s.maxPayload = int32(bytes) } }

// Kit is a NATS server with Tranche's streams and the node's side of the protocol.
type Kit struct {
	t        testing.TB
	ctx      context.Context //nolint:containedctx // of the test, like testing.T's; ends all waits
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

// New starts a server that is stopped when the test ends.
func New(t testing.TB, opts ...Option) *Kit {
	t.Helper()
	s := settings{patience: DefaultTimeout, maxPayload: 1 << 20}
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
	ctx, cancel := k.own()
	defer cancel()
	if _, err := stream.Ensure(ctx, k.js, stream.Config{Memory: true}); err != nil {
		t.Fatalf("endpointstest: %v", err)
	}
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
	if !ns.ReadyForConnections(k.ownTimeout()) || !ns.JetStreamEnabled() {
		k.t.Fatal("endpointstest: the NATS server did not start, or without JetStream")
	}
	k.server = ns
}

// Conn returns a connection to the server, for callers such as endpoints.Call. It is closed when the test ends.
func (k *Kit) Conn() *nats.Conn {
	k.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(k.server), nats.Name(k.t.Name()), nats.Timeout(k.ownTimeout()))
	if err != nil {
		k.t.Fatalf("endpointstest: connect to NATS: %v", err)
	}
	k.t.Cleanup(nc.Close)
	return nc
}

func (k *Kit) ownTimeout() time.Duration { return max(k.patience, DefaultTimeout) }

func (k *Kit) own() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.ctx, k.ownTimeout())
}

// Log returns the services' log entries of level info and above, one line each.
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

type dialer struct {
	instance *Instance
}

// Dial implements nats.CustomDialer.
func (d dialer) Dial(string, string) (net.Conn, error) {
	conn, err := d.instance.kit.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	d.instance.mu.Lock()
	defer d.instance.mu.Unlock()
	if d.instance.killed {
		return nil, cmp.Or(conn.Close(), errKilled)
	}
	d.instance.conn = newTap(conn, d.instance)
	return d.instance.conn, nil
}

// handBackTimeout bounds the cleanup after a kill.
const handBackTimeout = 2 * time.Second

var errKilled = errors.New("the instance was killed")

// Instance is a running instance of a service.
type Instance struct {
	kit      *Kit
	config   endpoints.Config
	register func(*endpoints.Service) error

	nc    *nats.Conn
	end   context.CancelFunc
	ended chan struct{}
	err   error // of Run, once ended is closed

	mu     sync.Mutex
	conn   *tap
	killed bool
	held   map[string]delivery // unacknowledged deliveries, by acknowledgement subject
}

// Serve runs a service with the endpoints that register adds, until it is stopped or killed or the test ends. Call it
// again for another instance. configure may change the service's configuration.
func (k *Kit) Serve(register func(*endpoints.Service) error, configure ...func(*endpoints.Config)) *Instance {
	k.t.Helper()
	config := endpoints.Config{Name: "tested", Version: "1.0.0", Log: k.log, DrainTimeout: k.patience / 2}
	for _, f := range configure {
		f(&config)
	}
	i := &Instance{kit: k, config: config, register: register, ended: make(chan struct{}), held: map[string]delivery{}}
	nc, err := nats.Connect("nats://endpointstest", nats.SetCustomDialer(dialer{i}), nats.NoReconnect(),
		nats.Name(config.Name), nats.Timeout(k.ownTimeout()),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		k.t.Fatalf("endpointstest: connect the service to NATS: %v", err)
	}
	i.nc = nc
	svc, err := endpoints.New(nc, config)
	if err == nil {
		err = register(svc)
	}
	if err != nil {
		nc.Close()
		k.t.Fatalf("endpointstest: make the service: %v", err)
	}
	i.run(svc)
	return i
}

func (i *Instance) run(svc *endpoints.Service) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.kit.ctx))
	i.end = cancel
	i.kit.mu.Lock()
	i.kit.instances = append(i.kit.instances, i)
	i.kit.mu.Unlock()
	go func() {
		defer close(i.ended)
		i.err = svc.Run(ctx)
		i.nc.Close()
	}()
	i.kit.t.Cleanup(i.Stop)
}

// Stop drains the instance and waits for it to end. It fails the test if that takes too long or returns an error. It
// may be repeated, also after Kill.
func (i *Instance) Stop() {
	i.kit.t.Helper()
	i.end()
	timer := time.NewTimer(i.kit.patience)
	defer timer.Stop()
	select {
	case <-i.ended:
	case <-timer.C:
		i.kit.t.Errorf("endpointstest: service %s is still at work %s after it was stopped: does a handler not heed its "+
			"context?", i.config.Name, i.kit.patience)
		return
	}
	if i.err != nil && !i.isKilled() {
		i.kit.t.Errorf("endpointstest: service %s ended: %v", i.config.Name, i.err)
	}
}

// Kill simulates a crash: nothing that is unsent will be sent. A running handler continues, but its answers are
// dropped. The server redelivers the instance's messages immediately.
func (i *Instance) Kill() {
	i.kit.t.Helper()
	if conn := i.kill(); conn != nil {
		conn.writing.Lock()
		defer conn.writing.Unlock()
		i.bury(conn)
	}
}

// Restart runs the service again, as another instance.
func (i *Instance) Restart() *Instance {
	i.kit.t.Helper()
	return i.kit.Serve(i.register, func(c *endpoints.Config) { *c = i.config })
}

func (i *Instance) isKilled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.killed
}

// kill blocks the connection and returns it, once, to be closed.
func (i *Instance) kill() *tap {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed {
		return nil
	}
	i.killed = true
	return i.conn
}

// bury closes a killed instance's connection. It first stops deliveries and reads those already sent, which would
// otherwise wait for AckWait. conn.writing must be held.
func (i *Instance) bury(conn *tap) {
	conn.quiet(handBackTimeout)
	_ = conn.Conn.Close() // it is lost either way
	i.nak()
}

// nak makes the server redeliver a killed instance's messages without waiting for AckWait.
func (i *Instance) nak() {
	i.mu.Lock()
	held := i.held
	i.held = map[string]delivery{}
	i.mu.Unlock()
	for subject := range held {
		if err := i.kit.nc.Publish(subject, []byte("-NAK")); err != nil {
			return // the test ended
		}
	}
	_ = i.kit.nc.FlushTimeout(handBackTimeout)
}

func (i *Instance) delivered(subject, ack string) {
	point, ok := pointOf(subject)
	if !ok {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held[ack] = delivery{point, i.kit.deliveries.Add(1)}
}

// sends reports whether a message may pass to the server. If not, the instance is dead.
func (i *Instance) sends(subject string, body []byte) bool {
	if i.isKilled() {
		return false
	}
	kill := i.kit.killFor(i, subject, body)
	if kill == nil {
		return true
	}
	if conn := i.kill(); conn != nil {
		conn.dying = kill
	}
	return false
}

// acknowledges returns the delivery that a message acknowledges; false for a heartbeat or NAK.
func (i *Instance) acknowledges(subject string, body []byte) (delivery, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d, ok := i.held[subject]
	return d, ok && string(body) == "+ACK"
}

func (i *Instance) settled(subject string, body []byte) {
	if string(body) == "+WPI" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.held, subject)
}

// Point is a stage of an endpoint. Endpoints that are not flows have stage 0 only.
type Point struct {
	Endpoint string
	Stage    int
}

type delivery struct {
	point  Point
	number int64 // in the order seen by the kit
}

const (
	workSubjects  = "tranche.work."
	replySubjects = "tranche.reply."
	stageSubjects = "tranche.stage."
	callSubjects  = "tranche.call."
)

func pointOf(subject string) (Point, bool) {
	if endpoint, ok := strings.CutPrefix(subject, workSubjects); ok {
		return Point{Endpoint: endpoint}, true
	}
	rest, ok := strings.CutPrefix(subject, stageSubjects)
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) < 2 {
		return Point{}, false
	}
	stage, err := strconv.Atoi(tokens[1])
	return Point{Endpoint: tokens[0], Stage: stage}, err == nil
}

// Kill is a pending simulated crash. It happens once.
type Kill struct {
	kit    *Kit
	what   string
	hits   func(i *Instance, subject string, body []byte) bool
	killed chan *Instance
}

// KillBetween kills the first instance to finish a stage, after all its messages (requests, state, reply) are stored
// and before its input is acknowledged. The input is redelivered to another instance. Only deliveries from now on
// count. Stage 0 is what a request starts; endpoints that are not flows have no other.
func (k *Kit) KillBetween(endpoint string, stage int) *Kill {
	at, armed := Point{endpoint, stage}, k.deliveries.Load()
	return k.arm("acknowledges stage "+strconv.Itoa(stage)+" of endpoint "+endpoint,
		func(i *Instance, subject string, body []byte) bool {
			d, ok := i.acknowledges(subject, body)
			return ok && d.point == at && d.number > armed
		})
}

// KillBeforeReply kills the next instance about to send a message of the endpoint's reply. Handler effects remain.
func (k *Kit) KillBeforeReply(endpoint string) *Kill {
	return k.arm("replies as endpoint "+endpoint, func(_ *Instance, subject string, _ []byte) bool {
		if subject == replySubjects+endpoint {
			return true
		}
		back := strings.HasPrefix(subject, stageSubjects) || strings.HasPrefix(subject, callSubjects)
		return back && strings.HasSuffix(subject, "."+endpoint)
	})
}

func (k *Kit) arm(what string, hits func(*Instance, string, []byte) bool) *Kill {
	kill := &Kill{kit: k, what: what, hits: hits, killed: make(chan *Instance, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills = append(k.kills, kill)
	return kill
}

// killFor disarms and returns the crash that a message triggers, if any.
func (k *Kit) killFor(i *Instance, subject string, body []byte) *Kill {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n, kill := range k.kills {
		if kill.hits(i, subject, body) {
			k.kills = append(k.kills[:n:n], k.kills[n+1:]...)
			return kill
		}
	}
	return nil
}

// Wait returns the killed instance, or fails the test on timeout.
func (kill *Kill) Wait() *Instance {
	kill.kit.t.Helper()
	timer := time.NewTimer(kill.kit.patience)
	defer timer.Stop()
	select {
	case i := <-kill.killed:
		return i
	case <-timer.C:
		kill.kit.t.Fatalf("endpointstest: in %s there was no instance to kill: none that %s", kill.kit.patience, kill.what)
		return nil
	}
}
