package main

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// An empty word, or one that is not text, is a mistake in the command line, whatever the server would make of it. There
// is no server here.
func TestWordsThatSayNothingAreRefused(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	try := func(text string, args ...string) {
		t.Helper()
		b.want(b.tranche(args...), 2, text)
	}
	try("<run> is empty", "run", "show", "")
	try("<run> is empty", "run", "rerun", "", "--failed")
	try("<key> is empty", "run", "item", "last", "")
	try("--against is empty", "run", "report", "last", "--against", "")
	try("--item is empty", "run", "explain", "last", "--item=")
	try("--max-failed is empty", "run", "set", "last", "--max-failed", "")
	try("--idempotency-key is empty", "run", "start", "--endpoint", "e", "--items", "-", "--idempotency-key", "")
	try("<name> is empty", "endpoints", "set", "", "--rate", "5")
	try("<plan> is empty", "plan", "show", "")
	try("name a run, or give --all", "run", "cancel", "")
	try("is not UTF-8; what is not text", "run", "rerun", "last", "--key", "\xff")
	try("--rate: NaN is not within", "run", "set", "last", "--rate", "NaN")
	try("from 0.001 to 10000000, or none", "endpoints", "set", "e", "--rate", "1e308")
	try("--limit must be 1 to 500, got 501", "run", "list", "--limit", "501")
	try("--expect must be 0 or more, got -1", "run", "seal", "last", "--expect=-1")
	try("--heartbeat must be 100ms to 20s, got 50ms", "serve", "--heartbeat", "50ms")
	try("invalid time \"soon\"", "run", "list", "--since", "soon")
	try("versions are not deleted one by one", "plan", "delete", "year-end@1")
	try("is empty; it must be YAML", "plan", "apply", "-")
	try(`{"error":"<run> is empty`, "run", "show", "", "--json")
	try(`"exit":2}`, "run", "--json", "shwo")
	b.want(runProgram(t, nil, "", "help", "run", "list"), 0, "Usage: tranche run list", "--result")
	b.want(runProgram(t, nil, "", "--version"), 0, "tranche ")
	for shell, says := range map[string]string{"bash": "complete", "zsh": "bashcompinit", "fish": "complete"} {
		r := runProgram(t, nil, "", "completion", shell)
		b.want(r, 0, says, " tranche")
		if strings.Contains(r.out, filepath.Dir(os.Args[0])) {
			t.Errorf("the script for %s names a file of this machine:\n%s", shell, r.out)
		}
	}
	try("is a directory", "plan", "apply", t.TempDir())
}

// There is a page of each command that is not a secret, and it has what --help has.
func TestManPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := runProgram(t, nil, "", "man", dir); r.code != 0 {
		t.Fatalf("man: exit code %d: %s", r.code, r.err)
	}
	for page, want := range map[string]string{
		"tranche.1": `tranche\-run`, "tranche-run.1": `\-\-endpoint`, "tranche-serve.1": "TRANCHE_DATABASE",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) || !strings.HasPrefix(string(text), ".TH TRANCHE") {
			t.Errorf("%s: %v, without %s:\n%.1000s", page, err, want, text)
		}
	}
	_, err := os.Stat(filepath.Join(dir, "tranche-man.1"))
	testenv.Fails(t, err, "a hidden command has a page")
}

const rootsVariable = "TRANCHE_TEST_ROOTS"

// In an image with no files the program knows the authorities that the system does not.
func TestAuthoritiesWithoutFiles(t *testing.T) {
	t.Parallel()
	if os.Getenv(rootsVariable) != "" { // the child: a process reads them once
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Fatalf("there are none (%v)", err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAuthoritiesWithoutFiles$")
	cmd.Env = append(os.Environ(), rootsVariable+"=1", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The sample has every setting, and what it gives as defaults is what serve takes.
func TestConfigSample(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	sample := runProgram(t, nil, "", "config")
	b.want(sample, 0, "#listen: 127.0.0.1:8480", "#poll-interval: 500ms")
	b.want(runProgram(t, nil, "", "schema", "plan"), 0, `"description": "items in a request, or auto`)
	b.want(runProgram(t, nil, "", "schema", "plans"), 2, `must be one of "plan","schedule"`)
	help := runProgram(t, nil, "", "serve", "--help")
	named := regexp.MustCompile(`(?m)^#([a-z0-9-]+): (.*)$`).FindAllStringSubmatch(sample.out, -1)
	placeholder := regexp.MustCompile(`^[A-Z=;.]+$`)
	var file strings.Builder
	for _, setting := range named {
		testenv.Has(t, help.out, "--"+setting[1], "serve has no flag for %s", setting[1])
		if !placeholder.MatchString(setting[2]) && setting[2] != "true" {
			file.WriteString(setting[1] + ": " + setting[2] + "\n")
		}
	}
	global := strings.Count(runProgram(t, nil, "", "nodes", "--help").out, "($TRANCHE_")
	if flags := strings.Count(help.out, "($TRANCHE_") - global; len(named) < 30 || len(named) < flags-1 { // --config
		t.Errorf("the sample has %d settings, serve %d flags of its own", len(named), flags)
	}
	path := filepath.Join(t.TempDir(), "tranche.yaml")
	testenv.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
	b.want(runProgram(t, nil, "", "serve", "--config", path, "--poll-interval", "1ms"), 2, "must be 50ms to 30s")
	b.want(runProgram(t, nil, "", "serve", "--heartbeat", "2s"), 2, "a third of --session-ttl (5s)")
}

// With --log-format json there is nothing but JSON, whatever happens; and NATS_URL is for services.
func TestEveryLineIsJSON(t *testing.T) {
	t.Parallel()
	r := runProgram(t, []string{"NATS_URL=nats://127.0.0.1:1"}, "", "serve", "--log-format", "json",
		"--listen", "127.0.0.1:0", "--database", "postgres://127.0.0.1:1/x", "--database-wait", "0s")
	(&bench{T: t}).want(r, 1, "NATS_URL is set, but only services read it", `"exit":1`)
	for line := range strings.Lines(r.err) {
		if !json.Valid([]byte(line)) {
			t.Errorf("this is not JSON: %s", line)
		}
	}
}

// The settings of a node may be read by systemd, and sourced by a shell that then runs a command: both take them alike.
func TestFilesOfSettingsCanBeSourced(t *testing.T) {
	t.Parallel()
	sample := testenv.Must(os.ReadFile("../../deploy/systemd/tranche.env"))(t)
	page := testenv.Must(os.ReadFile("../../docs/operate/deploy.md"))(t)
	setting := regexp.MustCompile(`(?m)^#?((?:TRANCHE|NATS)_[A-Z_]+)=(.+)$`)
	found := setting.FindAllSubmatch(append(sample, page...), -1)
	if len(found) < 15 {
		t.Errorf("only %d settings were found", len(found))
	}
	for _, is := range found {
		name, value := string(is[1]), strings.Trim(string(is[2]), "'") // as systemd reads it
		file := filepath.Join(t.TempDir(), "tranche.env")
		testenv.NoError(t, os.WriteFile(file, []byte(name+"="+string(is[2])+"\n"), 0o600))
		out := testenv.Must(exec.CommandContext(t.Context(), "sh", "-c",
			"set -a; . "+file+`; printf %s "$`+name+`"`).CombinedOutput())(t)
		testenv.Same(t, string(out), value, "a shell makes of %s", is[0])
	}
}
