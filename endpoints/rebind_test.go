package endpoints

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
