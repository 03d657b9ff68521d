package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The sample has every setting, and what it gives as defaults is what serve takes.
func TestConfigSample(t *testing.T) {
	t.Parallel()
	b := &bench{T: t}
	sample := runProgram(t, nil, "", "config")
	b.want(sample, 0, "#listen: 127.0.0.1:8480", "#poll: 500ms")
	help := runProgram(t, nil, "", "serve", "--help")
	named := regexp.MustCompile(`(?m)^#([a-z0-9-]+): (.*)$`).FindAllStringSubmatch(sample.out, -1)
	placeholder := regexp.MustCompile(`^[A-Z=;.]+$`)
	var file strings.Builder
	for _, setting := range named {
		if !strings.Contains(help.out, "--"+setting[1]) {
			t.Errorf("serve has no flag for %s", setting[1])
		}
		if !placeholder.MatchString(setting[2]) && setting[2] != "true" {
			file.WriteString(setting[1] + ": " + setting[2] + "\n")
		}
	}
	if flags := strings.Count(help.out, "($TRANCHE_"); len(named) < 30 || len(named) < flags-5 {
		t.Errorf("the sample has %d settings, serve some %d flags", len(named), flags)
	}
	path := filepath.Join(t.TempDir(), "tranche.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(runProgram(t, nil, "", "serve", "--config", path, "--poll", "1ms"), 2, "--poll is 1ms")
	b.want(runProgram(t, nil, "", "serve", "--heartbeat", "2s"), 2, "a third of --session-ttl (5s)")
}

// With --log-format json there is nothing but JSON, whatever happens; and NATS_URL is for services.
func TestEveryLineIsJSON(t *testing.T) {
	t.Parallel()
	r := runProgram(t, []string{"NATS_URL=nats://127.0.0.1:1"}, "", "serve", "--log-format", "json",
		"--listen", "127.0.0.1:0", "--database", "postgres://127.0.0.1:1/x", "--database-wait", "0s")
	(&bench{T: t}).want(r, 1, "NATS_URL is set, and only services read it", `"exit":1`)
	for line := range strings.Lines(r.err) {
		if !json.Valid([]byte(line)) {
			t.Errorf("this is no JSON: %s", line)
		}
	}
}
