package serve

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func TestLogFields(t *testing.T) {
	t.Parallel()
	plain := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
	plain.Root = plain.Slice
	nested := plain
	nested.Root, nested.Stack = uuid.New(), "statement:1"
	for name, tc := range map[string]struct {
		meta wire.Meta
		want []string
	}{
		"plain":  {plain, []string{"run", "slice"}},
		"nested": {nested, []string{"root", "run", "slice", "stack"}},
	} {
		core, logged := observer.New(zap.DebugLevel)
		log := zap.New(core)
		log.Info("by meta", Fields(tc.meta)...)
		log.Info("by headers", OfHeader(tc.meta.Request())...)
		lines := logged.All()
		for _, line := range lines {
			if got := slices.Sorted(maps.Keys(line.ContextMap())); !slices.Equal(got, tc.want) {
				t.Errorf("%s, %s: got %v", name, line.Message, got)
			}
		}
		if !maps.Equal(lines[0].ContextMap(), lines[1].ContextMap()) {
			t.Errorf("%s: %v and %v", name, lines[0].ContextMap(), lines[1].ContextMap())
		}
	}
}
