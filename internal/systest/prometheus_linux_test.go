package systest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const prometheusDir = root + "/deploy/prometheus"

// ofPrometheus finds a program of Debian's package prometheus.
func ofPrometheus(t *testing.T, name string) string {
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
	tool := ofPrometheus(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = prometheusDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// prometheus is a real one.
type prometheus struct {
	url string
	log *testenv.Log
}

// hurried is the rules with shorter times, since no one waits for a quarter of an hour here. What they ask, and which
// there are, stays.
func hurried(t *testing.T) string {
	t.Helper()
	text := testenv.Must(os.ReadFile(filepath.Join(prometheusDir, "rules.yml")))(t)
	rules := regexp.MustCompile(`for: \d+m`).ReplaceAllString(string(text), "for: 1s")
	rules = regexp.MustCompile(`\[\d+m\]`).ReplaceAllString(rules, "[15s]")
	return strings.Replace(rules, "(tranche_schedule_oldest_overdue_seconds) > 60",
		"(tranche_schedule_oldest_overdue_seconds) > 1", 1)
}

const prometheusConfig = `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: tranche
    static_configs: [{targets: [%s]}]
`

// scrape starts a Prometheus that scrapes some nodes.
func scrape(t *testing.T, targets ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"rules.yml": hurried(t), "prometheus.yml": fmt.Sprintf(prometheusConfig, strings.Join(targets, ", ")),
	} {
		testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := &prometheus{log: &testenv.Log{}}
	cmd := exec.Command(ofPrometheus(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0",
		"--enable-feature=native-histograms")
	cmd.Stderr = p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testenv.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("prometheus said:\n%.5000s", p.log)
		}
	})
	listens := regexp.MustCompile(`"?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)`)
	until(t, "prometheus listens", func() bool {
		found := listens.FindStringSubmatch(p.log.String())
		if found != nil {
			p.url = "http://" + found[1]
		}
		return found != nil
	})
	return p
}

// ask reads an answer of the API of Prometheus, if there is one.
func (p *prometheus) ask(t *testing.T, path string, into any) (answered bool) {
	t.Helper()
	req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil))(t)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // it is not there yet
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return false
	}
	testenv.NoError(t, json.NewDecoder(answer.Body).Decode(into))
	return true
}

// firing lists the alerts that fire, with the endpoint that they are about, if they are; nil: Prometheus does not say.
func (p *prometheus) firing(t *testing.T) map[string]bool {
	t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if !p.ask(t, "/api/v1/alerts", &answer) {
		return nil
	}
	names := map[string]bool{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names[strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["endpoint"])] = true
		}
	}
	return names
}

func (p *prometheus) fires(t *testing.T, alerts ...string) {
	t.Helper()
	for _, alert := range alerts {
		begun := time.Now()
		until(t, alert+" fires", func() bool { return p.firing(t)[alert] })
		t.Logf("%s fires after %.0f s", alert, time.Since(begun).Seconds())
	}
}

// goesOut waits until alerts do not fire any more.
func (p *prometheus) goesOut(t *testing.T, alerts ...string) {
	t.Helper()
	for _, alert := range alerts {
		begun := time.Now()
		until(t, alert+" goes out", func() bool { now := p.firing(t); return now != nil && !now[alert] })
		t.Logf("%s is out after %.0f s", alert, time.Since(begun).Seconds())
	}
}

// Each alert fires when something goes wrong, and goes out when it is fixed. What goes wrong is there at once, since
// the leader reads the database every ten seconds only.
func TestAlertsFireAndGoOut(t *testing.T) {
	t.Parallel()
	w, files := setup(t), t.TempDir()
	o := &office{world: w, binary: testenv.Program(t, root)}
	serve := func(metrics string) *server {
		return o.serve("--metrics-listen", metrics, "--schedule-files", files)
	}
	first, second := serve(testenv.QuietAddr(t)), serve(testenv.QuietAddr(t))
	p := scrape(t, first.metrics, second.metrics)
	nc := testenv.Conn(t, w.ns)
	endService := serveAccounts(t, nc, "dies", "")
	serveAccounts(t, nc, "fails", "*")
	until(t, "a node leads, as Prometheus knows, and nothing is wrong", func() bool {
		var answer struct{ Data struct{ Result []any } }
		p.ask(t, "/api/v1/query?query=tranche_database_scrape_success==1", &answer)
		now := p.firing(t)
		return len(answer.Data.Result) == 1 && now != nil && len(now) == 0
	})

	// A run that fails, a service that dies, a node that dies, and a schedule that is stuck.
	o.mustWith(first, testenv.Accounts(100_000), "run", "start", "--endpoint", "dies", "--items", "-", "--chunk", "10",
		"--rate", "100", "--name", "patient")
	// It is held after some seconds, and its alert goes out then: what takes long is before it.
	o.mustWith(first, testenv.Accounts(2000), "run", "start", "--endpoint", "fails", "--items", "-", "--chunk", "5",
		"--rate", "40", "--max-failed", "300", "--name", "failing")
	p.fires(t, "TrancheItemsFail fails")
	endService()
	release := o.holdSchedule(first, files)
	o.kill(second)
	p.fires(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStalled dies")
	// Nothing is wrong there; for as long as a leader is late with its reading it may look so.
	p.goesOut(t, "TrancheEndpointStalled fails", "TrancheDatabaseUnread", "TrancheDeadLetters")

	// All of it is fixed.
	serve(second.metrics)
	serveAccounts(t, nc, "dies", "")
	o.must(first, "run", "cancel", "failing", "--reason", "the test")
	release()
	o.must(first, "schedule", "pause", "stuck")
	o.must(first, "schedule", "resume", "stuck")
	p.goesOut(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStalled dies", "TrancheItemsFail fails")
}

// holdSchedule makes a schedule that is due, and that someone keeps the leader from: a session that has forgotten to
// commit. release ends it.
func (o *office) holdSchedule(s *server, files string) (release func()) {
	o.Helper()
	testenv.NoError(o, os.WriteFile(filepath.Join(files, "items.csv"), []byte(testenv.Accounts(1)), 0o600))
	o.mustWith(s, "name: stuck\nevery: 1h\nendpoint: dies\nitems: {file: items.csv, key: id}\n", "schedule", "apply",
		"-")
	conn := testenv.Must(pgx.Connect(o.Context(), o.url))(o)
	o.Cleanup(func() { _ = conn.Close(context.Background()) })
	testenv.Must(conn.Exec(o.Context(), `UPDATE schedule SET next_due = tranche_now()`))(o)
	tx := testenv.Must(conn.Begin(o.Context()))(o)
	testenv.Must(tx.Exec(o.Context(), `SELECT FROM schedule FOR UPDATE`))(o)
	return func() {
		if err := tx.Rollback(o.Context()); err != nil {
			o.Error(err)
		}
	}
}
