package streams_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bundle is a node, a server and a database for one test.
type bundle struct{ *nodetest.Bundle }

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.Setup(t)}
}
