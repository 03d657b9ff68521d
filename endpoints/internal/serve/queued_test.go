package serve

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestParseTTL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"5": 5 * time.Second, "90s": 90 * time.Second, "1h": time.Hour,
		"": 0, "never": 0, "-1": 0, "0": 0, "-5s": 0, "x": 0, "99999999999999999999": 0} {
		testenv.Same(t, parseTTL(text), want, "%q", text)
	}
}
