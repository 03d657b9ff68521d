package endpoints

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestDirectRequestsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := make(chan struct{})
	serveEach(b, "slow", func(context.Context, number) (square, error) {
		<-end
		return square{1}, nil
	}, Concurrency(1))
	b.listening("slow")
	const many = 3 * serve.LeastDirect
	failures := make(chan error, many)
	for range many {
		go func() {
			_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
			failures <- err
		}()
	}
	for range many - serve.LeastDirect {
		fails(t, await(t, "refusal", failures), wire.CodeOverloaded, true)
	}
	close(end)
	for range serve.LeastDirect {
		testenv.NoError(t, await(t, "answer", failures))
	}
	_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
	testenv.Same(t, err, nil, "after the rush")
}

func TestDirectRequestsNotBegunAreAnsweredOnShutdown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	begun, end := make(chan struct{}, 1), make(chan struct{})
	check(t, HandleEach(svc, "slow", func(context.Context, number) (square, error) {
		begun <- struct{}{}
		<-end
		return square{1}, nil
	}, Concurrency(1)))
	stop := b.Run(svc)
	b.listening("slow")
	answered := make(chan error, 1)
	call := func(into chan<- error) {
		_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
		into <- err
	}
	go call(answered)
	await(t, "handler", begun)
	const waiting = 5
	refused := make(chan error, waiting)
	for range waiting {
		go call(refused)
	}
	eventually(t, "they wait", func() bool { return svc.endpoints[0].HeldDirect() == waiting+1 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for range waiting {
		fails(t, await(t, "refusal", refused), wire.CodeShutdown, true)
	}
	close(end)
	testenv.Same(t, await(t, "answer", answered), nil, "what was begun")
	check(t, await(t, "end", stopped))
	var nobody *NoListenersError
	if _, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct()); !errors.As(err, &nobody) {
		t.Errorf("%v", err)
	}
}

func TestDirectRequestsFailAtOnceAndLeaveNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "work", func(_ context.Context, in number) (square, error) {
		switch in.N {
		case 0:
			panic("boom")
		case 1:
			return square{}, errors.New("plain")
		default:
			return square{}, Retry("later", "not now")
		}
	}))
	check(t, HandleEach(svc, "late", func(ctx context.Context, _ number) (square, error) {
		<-ctx.Done()
		return square{}, ctx.Err()
	}, Timeout(50*time.Millisecond)))
	b.Run(svc)
	b.listening("work")
	b.listening("late")
	for n, want := range []struct{ endpoint, code string }{
		{"work", wire.CodePanic}, {"work", wire.CodeHandlerError}, {"work", "later"}, {"late", wire.CodeTimeout},
	} {
		_, err := Call[number, square](b.ctx, b.nc, want.endpoint, "k", number{n}, Direct())
		var slot *wire.SlotError
		if !errors.As(err, &slot) || slot.Code != want.code {
			t.Errorf("%d: %v", n, err)
		}
	}
	for _, name := range []string{wire.StreamWork, wire.StreamReply, wire.StreamDead} {
		testenv.Same(t, b.stored(name), 0, "messages went to %s", name)
	}
}

func TestGarbageOnTheDirectSubjectDoesNoHarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "square", squares)
	b.listening("square")
	call := wire.Return{Asker: "me", Callee: "square", Call: "token"}
	meta := newMeta()
	meta.ReplyTo = call
	good := meta.Request()
	other := newMeta()
	other.ReplyTo = wire.Return{Asker: "me", Callee: "other", Call: "token"}
	flow := newMeta()
	flow.ReplyTo = wire.Return{Asker: "me", Callee: "square", Stage: 1}
	foreign := meta.Request()
	foreign[wire.HeaderVersion] = []string{"9"}
	answers := testenv.Must(b.nc.SubscribeSync(call.String()))(t)
	for _, h := range []nats.Header{nil, {}, newMeta().Request(), other.Request(), flow.Request(), foreign,
		{wire.HeaderReplyTo: {call.String()}, wire.HeaderSlice: {uuid.NewString()}}, good} {
		check(t, b.nc.PublishMsg(&nats.Msg{Subject: wire.DirectSubject("square"), Header: h, Data: []byte("garbage")}))
	}
	msg := testenv.Must(answers.NextMsg(patience))(t)
	reply, err := wire.ParseReplyOf("square", msg.Header, msg.Data, wire.Limits{})
	if err != nil || reply.Failure == nil || reply.Failure.Code != wire.CodeBadRequest {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, name := range []string{wire.StreamReply, wire.StreamStage, wire.StreamDead} {
		testenv.Same(t, b.stored(name), 0, "messages went to %s", name)
	}
}
