package admission

import (
	"os"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run())) }

// patience bounds every wait of the tests.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-poll.C {
		if time.Now().After(deadline) {
			t.Fatalf("in %s it never came true that %s", patience, what)
		}
	}
}

// await receives from c, within patience.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s in %s", what, patience)
		panic("unreachable")
	}
}
