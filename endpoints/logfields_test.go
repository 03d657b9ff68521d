package endpoints

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Lines about a chunk, and about an item of it, say which.
func TestLinesAboutChunksSayWhich(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "each", func(context.Context, map[string]int) (int, error) { panic("each") }))
	check(t, HandleList(svc, "list", func(context.Context, *wrapChunk) error { panic("list") }))
	b.Run(svc)
	each, list := b.ask("each", numbers(1)), b.ask("list", numbers(1))
	b.collect(2)
	b.publish(&nats.Msg{Subject: wire.WorkSubject("list"), Header: nats.Header{wire.HeaderRun: {"some run"},
		wire.HeaderVersion: {"1"}}})
	eventually(t, "the unreadable request is told", func() bool {
		return b.logged.FilterMessageSnippet("whom to tell").Len() == 1
	})
	if got := b.logged.FilterMessageSnippet("whom to tell").All()[0].ContextMap()["run"]; got != "some run" {
		t.Errorf("the unreadable request is of run %q", got)
	}
	seen := map[any]map[string]any{}
	for _, line := range b.logged.FilterMessageSnippet("panicked").All() {
		seen[line.ContextMap()["endpoint"]] = line.ContextMap()
	}
	for endpoint, meta := range map[string]wire.Meta{"each": each, "list": list} {
		line := seen[endpoint]
		_, item := line["ordinal"]
		if line["run"] != meta.Run.String() || line["slice"] != meta.Slice.String() || item != (endpoint == "each") {
			t.Errorf("%s: %v", endpoint, line)
		}
	}
}
