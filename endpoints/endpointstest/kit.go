// Package endpointstest tests services in a unit test: it runs their endpoints on a NATS server in the test's own
// process, without PostgreSQL and without a node, and plays the node's part.
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
// # What can go wrong in a test
//
// [Kit.Redeliver] delivers a request again, [Kit.Reissue] asks for its items again as a node does after a retryable
// error. [Instance.Kill] ends an instance as a crash does: nothing more of it reaches the server. [Kit.KillBetween] and
// [Kit.KillBeforeReply] do that at the two places that matter, between the messages that a stage sends and its
// acknowledgement, and before them. What a killed instance held is delivered again at once. [Kit.Stub] stands in for an
// endpoint that a flow asks.
//
// # Guarantees
//
// Nothing here waits for a time to pass: each call returns as soon as what it is about has happened, and ends the test
// with a message that says what is missing when that takes longer than Timeout, or DefaultTimeout for what the kit
// does itself. The messages are real: requests and replies go through JetStream and the codecs of package endpoints.
// When the test ends, instances are stopped, and one that ended with an error, or does not end, fails the test.
//
// # Not its job
//
// It decides nothing that a node decides: what is retried, when, and in which pieces, is for the test to say.
//
// # Concurrency
//
// A Kit and its instances are safe for concurrent use, but calls that may end the test (all that take no error back)
// must come from the test's goroutine; use [Kit.Post] to have several requests in progress.
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

// DefaultTimeout is how long a call waits for what must happen, unless Timeout says otherwise.
const DefaultTimeout = 20 * time.Second

// Option changes a kit.
type Option func(*settings)

type settings struct {
	patience   time.Duration
	maxPayload int32
}

// Timeout is how long a call waits for what must happen. Default 20 s. It does not hurry the kit itself: starting the
// server or sending a request may take DefaultTimeout even when less is set.
func Timeout(d time.Duration) Option { return func(s *settings) { s.patience = d } }

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
	if !ns.ReadyForConnections(k.ownTimeout()) || !ns.JetStreamEnabled() {
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
	nc, err := nats.Connect("", nats.InProcessServer(k.server), nats.Name(k.t.Name()), nats.Timeout(k.ownTimeout()))
	if err != nil {
		k.t.Fatalf("endpointstest: connect to NATS: %v", err)
	}
	k.t.Cleanup(nc.Close)
	return nc
}

// ownTimeout is how long something may take that the kit does itself.
func (k *Kit) ownTimeout() time.Duration { return max(k.patience, DefaultTimeout) }

// own returns a context for one thing that the kit does itself.
func (k *Kit) own() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.ctx, k.ownTimeout())
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

// handBackTimeout bounds what is done about a killed instance.
const handBackTimeout = 2 * time.Second

var errKilled = errors.New("the instance was killed")

// Instance is a running service.
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
	held   map[string]delivery // what is not acknowledged, by acknowledgement subject
}

// Serve runs a service with the endpoints that register adds, until it is stopped or killed or the test ends. Calling
// it again with the same function runs one more instance. configure may change the service's configuration.
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

// Stop has the instance take no more work and waits until it has ended what it is at. It fails the test when it does
// not end well. An instance that was stopped or killed may be stopped again.
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

// Kill ends the instance as a crash does: nothing that it has not sent yet will be sent. A handler that is at work is
// not interrupted, but its answers go nowhere. What the instance held is delivered again at once.
func (i *Instance) Kill() {
	i.kit.t.Helper()
	if conn := i.kill(); conn != nil {
		conn.writing.Lock()
		defer conn.writing.Unlock()
		i.bury(conn)
	}
}

// Restart runs the service again, as one more instance.
func (i *Instance) Restart() *Instance {
	i.kit.t.Helper()
	return i.kit.Serve(i.register, func(c *endpoints.Config) { *c = i.config })
}

func (i *Instance) isKilled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.killed
}

// attach taps a new connection.
func (i *Instance) attach(conn net.Conn) (net.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed {
		return nil, cmp.Or(conn.Close(), errKilled)
	}
	i.conn = newTap(conn, i)
	return i.conn, nil
}

// kill has nothing more pass, and returns the connection to be ended, once.
func (i *Instance) kill() *tap {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed {
		return nil
	}
	i.killed = true
	return i.conn
}

// bury ends the connection of a killed instance. First the server is told to send no more, and what it has sent is
// read, so that nothing is lost that would rest until its AckWait is over. It is called with conn.writing held.
func (i *Instance) bury(conn *tap) {
	conn.quiet(handBackTimeout)
	_ = conn.Conn.Close() // it is gone either way
	i.nak()
}

// nak has the server deliver again what a killed instance held, instead of waiting for its AckWait.
func (i *Instance) nak() {
	i.mu.Lock()
	held := i.held
	i.held = map[string]delivery{}
	i.mu.Unlock()
	for subject := range held {
		if err := i.kit.nc.Publish(subject, []byte("-NAK")); err != nil {
			return // the kit's connection is closed: the test is over
		}
	}
	_ = i.kit.nc.FlushTimeout(handBackTimeout) // also
}

// delivered notes a message that the server has sent.
func (i *Instance) delivered(subject, ack string) {
	point, ok := pointOf(subject)
	if !ok {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held[ack] = delivery{point, i.kit.deliveries.Add(1)}
}

// sends reports whether a message may pass on its way to the server. When it may not the instance is dead.
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

// acknowledges returns what an acknowledgement is about. It is false for a heartbeat and for a hand-back.
func (i *Instance) acknowledges(subject string, body []byte) (delivery, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d, ok := i.held[subject]
	return d, ok && string(body) == "+ACK"
}

// settled notes that a delivery is no longer held, unless all that was said of it is that it is.
func (i *Instance) settled(subject string, body []byte) {
	if string(body) == "+WPI" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.held, subject)
}

// Point is a place in the life of a chunk: a stage of an endpoint. Endpoints that are not flows have stage 0 only.
type Point struct {
	Endpoint string
	Stage    int
}

// delivery is a message that an instance holds.
type delivery struct {
	point  Point
	number int64 // in the order in which the kit saw them
}

const (
	workSubjects  = "tranche.work."
	replySubjects = "tranche.reply."
	stageSubjects = "tranche.stage."
	callSubjects  = "tranche.call."
)

// pointOf returns what a delivered message begins.
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

// Kill is a crash that will come. It happens once.
type Kill struct {
	kit    *Kit
	what   string
	hits   func(i *Instance, subject string, body []byte) bool
	killed chan *Instance
}

// KillBetween kills the instance that gets to the end of a stage first, when all that the stage sends (requests, state,
// the reply) has been stored and before what it began with is acknowledged. That is then delivered again, to another
// instance or to one that is started later. Only what is delivered from now on counts. Stage 0 is what a request
// begins; an endpoint that is not a flow has no other.
func (k *Kit) KillBetween(endpoint string, stage int) *Kill {
	at, armed := Point{endpoint, stage}, k.deliveries.Load()
	return k.arm("acknowledges stage "+strconv.Itoa(stage)+" of endpoint "+endpoint,
		func(i *Instance, subject string, body []byte) bool {
			d, ok := i.acknowledges(subject, body)
			return ok && d.point == at && d.number > armed
		})
}

// KillBeforeReply kills the instance that is next about to send a reply of the endpoint, before the reply's first
// message or a later one, whichever is next. Work that its handler has done elsewhere by then is done.
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

// killFor returns the crash that a message of an instance sets off, if any, and disarms it.
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

func (kill *Kill) done(i *Instance) { kill.killed <- i }

// Wait returns the instance that was killed, as soon as it was. It ends the test when nothing sets the crash off.
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
