package modeltest_test

import (
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const elsewhere = "elsewhere"

// bench has, in addition to what all tests of the store have, what those of this package need.
type bench struct {
	*storetest.Bench
	fuse *fuse     // of the store's connections; nil outside of the simulation
	past sync.Once // makes the place for a copy of the database
	// countLeft is a statement that counts rows of a run, in all tables.
	countLeft string
}
