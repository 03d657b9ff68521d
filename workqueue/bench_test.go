package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// bench has, beside what all rooms' tests do, what those of this package do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}

// subtest runs a case on a database of its own.
func (b *bench) subtest(name string, f func(b *bench)) {
	b.Run(name, func(t *testing.T) { f(setup(t)) })
}

func TestMain(m *testing.M) { testenv.Main(m) }
