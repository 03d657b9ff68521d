package httpfetch_test

import (
	"os"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run())) }
