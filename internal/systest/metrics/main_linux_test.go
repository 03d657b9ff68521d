package metrics

import (
	"os/exec"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// program finds a program of Debian's package prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v; install it: scripts/deps.sh prometheus", err)
	}
	return path
}

// The rules are what Prometheus takes, and each alert fires when it should, and goes out.
func TestRulesByPromtool(t *testing.T) {
	t.Parallel()
	tool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = deploy
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

const deploy = "../../../deploy/prometheus"
