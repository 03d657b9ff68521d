package endpoints

import (
	"context"
	"testing"

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
	_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
	_ = testenv.As[*NoListenersError](t, err, "a call after the end")
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
