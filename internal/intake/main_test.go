package intake_test

import (
	"testing"

	"go.uber.org/goleak"
)

// The zstd decoder can start goroutines; the way it is opened, it must not.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
