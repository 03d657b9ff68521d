package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// bench adds what this package's tests do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}

// subtest runs a case on a database of its own, beside the others.
func subtest(t *testing.T, name string, f func(b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(setup(t))
	})
}

func (b *bench) wantBreaker(want, what string, args ...any) {
	b.Helper()
	state, _ := b.Breaker()
	testenv.Same(b, state, want, "the breaker "+what, args...)
}

func TestMain(m *testing.M) { testenv.Main(m) }
