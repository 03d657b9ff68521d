package endpoints

import (
	"context"
	"testing"

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
