package collector_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
)

// bench has, beside what all rooms' tests do, what those of this package do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}
