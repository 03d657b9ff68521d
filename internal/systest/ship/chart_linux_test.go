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

// Without what it needs, the chart says what that is.
func TestChartAsksForWhatItNeeds(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), tool(t, helm), "template", "batch", "tranche", "--kube-version", "1.31.0")
	cmd.Dir = filepath.Join(root, "deploy", "helm")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("the chart wants nothing")
	}
	for _, want := range []string{"/database/secret", "/nats/url"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %s:\n%s", want, out)
		}
	}
}
