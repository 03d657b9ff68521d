package systest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/testing/testenv"
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
		output(t, lint)
		template := exec.CommandContext(t.Context(), program, "template", "batch", "tranche", "--kube-version", "1.31.0",
			"--namespace", "jobs", "--values", values)
		template.Dir = dir
		if got, want := output(t, template), read(t, filepath.Join(dir, "testdata", name+".golden.yaml")); got != want {
			t.Errorf("%s: the chart makes something else than is saved; see what, with: make chart && git diff deploy/helm",
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
		testenv.Fails(t, err, "the chart takes %q", set)
		for _, want := range says {
			testenv.Has(t, string(out), want, "for %q it says", set)
		}
	}
}

const composeGo = "github.com/compose-spec/compose-go/v2/cmd@v2.9.0"

// composeService is what the tests look at of a service in the Compose file.
type composeService struct {
	Image       string            `json:"image"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Profiles    []string          `json:"profiles"`
	ReadOnly    bool              `json:"read_only"`
	CapDrop     []string          `json:"cap_drop"`
	SecurityOpt []string          `json:"security_opt"`
	StopGrace   string            `json:"stop_grace_period"`
	Volumes     []struct {
		Type   string `json:"type"`
		Source string `json:"source"`
		Target string `json:"target"`
	} `json:"volumes"`
	Networks map[string]*struct {
		Aliases []string `json:"aliases"`
	} `json:"networks"`
}

// compose reads the Compose file as docker compose config does, by its own parser.
func compose(t *testing.T) map[string]composeService {
	t.Helper()
	cmd := command(t.Context(), tool(t, composeGo), "-format", "json", "compose.yaml")
	cmd.Dir = filepath.Join(root, "deploy", "compose")
	var file struct {
		Services map[string]composeService `json:"services"`
	}
	testenv.MustSame(t, json.Unmarshal([]byte(output(t, cmd)), &file), nil, "Compose's parser")
	return file.Services
}

// The Compose file is what Compose takes, one NATS server or three answer to the same name, and the files that it
// mounts are there.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	services := compose(t)
	profiles := map[string]int{}
	for name, service := range services {
		for _, v := range service.Volumes {
			if v.Type != "bind" {
				continue
			}
			_, err := os.Stat(v.Source)
			testenv.Same(t, err, nil, "%s", name)
		}
		for _, profile := range service.Profiles {
			profiles[profile]++
			if aliases := service.Networks["default"]; aliases == nil || !slices.Contains(aliases.Aliases, "nats") {
				t.Errorf("%s does not answer to nats", name)
			}
		}
	}
	if profiles["single"] != 1 || profiles["cluster"] != 3 {
		t.Errorf("servers of each profile: %v", profiles)
	}
	for _, name := range []string{"postgres", "migrate", "tranche", "interest", "prometheus", "alertmanager"} {
		if services[name].Image == "" {
			t.Errorf("there is no service %s", name)
		}
	}
}

// What Compose mounts into others' programs is what these take.
func TestComposeConfigurations(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("NAME", "nats-1")
	options := testenv.Must(natsserver.ProcessConfigFile(filepath.Join(root, "deploy", "compose", "nats.conf")))(t)
	if options.ServerName != "nats-1" || !options.JetStream || options.StoreDir != "/data" || len(options.Routes) != 3 {
		t.Errorf("nats.conf makes a server %s of %d routes, JetStream %v in %s", options.ServerName, len(options.Routes),
			options.JetStream, options.StoreDir)
	}
	for name, file := range map[string]string{
		"prometheus.yml": "compose/prometheus.yml", "rules.yml": "prometheus/rules.yml",
	} {
		text := strings.ReplaceAll(read(t, filepath.Join(root, "deploy", file)), "/etc/prometheus/", "")
		testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	output(t, command(t.Context(), installed(t, "promtool"), "check", "config", filepath.Join(dir, "prometheus.yml")))
	output(t, command(t.Context(), installed(t, "amtool"), "check-config", "deploy/compose/alertmanager.yml"))
}

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
