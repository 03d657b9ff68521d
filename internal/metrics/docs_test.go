package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	return string(testenv.Must(os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...)))(t))
}

func catalog(t *testing.T) []metrics.Metric {
	t.Helper()
	return testenv.Must(metrics.New(metrics.Config{}))(t).Catalog()
}

// The table of docs/metrics.md is what is registered.
func TestTheTableOfMetricsIsTrue(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	for _, m := range catalog(t) {
		typ := m.Type
		if m.Leader {
			typ += ", leader"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", m.Name, typ, strings.Join(m.Labels, ", "), m.Help)
	}
	testenv.Has(t, read(t, "docs", "metrics.md"), "|---|---|---|---|\n"+want.String(),
		"the table of docs/metrics.md must be:\n%s", want.String())
}

// Names are as Prometheus's people advise: base units, counters end in _total.
func TestNamesOfMetrics(t *testing.T) {
	t.Parallel()
	for _, m := range catalog(t) {
		bad := !regexp.MustCompile(`^tranche_[a-z0-9_]+$`).MatchString(m.Name) ||
			(m.Type == "counter") != strings.HasSuffix(m.Name, "_total") ||
			m.Type == "histogram" && !strings.HasSuffix(m.Name, "_seconds") ||
			regexp.MustCompile(`_(ms|millis|minutes|kb|mb|percent)(_|$)`).MatchString(m.Name)
		if bad || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s, a %s: %s", m.Name, m.Type, m.Help)
		}
	}
}

// unknown returns the names in expressions that no node tells.
func unknown(t *testing.T, text string) (names []string) {
	t.Helper()
	told := map[string]bool{"process_resident_memory_bytes": true}
	for _, m := range catalog(t) {
		told[m.Name] = true
		if m.Type == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				told[m.Name+part] = true
			}
		}
	}
	for _, name := range regexp.MustCompile(`\b(tranche|go|process)_[a-z0-9_]+`).FindAllString(text, -1) {
		if !told[name] && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// Each alert asks for metrics that there are, says what to do, leads to its heading in the runbook, and has a test for
// promtool; internal/systest runs these.
func TestAlertsAreWhole(t *testing.T) {
	t.Parallel()
	var all rules
	testenv.NoError(t, yaml.Unmarshal([]byte(read(t, "deploy", "prometheus", "rules.yml")), &all))
	tests := read(t, "deploy", "prometheus", "rules_test.yml")
	runbook := read(t, "docs", "operate", "runbook.md")
	alerts := 0
	for _, group := range all.Groups {
		for _, r := range group.Rules {
			alerts++
			testenv.SameList(t, unknown(t, r.Expr), nil, "what %s asks for, and no one tells", r.Alert)
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
				!slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
			}
			testenv.Has(t, tests, "name: "+r.Alert+"\n", "%s has no test in rules_test.yml", r.Alert)
			if !strings.Contains(runbook, "\n### "+r.Alert+"\n") ||
				!strings.HasSuffix(r.Annotations["runbook_url"], "/docs/operate/runbook.md#"+strings.ToLower(r.Alert)) {
				t.Errorf("%s has no heading in docs/operate/runbook.md, or does not lead there: %s", r.Alert,
					r.Annotations["runbook_url"])
			}
		}
	}
	if alerts < 20 {
		t.Errorf("only %d alerts were found", alerts)
	}
	testenv.SameList(t, unknown(t, tests), nil, "series of rules_test.yml that no one tells")
}

// Each panel asks for metrics that there are.
func TestTheDashboardAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	testenv.NoError(t, json.Unmarshal([]byte(read(t, "deploy", "grafana", "tranche.json")), &dashboard))
	targets := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			targets++
			testenv.SameList(t, unknown(t, target.Expr), nil, "what panel %s asks for, and no one tells", panel.Title)
		}
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %s asks for nothing", panel.Title)
		}
	}
	if targets < 30 {
		t.Errorf("only %d targets were found", targets)
	}
}
