package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const yearEndPlan = `# The year-end statements.
name: year-end
priority: 7
max_failed: 1%
steps:
  - name: make
    endpoint: echo
    chunk: 250
    in_flight: 8
`

// written is a file with a text.
func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := written(t, "y.yaml", yearEndPlan)
	b.want(b.tranche("plan", "list"), 0, "no plans on record", "tranche plan apply")
	b.want(b.tranche("plan", "apply", file), 0, "plan year-end is on record, version 1", "tranche run start year-end")
	b.want(b.tranche("plan", "apply", file), 0, "plan year-end is unchanged: version 1")
	b.want(b.pipe(strings.Replace(yearEndPlan, "250", "100", 1), "plan", "apply", "-"), 0,
		"plan year-end is version 2 now, after version 1")
	b.want(b.tranche("plan", "list"), 0, "year-end", "make to echo")
	b.want(b.tranche("plan", "list", "year-end"), 0, "VERSION")
	shown := b.tranche("plan", "show", "year-end@1")
	b.want(shown, 0, "plan year-end@1, applied", "the newest version is 2")
	if shown.out != yearEndPlan {
		t.Errorf("shown is %q", shown.out)
	}
	var document struct {
		Version int
		Spec    struct{ Steps []struct{ Chunk int } }
	}
	r := b.tranche("--json", "plan", "show", "year-end")
	if err := json.Unmarshal([]byte(r.out), &document); err != nil || document.Version != 2 ||
		document.Spec.Steps[0].Chunk != 100 {
		t.Errorf("as JSON: %s, %v", r.out, err)
	}
	for _, args := range [][]string{
		{"plan", "list"}, {"plan", "list", "year-end"}, {"plan", "apply", file}, {"plan", "delete", "year-end"},
	} {
		if r := b.tranche(append([]string{"--json"}, args...)...); r.code != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%v: %d, not one JSON document: %s%s", args, r.code, r.out, r.err)
		}
	}
	b.want(b.tranche("plan", "show", "year-end"), 1, "was deleted", "tranche plan list")
	b.want(b.tranche("plan", "delete", "year-end"), 1, "was deleted")
	b.want(b.tranche("plan", "show", "year-end@x"), 2, "versions count from 1, like year-end@1")
	b.want(b.tranche("plan", "apply", "no-such.yaml"), 2, "no-such.yaml", "no such file")
}

// Types follow what the services of a plan's steps announce; a step whose service does not gives none for any.
func TestTypesOfAPlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := written(t, "y.yaml", yearEndPlan)
	b.want(b.tranche("plan", "apply", file), 0)
	missing := b.tranche("plan", "types", "year-end")
	b.want(missing, 1, "do not say what they read: echo (step make)", "Start a service", "tranche endpoints show")
	if missing.out != "" {
		t.Errorf("types in spite of that: %s", missing.out)
	}
	b.echo(nil)
	golang := "type MakeInput struct {\n\tName *string `json:\"name,omitempty\"`\n}"
	b.wantSoon([]string{"plan", "types", "year-end"}, golang, "plan types year-end; DO NOT EDIT", "package inputs")
	b.want(b.tranche("plan", "types", file, "--lang", "ts"), 0, "export type MakeInput = {\n  name?: string;\n};")
	b.want(b.tranche("plan", "types", "year-end", "--step", "other"), 2, `no step "other" is done by a service`)
	b.want(b.tranche("plan", "types", "year-end@9"), 1, "year-end")
	bad := written(t, "bad.yaml", "steps: [{endpoint: 5}]")
	b.want(b.tranche("plan", "types", bad), 2, bad+":1:20", "endpoint: want text")
	b.want(b.tranche("--json", "plan", "types", file), 2, "types are source text")
}

func TestABadPlanNamesFileAndLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := written(t, "bad.yaml", strings.Replace(yearEndPlan, "250", "9000", 1))
	want := []string{bad + ":8:12: steps[0].chunk: 9000 is not within 1 to 8192", "chunk: 9000"}
	b.want(b.tranche("plan", "apply", bad), 1, want...)
	b.want(b.pipe(people, "run", "start", bad, "--items", "-"), 1, want...)
	tabbed := written(t, "tab.yaml", "steps:\n\t- endpoint: echo\n")
	b.want(b.tranche("plan", "apply", tabbed), 1, tabbed+":2:1: a tab; YAML is indented with spaces")
	b.want(b.pipe("", "plan", "apply", "-"), 2, "standard input is empty")
	b.want(b.tranche("plan", "apply", written(t, "a plan.yaml", "steps: [{endpoint: e}]\n")), 1, `"a plan": use A-Z`)
}

func TestARunOfAPlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := written(t, "y.yaml", yearEndPlan)
	b.want(b.tranche("plan", "apply", file), 0)
	start := func(code int, text string, args ...string) {
		t.Helper()
		b.want(b.pipe(people, append([]string{"run", "start", "--items", "-"}, args...)...), code, text)
	}
	start(0, "plan year-end@1, 3 items", "year-end", "--name", "newest")
	start(0, "plan year-end@1, 3 items", "year-end@1", "--chunk", "auto", "--chunk-time", "2s", "--chunk-bytes", "1MiB",
		"--in-flight", "auto", "--rate", "10", "--attempts", "5", "--backoff", "2s", "--max-backoff", "1m",
		"--retry-code", "BUSY", "--retry-code", "SLOW", "--never-retry", "GONE", "--slice-timeout", "1m",
		"--max-failed", "0.5%", "--canary", "2", "--canary-auto", "--priority=-3", "--name", "otherwise")
	start(0, "plan year-end, 3 items", file)
	start(0, "no service listens on endpoint echo", "--endpoint", "echo", "--max-failed", "none")
	b.want(b.tranche("--json", "run", "show", "newest"), 0, `"priority": 7`, `"max_failed": "1%"`)
	b.want(b.tranche("--json", "run", "show", "otherwise"), 0, `"priority": -3`, `"retry_codes": [`, `"SLOW"`,
		`"chunk_time": "2s"`, `"chunk_bytes": 1048576`, `"rate": 10`, `"max_failed": "0.5%"`, `"canary": 2`)

	start(2, `"nope" is neither a file here nor a plan on record`, "nope")
	start(2, "tranche plan list", "year-end@7")
	start(2, `"dir/nope" is neither a file here nor a plan on record`, "dir/nope")
	start(2, "no-plan.yaml", "no-plan.yaml")
	start(2, "either a plan or --endpoint", "year-end", "--endpoint", "echo")
	start(2, "--chunk: want a whole number like 500, or auto", "year-end", "--chunk", "many")
	start(2, "--in-flight: 0 is not within 1 to 10000", "year-end", "--in-flight", "0")
	start(2, "--attempts: 0 is not within 1 to 100", "year-end", "--attempts", "0")
	start(2, "--backoff: want a duration", "year-end", "--backoff", "5")
	start(2, "--slice-timeout: 0s is not", "year-end", "--slice-timeout", "0s")
	start(2, "--max-failed: want a number of items like 500, a percentage", "year-end", "--max-failed", "few")
	start(2, "--rate: -1 is not within", "year-end", "--rate=-1")
	start(2, `--retry-code: "a b"`, "year-end", "--retry-code", "a b")
	start(1, "chunk_time: it goes with chunk: auto only, and the chunk is 250", "year-end", "--chunk-time", "1s")
	start(1, "canary_auto: there is no canary", "year-end", "--canary-auto")
}
