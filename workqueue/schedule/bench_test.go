package schedule_test

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

func TestMain(m *testing.M) { testenv.Main(m) }
