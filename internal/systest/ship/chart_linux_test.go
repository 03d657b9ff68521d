package ship

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const helm = "helm.sh/helm/v3/cmd/helm@v3.22.0"

// The chart is what helm takes, with the least that must be said and with everything, and makes of it what is on
// record. make chart writes that.
func TestChart(t *testing.T) {
	t.Parallel()
	program := tool(t, helm)
	dir := filepath.Join(root, "deploy", "helm")
	for _, name := range []string{"least", "all"} {
		values := filepath.Join("testdata", name+".yaml")
		lint := exec.CommandContext(t.Context(), program, "lint", "tranche", "--strict", "--values", values)
		lint.Dir = dir
		run(t, lint)
		template := exec.CommandContext(t.Context(), program, "template", "batch", "tranche", "--kube-version", "1.31.0",
			"--namespace", "jobs", "--values", values)
		template.Dir = dir
		if got, want := run(t, template), read(t, filepath.Join(dir, "testdata", name+".golden.yaml")); got != want {
			t.Errorf("%s: the chart makes something else than is on record; see what, with: make chart && git diff deploy/helm",
				name)
		}
	}
}

// Without what it needs, and with what it does not know, the chart says what that is.
func TestChartRefusesMistakes(t *testing.T) {
	t.Parallel()
	program := tool(t, helm)
	for set, says := range map[string][]string{
		"":                                 {"/database/secret", "/nats/url"},
		"replica=4":                        {"replica"},
		"nats.credSecret=x":                {"credSecret"},
		"settings.TRANCHE_AUHT=on":         {"'TRANCHE_AUHT'"},
		"settings.TRANCHE_LISTEN=:1":       {"'TRANCHE_LISTEN'"}, // is the chart's
		"metrics.serviceMonitor.enable=on": {"enable"},
	} {
		cmd := exec.CommandContext(t.Context(), program, "template", "batch", "tranche", "--kube-version", "1.31.0")
		if set != "" {
			cmd.Args = append(cmd.Args, "--values", filepath.Join("testdata", "least.yaml"), "--set", set)
		}
		cmd.Dir = filepath.Join(root, "deploy", "helm")
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("the chart takes %q", set)
		}
		for _, want := range says {
			if !strings.Contains(string(out), want) {
				t.Errorf("for %q it does not say %s:\n%s", set, want, out)
			}
		}
	}
}
