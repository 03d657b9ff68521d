package endpoints

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
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
