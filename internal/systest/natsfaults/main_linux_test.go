package natsfaults

import (
	"fmt"
	"os"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(natsDiskVariable); dir != "" {
		if err := beNATSOnDisk(dir); err != nil {
			fmt.Fprintln(os.Stderr, "NATS server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}
