package endpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait of the tests: what a stall has held up may be delivered again after an AckWait only.
const patience = 2 * time.Minute

// allTimeout bounds them together. Without a deadline JetStream would give each call 5 s.
const allTimeout = 4 * patience

// outlastsStalls is for times that a test must not see the end of, on a machine that is stalled for seconds.
const outlastsStalls = 12 * time.Second

// bundle is an account of NATS with the streams, and a node's side of the protocol.
type bundle struct {
	t       testing.TB
	ctx     context.Context
	server  *server.Server
	account *server.Account
	opts    *server.Options // of a server of its own
	url     string
	nc      *nats.Conn
	js      jetstream.JetStream
	log     *zap.Logger
	logged  *observer.ObservedLogs
	lines   chan struct{} // there is more in it
	pieces  wire.Assembly
	taken   map[serve.RequestID]bool // messages of replies; what is not acknowledged for 5 s comes again
}

// own is for a test that stops its server.
func own(*server.Options) {}

// setup uses the server of all tests, or its own if options are changed.
func setup(t testing.TB, change ...func(*server.Options)) *bundle {
	t.Helper()
	b := newBundle(t)
	if len(change) == 0 {
		account := testenv.NATS(t)
		b.server, b.account, b.url = account.Of, account.Account, account.URL()
		return b.over(b.connect())
	}
	b.opts = &server.Options{
		Host: "127.0.0.1", Port: testenv.QuietPort(t), JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		WriteDeadline: patience, AuthTimeout: patience.Seconds(), // a client that is stalled is not turned out
		DisableShortFirstPing: true, // a first PING after 2 s may overtake the PONG of a login that takes as long
	}
	for _, f := range change {
		f(b.opts)
	}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b.over(b.connect())
}

func newBundle(t testing.TB) *bundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), allTimeout)
	t.Cleanup(cancel)
	core, logged := observer.New(zap.DebugLevel)
	b := &bundle{t: t, ctx: ctx, logged: logged, lines: make(chan struct{}, 1), taken: map[serve.RequestID]bool{}}
	b.log = zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case b.lines <- struct{}{}:
		default:
		}
		return nil
	}))
	return b
}

// over gives a bundle its connection, and makes the streams.
func (b *bundle) over(nc *nats.Conn) *bundle {
	b.t.Helper()
	js := testenv.Must(jetstream.New(nc))(b.t)
	b.nc, b.js = nc, js
	b.streams()
	return b
}

// start starts the server, on the port that the test holds for it.
func (b *bundle) start() {
	b.t.Helper()
	s := testenv.Must(server.NewServer(b.opts))(b.t)
	s.Start()
	if !s.ReadyForConnections(patience) || !s.JetStreamEnabled() {
		b.t.Fatal("the server does not start")
	}
	b.server, b.account, b.url = s, s.GlobalAccount(), s.ClientURL()
	b.opts = b.opts.Clone()
}

func (b *bundle) stop() {
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

func (b *bundle) connect() *nats.Conn {
	b.t.Helper()
	nc := testenv.Must(nats.Connect(b.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.Timeout(patience)))(b.t)
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *bundle) streams() {
	b.t.Helper()
	// A request may be lost while a server starts. It is the one that is abandoned then, and not all that they are.
	js := testenv.Must(jetstream.New(b.nc, jetstream.WithDefaultTimeout(time.Second)))(b.t)
	eventually(b.t, "the streams are there", func() bool {
		_, err := stream.Ensure(context.WithoutCancel(b.ctx), js, stream.Config{})
		return err == nil
	})
}

// service returns a service on a connection of its own.
func (b *bundle) service(change ...func(*Config)) *Service {
	b.t.Helper()
	config := Config{Name: "tester", Version: "1.2.3", Log: b.log, DrainTimeout: patience}
	for _, f := range change {
		f(&config)
	}
	return testenv.Must(New(b.connect(), config))(b.t)
}

// Run runs svc until the returned function is called, or the test ends. The function returns what Run returned.
func (b *bundle) Run(svc *Service) (stop func() error) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = svc.Run(ctx)
	}()
	stop = func() error {
		cancel()
		<-done
		return err
	}
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

// serveEach runs a service with one HandleEach endpoint.
func serveEach[In, Out any](
	b *bundle, name string, handle func(context.Context, In) (Out, error), opts ...Option,
) *Service {
	b.t.Helper()
	svc := b.service()
	check(b.t, HandleEach(svc, name, handle, opts...))
	b.Run(svc)
	return svc
}

// serveList runs a service with one HandleList endpoint.
func serveList[In, Out any](
	b *bundle, name string, handle func(context.Context, *Chunk[In, Out]) error, opts ...Option,
) *Service {
	b.t.Helper()
	svc := b.service()
	check(b.t, HandleList(svc, name, handle, opts...))
	b.Run(svc)
	return svc
}

// serveFlow runs a service with one HandleFlow endpoint.
func serveFlow[In, Out, State, Shared any](
	b *bundle, name string, stages []func(context.Context, *Stage[In, Out, State, Shared]) error, opts ...Option,
) *Service {
	b.t.Helper()
	svc := b.service()
	check(b.t, HandleFlow(svc, name, stages, opts...))
	b.Run(svc)
	return svc
}

// each is a HandleList handler that calls f with each item.
func each[In, Out any](f func(*Item[In, Out])) func(context.Context, *Chunk[In, Out]) error {
	return func(_ context.Context, chunk *Chunk[In, Out]) error {
		for _, item := range chunk.Items() {
			f(item)
		}
		return nil
	}
}

// perItem is a stage that calls f with each item.
func perItem[In, Out, State, Shared any](
	f func(*StageItem[In, Out, State, Shared]),
) func(context.Context, *Stage[In, Out, State, Shared]) error {
	return func(_ context.Context, s *Stage[In, Out, State, Shared]) error {
		for _, item := range s.Items() {
			f(item)
		}
		return nil
	}
}

type payload struct {
	ordinal int
	json    string
}

// numbers returns n items {"n":0}, {"n":1}, ….
func numbers(n int) []payload {
	items := make([]payload, n)
	for i := range items {
		items[i] = payload{i, fmt.Sprintf(`{"n":%d}`, i)}
	}
	return items
}

func newMeta() wire.Meta {
	slice := uuid.New()
	return wire.Meta{Run: uuid.New(), Slice: slice, Step: 0, Attempt: 1, Generation: 1, Mode: wire.ModeBatch, Root: slice,
		Deliveries: wire.DefaultDeliveries}
}

// bound gives a stream room for so many bytes.
func (b *bundle) bound(name string, bytes int64) {
	b.t.Helper()
	found := testenv.Must(b.js.Stream(b.ctx, name))(b.t)
	config := found.CachedInfo().Config
	config.MaxBytes = bytes
	testenv.Must(b.js.UpdateStream(b.ctx, config))(b.t)
}

func (b *bundle) ask(endpoint string, items []payload, change ...func(*wire.Meta)) wire.Meta {
	b.t.Helper()
	meta, msg := b.request(endpoint, items, change...)
	b.publish(msg)
	return meta
}

// request returns a request, and what its headers say, which may be changed.
func (b *bundle) request(endpoint string, items []payload, change ...func(*wire.Meta)) (wire.Meta, *nats.Msg) {
	b.t.Helper()
	meta := newMeta()
	for _, f := range change {
		f(&meta)
	}
	builder := wire.NewRequestBuilder(endpoint, meta, int(b.nc.MaxPayload()))
	for _, item := range items {
		if !builder.Add(item.ordinal, fmt.Sprintf("KEY-%d", item.ordinal), []byte(item.json)) {
			b.t.Fatalf("item %d does not fit", item.ordinal)
		}
	}
	return meta, builder.Msg()
}

func (b *bundle) publish(msg *nats.Msg) {
	b.t.Helper()
	testenv.Must(b.js.PublishMsg(b.ctx, msg))(b.t)
}

// whole is a reply put together from its messages.
type whole struct {
	messages int
	slots    map[int]wire.Slot
	answered int
	failure  *wire.SlotError
	service  string
	took     time.Duration
}

// holds fails the test unless a reply has exactly these slots, each the JSON of a result or the code of an error, and
// a failure with this code, "" for none.
func (w *whole) holds(t testing.TB, what, failure string, want map[int]string) {
	t.Helper()
	if w == nil {
		t.Errorf("%s: no reply", what)
		return
	}
	got, code := map[int]string{}, ""
	for i, slot := range w.slots {
		if got[i] = string(slot.Data); slot.Err != nil {
			got[i] = slot.Err.Code
		}
	}
	if w.failure != nil {
		code = w.failure.Code
	}
	if !maps.Equal(got, want) || w.answered != len(want) || code != failure {
		t.Errorf("%s: answered %d, failure %v, slots %v; want failure %q, slots %v", what, w.answered, w.failure, got,
			failure, want)
	}
}

// fails ends in an error unless a reply has this failure, and answers so many items, where that is said.
func (w *whole) fails(t testing.TB, code string, retry bool, answered ...int) {
	t.Helper()
	if w == nil || w.failure == nil || w.failure.Code != code || w.failure.Retry != retry ||
		len(answered) > 0 && w.answered != answered[0] {
		t.Errorf("got %+v; want failure %s, to be retried: %t, and %v answered", w, code, retry, answered)
	}
}

// fails reports an error that is not of an item, or has another code.
func fails(t testing.TB, err error, code string, retry bool) {
	t.Helper()
	if slot, ok := errors.AsType[*wire.SlotError](err); !ok || slot.Code != code || slot.Retry != retry {
		t.Errorf("got %v; want %s, to be retried: %t", err, code, retry)
	}
}

// collect reads messages until n slices have a final one and all slots that it speaks of. It waits for each thing that
// is new, which what is repeated is not, within patience.
func (b *bundle) collect(n int) map[uuid.UUID]*whole {
	b.t.Helper()
	recorder, found := b.recorder(), map[uuid.UUID]*whole{}
	complete := func() (count int) {
		for _, w := range found {
			if w.answered >= 0 && len(w.slots) >= w.answered {
				count++
			}
		}
		return count
	}
	known := func() (count int) {
		for _, w := range found {
			count += 1 + len(w.slots)
			if w.answered >= 0 {
				count++
			}
		}
		return count
	}
	deadline := time.Now().Add(patience)
	for complete() < n {
		before := known()
		if time.Now().After(deadline) {
			b.t.Fatalf("%d of %d replies came; logged: %v", complete(), n, b.logged.All())
		}
		batch := testenv.Must(recorder.Fetch(10, jetstream.FetchMaxWait(100*time.Millisecond)))(b.t)
		for msg := range batch.Messages() {
			b.take(found, msg)
		}
		if known() > before {
			deadline = time.Now().Add(patience)
		}
	}
	return found
}

// read reads a message. The last piece of a result is one with its slot, the others are messages without any.
func (b *bundle) read(msg jetstream.Msg) (*wire.Reply, error) {
	if !wire.IsPiece(msg.Headers()) {
		return wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	}
	p := testenv.Must(wire.ParsePiece(msg.Subject(), msg.Headers(), msg.Data()))(b.t)
	slot, err := b.pieces.Add(p)
	reply := &wire.Reply{Meta: p.Meta, Service: p.Service, Answered: -1}
	if slot != nil {
		reply.Slots = []wire.Slot{*slot}
	}
	return reply, err
}

func (b *bundle) take(found map[uuid.UUID]*whole, msg jetstream.Msg) {
	b.t.Helper()
	meta := testenv.Must(msg.Metadata())(b.t)
	id := serve.RequestID{Sequence: meta.Sequence.Stream, Stored: meta.Timestamp.UnixNano()}
	if b.taken[id] {
		check(b.t, msg.DoubleAck(b.ctx))
		return
	}
	b.taken[id] = true
	reply := testenv.Must(b.read(msg))(b.t)
	w := found[reply.Slice]
	if w == nil {
		w = &whole{slots: map[int]wire.Slot{}, answered: -1}
		found[reply.Slice] = w
	}
	w.messages++
	w.service = reply.Service
	for _, slot := range reply.Slots {
		w.slots[slot.Ordinal] = slot
	}
	if reply.Answered >= 0 {
		w.answered, w.failure, w.took = reply.Answered, reply.Failure, reply.Took
	}
	check(b.t, msg.DoubleAck(b.ctx))
}

// recorder is the consumer through which a node reads replies.
func (b *bundle) recorder() jetstream.Consumer {
	b.t.Helper()
	return testenv.Must(stream.EnsureRecorder(b.ctx, b.js))(b.t)
}

// stored returns how many messages a stream has ever taken.
func (b *bundle) stored(name string) uint64 {
	b.t.Helper()
	found := testenv.Must(b.js.Stream(b.ctx, name))(b.t)
	return found.CachedInfo().State.LastSeq
}

// next takes one message, however long it is in coming: a server that is stalled sends no heartbeats, either.
func (b *bundle) next(consumer jetstream.Consumer) jetstream.Msg {
	b.t.Helper()
	return testenv.Must(consumer.Next(jetstream.FetchMaxWait(patience), jetstream.FetchHeartbeat(patience/2)))(b.t)
}

func (b *bundle) reply(endpoint string, items []payload) *whole {
	b.t.Helper()
	meta := b.ask(endpoint, items)
	return b.collect(1)[meta.Slice]
}

// logs waits for so many lines with a text.
func (b *bundle) logs(text string, n int) {
	b.t.Helper()
	for b.logged.FilterMessageSnippet(text).Len() < n {
		await(b.t, "line with "+text, b.lines)
	}
}

// eventually polls until ok, within patience.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testenv.Until(t, patience, what, ok)
}

// await receives from c, within patience.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s in %s", what, patience)
		panic("unreachable")
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	testenv.NoError(t, err)
}
