package faultyservice

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
