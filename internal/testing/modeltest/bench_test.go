package modeltest_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
)

// elsewhere is a second endpoint.
const elsewhere = "elsewhere"

// bench has, in addition to what all tests of the store have, what those of this package need.
type bench struct {
	*storetest.Bench
	fuse *fuse // of the store's connections; nil outside of the simulation
}

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{Bench: storetest.Setup(t)}
}
