package endpoints

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

const someParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceOf(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	if got := TraceOf(ctx); !got.IsZero() {
		t.Errorf("got %+v of nothing", got)
	}
	want := wire.Trace{Parent: someParent, State: "a=1"}
	if got := TraceOf(ContextWithTrace(ctx, want)); got != want {
		t.Errorf("got %+v", got)
	}
	if got := TraceOf(ContextWithTrace(ctx, wire.Trace{Parent: "garbage"})); !got.IsZero() {
		t.Errorf("got %+v of garbage", got)
	}
	type key struct{}
	late := ContextWithTracer(ctx, func(ctx context.Context) wire.Trace {
		parent, _ := ctx.Value(key{}).(string)
		return wire.Trace{Parent: parent}
	})
	if got := TraceOf(context.WithValue(late, key{}, someParent)); got.Parent != someParent {
		t.Errorf("got %+v of a later span", got)
	}
}

// The trace of a request comes back with each message of its reply, and reaches the handler; garbage does neither.
func TestTraceGoesFromRequestToHandlerAndReply(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	seen := make(chan wire.Trace, 1)
	check(t, HandleList(svc, "traced", func(ctx context.Context, chunk *wrapChunk) error {
		seen <- TraceOf(ctx)
		return double(ctx, chunk)
	}))
	b.Run(svc)
	recorder, err := stream.EnsureRecorder(b.ctx, b.js)
	check(t, err)
	for given, want := range map[wire.Trace]wire.Trace{
		{Parent: someParent, State: "a=1"}:               {Parent: someParent, State: "a=1"},
		{Parent: someParent, State: "\tno state"}:        {Parent: someParent, State: ""},
		{Parent: "00-from-the-request-00", State: "a=1"}: {},
		{}: {},
	} {
		builder := wire.NewRequestBuilder("traced", newMeta(), 1<<20)
		builder.Add(0, "K", []byte(`{"n":1}`))
		msg := builder.Msg()
		if given.Parent != "" {
			msg.Header[wire.HeaderTrace], msg.Header[wire.HeaderTraceState] = []string{given.Parent}, []string{given.State}
		}
		b.publish(msg)
		reply := b.next(recorder)
		check(t, reply.Ack())
		if got := wire.TraceOfHeader(reply.Headers()); got != want || len(reply.Headers()[wire.HeaderTrace]) > 1 {
			t.Errorf("%+v: the reply has %+v", given, got)
		}
		if got := await(t, "handler", seen); got != want {
			t.Errorf("%+v: the handler has %+v", given, got)
		}
	}
}
