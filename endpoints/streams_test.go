package endpoints

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestEnsureStreamsIsIdempotentAndUpdates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, err := stream.Ensure(b.ctx, b.js, stream.Config{})
	check(t, err)
	second, err := stream.Ensure(b.ctx, b.js, stream.Config{WorkMaxBytes: 5 << 20})
	check(t, err)
	if first != second || first.WorkCreated.IsZero() || first.ReplyCreated.IsZero() {
		t.Errorf("%+v, then %+v", first, second)
	}
	work, err := b.js.Stream(b.ctx, wire.StreamWork)
	check(t, err)
	got := work.CachedInfo().Config
	if got.MaxBytes != 5<<20 || got.Discard != jetstream.DiscardNew || !got.AllowMsgTTL {
		t.Errorf("config %+v", got)
	}
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	third, err := stream.Ensure(b.ctx, b.js, stream.Config{})
	check(t, err)
	if !third.WorkCreated.After(first.WorkCreated) || third.ReplyCreated != first.ReplyCreated {
		t.Errorf("a recreated stream does not show: %+v, then %+v", first, third)
	}
}

func TestEnsureStreamsByManyNodesAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	var group sync.WaitGroup
	states := make([]stream.States, 8)
	for i := range states {
		group.Go(func() {
			var err error
			if states[i], err = stream.Ensure(b.ctx, b.js, stream.Config{WorkMaxBytes: int64(i+1) << 20}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, s := range states {
		if s != states[0] {
			t.Errorf("%+v and %+v", s, states[0])
		}
	}
}

func TestEnsureStreamsRefusesAnotherKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamReply))
	_, err := b.js.CreateStream(b.ctx, jetstream.StreamConfig{Name: wire.StreamReply,
		Subjects: []string{"tranche.reply.*"}})
	check(t, err)
	_, err = stream.Ensure(b.ctx, b.js, stream.Config{})
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
		if _, err := New(b.nc, config); err == nil {
			t.Errorf("New took %+v", config)
		}
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
		if err == nil {
			t.Errorf("%s: no error", name)
		}
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
	eventually(t, "it listens", func() bool { return b.logged.FilterMessage("listening").Len() > 0 })
	svc.host.NC.Close()
	if err := await(t, "end of Run", done); err == nil {
		t.Error("no error")
	}
}

func TestHandlerThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service(func(c *Config) { c.DrainTimeout = 10 * time.Millisecond })
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
	var left *DrainError
	if !errors.As(err, &left) || left.Left["stuck"] != 1 {
		t.Errorf("error %v", err)
	}
	eventually(t, "the handler is gone", func() bool { return len(svc.endpoints[0].Work.Room.Deliveries()) == 0 })
}

// TestConsumerOfAServiceIsKept has a service make its consumer with what JetStream cannot change later.
func TestConsumerOfAServiceIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamWork, jetstream.ConsumerConfig{
		Durable: "square", FilterSubject: wire.WorkSubject("square"), AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 7,
	})
	check(t, err)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{Concurrency: 3}))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "square")
	check(t, err)
	info := consumer.CachedInfo()
	if c := info.Config; c.MaxWaiting != 7 || c.AckWait != stream.AckWait || c.MaxDeliver != wire.MaxDeliver {
		t.Errorf("config %+v", c)
	}
	if got := stream.SettingsOf(info); got.Concurrency != 3 {
		t.Errorf("settings %+v", got)
	}
}

func TestConsumerThatLosesWhatItDeliversIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// A work queue takes no other consumer than an explicit one; the stream of states would.
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamEvent, jetstream.ConsumerConfig{
		Durable: "square", AckPolicy: jetstream.AckNonePolicy,
	})
	check(t, err)
	if _, err := stream.EnsureDurable(b.ctx, b.js, wire.StreamEvent,
		stream.ConsumerConfig("square", wire.EventSubject(">"))); err == nil {
		t.Error("a consumer that acknowledges nothing is taken")
	}
}

// replicated is setup on three servers, with three replicas of everything.
func replicated(t *testing.T) *bundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), allTimeout)
	t.Cleanup(cancel)
	b := newBundle(t, ctx)
	b.url = testenv.NATSCluster(t).URLs()[0]
	b.nc = b.connect()
	js, err := jetstream.New(b.nc)
	check(t, err)
	b.js = js
	b.streamsWith(stream.Config{Replicas: 3})
	return b
}

// TestReplicatedConsumersLoseNothing has servers send messages after the word that a pull is over. What is lost comes
// again after an AckWait. So does what a machine that was stalled did not acknowledge, or delivered under a leader that
// the others lost: that is no fault.
func TestReplicatedConsumersLoseNothing(t *testing.T) {
	t.Parallel()
	b := replicated(t)
	svc := b.service()
	big := strings.Repeat("x", 60_000)
	check(t, HandleEach(svc, "square", squares, Concurrency(8)))
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{}))
	const chunks = 400
	for range chunks {
		b.ask("square", []payload{{0, `{"n":3,"pad":"` + big + `"}`}})
	}
	start, watch := time.Now(), testenv.NewWatch(t)
	b.Run(svc)
	b.collect(chunks)
	took := time.Since(start)
	eventually(t, "all is acknowledged", func() bool { return b.backlog("square") == 0 })
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName("square"))
	check(t, err)
	info := consumer.CachedInfo()
	stood := watch.Longest() > stream.AckTimeout/2
	if again := int(info.Delivered.Consumer) - chunks; again > b.unacknowledged() && !stood {
		t.Errorf("%d messages were delivered again", again)
	}
	if info.Cluster == nil || len(info.Cluster.Replicas) != 2 {
		t.Errorf("the consumer is not replicated: %+v", info.Cluster)
	}
	t.Logf("%d chunks in %s; it was stalled for %s at the longest", chunks, took, watch.Longest())
}

// unacknowledged is how often services could not acknowledge in time what they had handled.
func (b *bundle) unacknowledged() int {
	return b.logged.FilterMessageSnippet("could not acknowledge a request").Len()
}

// soon is how long a service may take, by a watch, to be back after the streams are. The second of the promise, and
// a little for a busy machine under the race detector, whose replies may all be on their way when the streams are lost:
// they are sent again when no acknowledgement came.
const soon = 3*time.Second + stream.AckTimeout

// underLoad has a service answer while a node goes on asking. It returns once the service is at work.
func underLoad(b *bundle) (answered *atomic.Int64) {
	answered = new(atomic.Int64)
	svc := b.service()
	if err := HandleEach(svc, "square", func(ctx context.Context, in number) (square, error) {
		answered.Add(1)
		return squares(ctx, in)
	}); err != nil {
		b.t.Fatal(err)
	}
	b.Run(svc)
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	b.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for backoff.Sleep(ctx, 2*time.Millisecond) == nil {
			_, msg := b.request("square", numbers(1))
			attempt, stop := context.WithTimeout(ctx, 200*time.Millisecond)
			_, _ = b.js.PublishMsg(attempt, msg) // the stream may be gone: that is what is tested
			stop()
		}
	}()
	eventually(b.t, "the service is at work", func() bool { return answered.Load() > 20 })
	return answered
}

// resumes fails unless requests are answered again soon, counting from now.
func resumes(b *bundle, answered *atomic.Int64) {
	b.t.Helper()
	before, w := answered.Load(), testenv.NewWatch(b.t)
	eventually(b.t, "requests are answered again", func() bool { return answered.Load() > before+20 })
	if took := w.Ran(); took > soon {
		b.t.Errorf("it took %s", took)
	}
	meta := b.ask("square", numbers(3))
	eventually(b.t, "a reply arrives", func() bool {
		w := b.collect(1)[meta.Slice]
		return w != nil && w.answered == 3
	})
}

func TestServiceSurvivesTheLossOfItsStreams(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*bundle){
		"streams deleted": func(b *bundle) {
			check(b.t, b.js.DeleteStream(b.ctx, wire.StreamWork))
			check(b.t, b.js.DeleteStream(b.ctx, wire.StreamReply))
		},
		"consumer deleted": func(b *bundle) {
			check(b.t, b.js.DeleteConsumer(b.ctx, wire.StreamWork, wire.ConsumerName("square")))
		},
		"server restarted": func(b *bundle) { b.stop(); b.start() },
		"store wiped":      func(b *bundle) { b.wipe() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			answered := underLoad(b)
			lose(b)
			eventually(t, "the node is connected", b.nc.IsConnected)
			b.streams()
			resumes(b, answered)
		})
	}
}

// setupWithoutStream runs a service that has no stream to take requests from.
func setupWithoutStream(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	serveEach(b, "square", squares)
	return b
}

func TestServiceWaitsForTheStream(t *testing.T) {
	t.Parallel()
	b := setupWithoutStream(t)
	eventually(t, "the wait is logged", func() bool {
		return b.logged.FilterMessage("waiting for a Tranche node to create stream "+wire.StreamWork).
			FilterLevelExact(zap.WarnLevel).Len() == 1
	})
	b.streams()
	if w := b.reply("square", numbers(2)); w.answered != 2 {
		t.Errorf("answered %d", w.answered)
	}
}

// TestEachReasonForAWaitIsLogged has another thing be missing than at first.
func TestEachReasonForAWaitIsLogged(t *testing.T) {
	t.Parallel()
	b := setupWithoutStream(t)
	says := func(text string) func() bool {
		return func() bool { return b.logged.FilterMessageSnippet(text).Len() > 0 }
	}
	eventually(t, "the stream is waited for", says("waiting for a Tranche node to create stream"))
	b.stop()
	eventually(t, "the server is waited for", says("waiting for a NATS server"))
	eventually(t, "what to do is said", says("start `tranche serve`, or set NATS_URL"))
}

// A service that is refused says how it gets in, in its log and in what its readiness probe is told.
func TestARefusedServiceSaysHowToGetIn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stop()
	b.opts.Username, b.opts.Password = "u", "p"
	b.start()
	nc, err := nats.Connect(b.url, append(Options(), nats.UserInfo("u", "wrong"))...)
	check(t, err)
	t.Cleanup(nc.Close)
	svc, err := New(nc, Config{Name: "tester", Version: "1.2.3", Log: b.log})
	check(t, err)
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	remedy := "refuses this user (nats: Authorization Violation): for the private server of `tranche serve`, " +
		"set NATS_URL=$(cat DIR/nats-url)"
	eventually(t, "the log says how", func() bool { return b.logged.FilterMessageSnippet(remedy).Len() > 0 })
	eventually(t, "the probe is told how", func() bool {
		err := svc.Ready()
		return err != nil && strings.Contains(err.Error(), remedy)
	})
}
