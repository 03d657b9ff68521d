package modeltest_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// elsewhere is a second endpoint.
const elsewhere = "elsewhere"

// bench has, in addition to what all tests of the store have, what those of this package need.
type bench struct {
	*storetest.Bench
	fuse *fuse // of the store's connections; nil outside of the simulation
}
