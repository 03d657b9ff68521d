package gather_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

const yearEnd = `# The year-end statements.
name: year-end
steps:
  - name: statement
    endpoint: bank_statement
    chunk: 250        # one query each
    in_flight: 8
    max_attempts: 5
    timeout: 1m30s
    retry_backoff: 0s
    needs: []
`

func TestParse(t *testing.T) {
	t.Parallel()
	want := &gather.Plan{Name: "year-end", Steps: []gather.Step{{
		Name: "statement", Endpoint: "bank_statement", StepSettings: workqueue.StepSettings{Chunk: 250, InFlight: 8,
			MaxAttempts: 5, Timeout: 90 * time.Second, MaxBackoff: 5 * time.Minute},
	}}}
	for name, text := range map[string]string{
		"as written":  yearEnd,
		"with CRLF":   strings.ReplaceAll(yearEnd, "\n", "\r\n"),
		"with a mark": "\ufeff" + yearEnd,
		"with dashes": "---\n" + yearEnd,
		"flow": `{name: "year-end", steps: [{name: statement, endpoint: bank_statement, chunk: 250, in_flight: 8,
			max_attempts: 5, timeout: '1m30s', retry_backoff: 0s}]}`,
	} {
		got, err := gather.Parse("file", []byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

const full = `name: p
priority: -3
max_failed: 0.50%
fail_fast: 5/9
canary: 100
canary_auto_approve: true
steps:
- name: a
  endpoint: b
  chunk: 2000
  chunk_auto: true
  chunk_bytes: 512KiB
  chunk_time: 1s
  in_flight: 256
  in_flight_auto: true
  rate: 0.5
  max_attempts: 4
  timeout: 1m
  retry_backoff: 1s
  max_backoff: 1m
  retry_codes: [BUSY]
  no_retry_codes:
  - GONE
`

func TestParseTakesEveryField(t *testing.T) {
	t.Parallel()
	want := everything()
	want.Steps[0].Needs = nil
	got, err := gather.Parse("file", []byte(full))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// found makes the size of a step's chunks one that is found, in the default bounds.
func found(time time.Duration) func(*gather.Step) {
	return func(s *gather.Step) { s.Chunk, s.ChunkAuto, s.ChunkTime = workqueue.AutoChunk, true, time }
}

// Numbers that may be auto have two fields each.
func TestParseAuto(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]func(*gather.Step){
		"":                                   func(*gather.Step) {},
		"chunk: auto":                        found(5 * time.Second),
		"chunk_auto: true":                   found(5 * time.Second),
		"chunk: auto, timeout: 2s":           func(s *gather.Step) { found(2e9)(s); s.Timeout = 2e9 },
		"chunk_time: 1s, chunk: auto":        found(time.Second),
		"chunk: 70, chunk_auto: false":       func(s *gather.Step) { s.Chunk = 70 },
		"in_flight: auto":                    func(*gather.Step) {},
		"in_flight: 64":                      func(s *gather.Step) { s.InFlight, s.InFlightAuto = 64, false },
		"in_flight_auto: true, in_flight: 9": func(s *gather.Step) { s.InFlight = 9 },
		"retry_backoff: 10m": func(s *gather.Step) {
			s.RetryBackoff, s.MaxBackoff = 10*time.Minute, 10*time.Minute
		},
		"rate: 1000":        func(s *gather.Step) { s.Rate = 1000 },
		"chunk_bytes: 2048": func(s *gather.Step) { s.ChunkBytes = 2048 },
	} {
		plan := gather.Single("e")
		want(&plan.Steps[0])
		got, err := gather.Parse("e", []byte("steps: [{endpoint: e, "+fields+"}]"))
		if err != nil || !reflect.DeepEqual(got, plan) {
			t.Errorf("%s: got %+v, %v", fields, got, err)
		}
	}
}

const gathering = `name: statements
steps:
- name: statement
  local: statement_pdf
  needs: [accounts, transactions, branches, history]
  inputs: [item, accounts, transactions]
- name: branches
  http:
    url: "http://127.0.0.1:8081/branches/{item.branch}"
  optional: true
- {name: accounts, endpoint: bank_accounts}
- {name: transactions, direct: bank_transactions, needs: [accounts], inputs: [], barrier: true}
- {name: history, sql: {source: ledger, query: "SELECT id, n FROM t WHERE id = ANY($1)"}, chunk: 7}
`

// Plans of several steps, of all kinds; what is not said depends on the kind.
func TestParseSteps(t *testing.T) {
	t.Parallel()
	plan := testenv.Must(gather.Parse("file", []byte(gathering)))(t)
	var got []string
	for _, s := range plan.Ordered().Steps {
		got = append(got, fmt.Sprintf("%s %s %s %v %v %v %d %v %v", s.Name, s.Kind(), s.TargetKey(), s.Needs, s.InputParts(),
			s.SeesItem(), s.Chunk, s.Optional, s.Barrier))
	}
	want := []string{
		"branches http http:127.0.0.1:8081 [] [] true 50 true false",
		"accounts endpoint bank_accounts [] [] true 500 false false",
		"transactions direct bank_transactions [accounts] [] false 500 false true",
		"history sql sql:ledger [] [] true 7 false false",
		"statement local local:statement_pdf [accounts transactions branches history] [accounts transactions] true 100 " +
			"false false",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseFillsInDefaults(t *testing.T) {
	t.Parallel()
	got, err := gather.Parse("statement", []byte("steps:\n- endpoint: statement\n"))
	if err != nil || !reflect.DeepEqual(got, gather.Single("statement")) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What is wrong with a value is said as [gather.Plan.Validate] and package strictyaml say it; here it is where that is.
func TestParseErrorsNameThePlace(t *testing.T) {
	t.Parallel()
	const fields = "name, priority, done_by, gentle, max_failed, fail_fast, canary, canary_auto_approve, order_by, " +
		"values, partitions, on_failure, items, steps"
	for _, tc := range []struct{ text, want string }{
		{"", "0:0: it is empty"},
		{"# only a comment\n", "0:0: it is empty"},
		{
			"hello",
			"1:1: want fields: " + fields + `; this is the text "hello"`,
		},
		{"stops:\n- a\n", `1:1: unknown field "stops", did you mean steps?; there are ` + fields},
		{"steps:\n- x\n", `2:3: steps[0]: want fields: name, endpoint, direct, http, sql, local, needs`},
		{"steps:\n- {}\n", "2:3: steps[0].endpoint: a step needs an endpoint"},
		{"steps: {a: b}\n", "1:9: steps: want a list, each entry after a dash; this is a group of fields"},
		{
			"steps:\n- endpoint: a\n  chunks: 5\n",
			`3:3: unknown field "chunks", did you mean chunk?; there are name, endpoint, direct, http, sql, local, needs`,
		},
		{
			"steps:\n- endpoint: a\n  chunk: \"5\"\n",
			`3:10: steps[0].chunk: want a whole number like 500, or auto; this is the text "5"`,
		},
		{"steps:\n- endpoint: a\n  needs: [b]\n", `3:11: steps[0].needs[0]: there is no step "b"`},
		{"steps:\n- {name: é, endpoint: b, chunk: 0}\n", `2:10: steps[0].name: "é"`},
		{
			"steps:\n- {name: \"日本\", endpoint: b, chunk: x}\n",
			`2:36: steps[0].chunk: want a whole number like 500, or auto; this is the text "x"`,
		},
		{
			"steps:\n- endpoint: a\n  needs: [b]\n- endpoint: b\n  needs: [a]\n",
			"3:10: steps[0].needs: the steps wait for each other: a → b → a; take one of these needs out",
		},
		{"steps:\n- http: x\n", "2:9: steps[0].http: want fields: url"},
		{"steps:\n- sql: {source: a, query: SELECT $1}\n", "2:3: steps[0].name: a name is needed"},
		{"max_failed: 1.5\n", "1:13: max_failed: want a number of items like 500, a percentage"},
		{"fail_fast: 9/5\n", "1:12: fail_fast: want failures N of the first M outcomes, like 200/400, at most 10000; or off"},
		{"steps:\n- endpoint: a\n  chunk: auto\n  chunk_auto: false\n", "4:15: steps[0].chunk_auto: without auto, "},
		{"steps:\n- endpoint: a\n  chunk_bytes: 512KB\n", "3:16: steps[0].chunk_bytes: want a size like 512KiB"},
		{"steps:\n- endpoint: a\n  rate: fast\n", "3:9: steps[0].rate: want items a second as a number like 1000"},
		{strings.Repeat("[", 60000), "1:9: the nesting is deeper than 8"},
		{strings.Repeat("x", 64<<10+1), "0:0: it has 65537 bytes; a plan has at most 65536"},
		{"name: \"\u202e\"\nsteps: [a: 1]\n", `2:9: unknown field "a"`},
	} {
		text, want := tc.text, tc.want
		_, err := gather.Parse("file", []byte(text))
		var bad *strictyaml.Error
		if !errors.As(err, &bad) || bad.Kind != "plan" || bad.Name != "file" {
			t.Errorf("%.60q: got %v", text, err)
			continue
		}
		testenv.Has(t, fmt.Sprintf("%d:%d: %s", bad.Line, bad.Column, bad.Problem), want, "%.60q", text)
		if len(err.Error()) > 1000 {
			t.Errorf("%.60q: the error has %d bytes", text, len(err.Error()))
		}
	}
}

func TestParseErrorShowsTheLine(t *testing.T) {
	t.Parallel()
	_, err := gather.Parse("year-end.yaml", []byte(strings.Replace(yearEnd, "chunk: 250", "chunk: 9000", 1)))
	want := `plan year-end.yaml:6:12: steps[0].chunk: 9000 is not within 1 to 8192
    6 |     chunk: 9000        # one query each
                   ^`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(yearEnd)
	f.Add("steps:\n- {endpoint: a, needs: [b, c]}\n")
	f.Add("a: &x [*x]\n")
	f.Add("- - - ? :\n")
	f.Add("steps: [{a: |\n b}]")
	f.Add(full)
	f.Add(gathering)
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := gather.Parse("p", []byte(text))
		if err != nil {
			var bad *strictyaml.Error
			if !errors.As(err, &bad) || bad.Error() == "" {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		testenv.MustSame(t, plan.Validate(), nil, "%q was taken, but", text)
		stored := testenv.Must(plan.MarshalJSON())(t)
		again, err := gather.Parse("p", stored)
		if err != nil || !reflect.DeepEqual(again, plan) {
			t.Fatalf("%q came back from %s as %+v, %v", text, stored, again, err)
		}
	})
}

// The plans of the examples are plans.
func TestExamples(t *testing.T) {
	t.Parallel()
	const dir = "../examples/plans"
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("no plans in %s: %v", dir, err)
	}
	for _, e := range entries {
		text := testenv.Must(os.ReadFile(filepath.Join(dir, e.Name())))(t)
		testenv.Must(gather.Parse(e.Name(), text))(t)
	}
}
