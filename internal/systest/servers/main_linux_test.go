package servers

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestMain lets NATS servers be: one that ends while it makes its copy of a stream leaves that copy's loop running, and
// the clock of all stores.
func TestMain(m *testing.M) {
	if dir := os.Getenv(natsDiskVariable); dir != "" {
		if err := beNATSOnDisk(dir); err != nil {
			fmt.Fprintln(os.Stderr, "NATS server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	const server = "github.com/nats-io/nats-server/v2/server"
	testenv.Main(m, goleak.IgnoreTopFunction(server+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction(server+"/ats.Register.func1"))
}
