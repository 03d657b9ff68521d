package telemetry_test

import (
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/tranchehq/tranche/endpoints/telemetry"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func FuzzExtract(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-x", "a=1,,b=2")
	f.Add("00--", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		given := wire.Trace{Parent: parent, State: state}
		ctx := telemetry.Extract(t.Context(), given)
		got := telemetry.Inject(ctx)
		valid := wire.ParseTrace(parent, state)
		testenv.MustSame(t, got.IsZero(), valid.IsZero(), "%+v is empty", given)
		if valid.IsZero() {
			if trace.SpanContextFromContext(ctx).IsValid() {
				t.Errorf("%+v was taken", given)
			}
			return
		}
		if got.Parent[3:52] != valid.Parent[3:52] || wire.ParseTrace(got.Parent, got.State) != got {
			t.Errorf("%+v became %+v", given, got)
		}
	})
}
