package systest

import (
	"os/exec"
	"testing"
)

// The rules are what Prometheus takes, and each alert fires when it should, and goes out. That there are the metrics
// which they ask for is checked in internal/metrics.
func TestRulesByPromtool(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = root + "/deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v; if it is missing: scripts/deps.sh prometheus\n%s", args, err, out)
		}
	}
}
