package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

// Keys for several requests are one choice: beside evidence, some of the requests may find nothing.
func TestManyKeysBesideEvidence(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "keys")
	var text strings.Builder
	for i := range 3*cli.MaxKeysOfRequest + 1 {
		fmt.Fprintf(&text, "C-%d\n", i)
	}
	testenv.NoError(t, os.WriteFile(name, []byte(text.String()), 0o600))
	for _, tc := range []struct {
		name    string
		found   map[string]int // by the first key of the requests that find something
		dry     bool
		fail    string // the request that is refused for another reason
		done    int
		changed []string // the requests that change something
		want    string
	}{
		{name: "first and last", found: map[string]int{"C-0": 7, "C-300000": 1}, done: 8,
			changed: []string{"C-0", "C-300000"}},
		{name: "dry", found: map[string]int{"C-100000": 3, "C-200000": 4}, dry: true, done: 7},
		{name: "none", want: "matches nothing"},
		{name: "loading", found: map[string]int{"C-0": 7}, fail: "C-100000", want: "it is loading"},
	} {
		var changed []string
		r := &redoing[int]{
			chosen: &chosen{itemChoice: itemChoice{Keys: name}, evidence: evidence{Service: "statements"}},
			dry:    tc.dry, did: "done",
			ask: func(_ context.Context, keys []string, dry bool, _ ...client.CallOption) (int, error) {
				problem := func(kind, detail string) error {
					return &client.ProblemError{Problem: client.Problem{Status: http.StatusConflict, Type: kind, Detail: detail}}
				}
				switch n := tc.found[keys[0]]; {
				case keys[0] == tc.fail:
					return 0, problem("", "it is loading")
				case n == 0:
					return 0, problem(client.NothingToDo, "the evidence matches nothing")
				default:
					if !dry {
						changed = append(changed, keys[0])
					}
					return n, nil
				}
			},
			add:   func(sum, one *int) int { return *sum + *one },
			items: func(n *int) int64 { return int64(*n) },
		}
		done, err := r.do(t.Context(), &cli.Console{})
		refused, _ := errors.AsType[*client.ProblemError](err)
		if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(refused.Detail, tc.want) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.want)
		}
		if err == nil && done != tc.done || !slices.Equal(changed, tc.changed) {
			t.Errorf("%s: %d, by requests from %v; want %d, %v", tc.name, done, changed, tc.done, tc.changed)
		}
	}
}

func TestAnExplanationReadsWell(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	since, next := now.Add(-90*time.Second), now.Add(30*time.Second)
	resume := client.Advice{Do: "let it continue", Command: "tranche run resume R"}
	e := &client.Explanation{Run: workqueue.NewRunID().String(), Plan: "year-end\x1b[31m",
		State: "running", Items: 1_000_000,
		Done: 999_588, Missing: 412, At: now, Summary: "412 of 1,000,000 items are missing: waiting for a service",
		Last: &client.LastEvent{At: since, What: "a request was published"},
		Groups: []client.MissingGroup{{
			State: "sent", Reason: string(health.NoListeners), Items: 412, Slices: 2, Step: "s", Endpoint: "statement",
			Owner: client.OwnerOperator, Who: "whoever runs the services of endpoint statement",
			Why: strings.Repeat("no service listens on it ", 12), Since: &since, Next: "someone takes them", When: &next,
			Advice: []client.Advice{{Do: "start a service", Command: "tranche  endpoints show statement"}},
		}, {
			State: "ready", Reason: string(health.RunHeld), Items: 3, Owner: client.OwnerOperator, Who: "whoever",
			Steps:  []client.StepPart{{Step: "a", Items: 3}, {Step: "b", Items: 2}},
			Advice: []client.Advice{resume, {Do: "or, when its data is wrong, correct that", Command: "tranche run correct"}},
		}, {
			State: "held", Reason: string(health.RunHeld), Items: 1, Owner: client.OwnerOperator, Who: "whoever",
			Advice: []client.Advice{resume},
		}},
		Notes: []string{"the run is paused; resume it with: `tranche run resume 0198f6b1-7c8e-7000-8000-000000000000`"},
	}
	for _, room := range []int{0, 60, 80, 200} {
		text := cli.ExplanationText(e, room)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if !strings.HasPrefix(lines[0], "412 of 1,000,000 items are missing") {
			t.Errorf("it does not begin with what matters: %s", lines[0])
		}
		for _, line := range lines {
			if len([]rune(line)) > cli.ExplainWidth(room) && !strings.Contains(line, "year-end") &&
				!strings.Contains(line, "`tranche run resume") {
				t.Errorf("in %d columns a line has %d: %s", room, len(line), line)
			}
		}
		if strings.Count(text, resume.Command+"\n") != 1 || strings.Contains(text, "or        or") ||
			strings.Index(text, resume.Command) > strings.Index(text, "\nrun ") {
			t.Errorf("what to do does not stand first, once:\n%s", text)
		}
		if _, command, _ := strings.Cut(e.Notes[0], "`"); !strings.Contains(text, "`"+command) {
			t.Errorf("in %d columns a command is broken:\n%s", room, text)
		}
		for _, want := range []string{
			"  steps     a 3, b 2\n", "412 items sent in 2 requests: no listener", "operator: whoever runs", "1m30s ago",
			"in 30s (",
			"\n            tranche  endpoints show statement\n", `year-end\x1b[31m`,
		} {
			if room != 60 && !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}

// The dashboard has the same table.
func TestAShareIsTheSamePercentageEverywhere(t *testing.T) {
	t.Parallel()
	for share, want := range map[float64]string{
		0: "0%", 1e-7: "0.01%", 3.0 / 20_000: "0.02%", 0.0049: "0.49%", 0.0146: "1.5%", 0.07: "7%", 0.125: "13%",
		0.29: "29%", 0.5: "50%", 0.946: "94.6%", 0.9949: "99.49%", 0.9999999: "99.99%", 1: "100%",
	} {
		testenv.Same(t, percent(share), want, "%v is", share)
	}
}

func TestBarFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var run client.RunDocument
	run.State, run.Items, run.Done, run.Failed, run.Rate = "running", 1_000_000, 999_998, 1, 123_456
	run.Forecast = &client.Forecast{P10: at(time.Now(), 3600), P50: at(time.Now(), 3725), P90: at(time.Now(), 4000)}
	for _, columns := range []int{20, 60, 80, 100, 200} {
		line := barLine(run, columns)
		if n := len([]rune(line)); n >= columns {
			t.Errorf("%d characters on %d columns: %s", n, columns, line)
		}
		if columns >= 100 && !strings.Contains(line, " 99.99%") {
			t.Errorf("before the end it is not 99.99%%: %s", line)
		}
	}
}

// The last state of the bar stays, on a line of its own.
func TestTheBarStays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{term: &cli.Console{Err: &out}, live: true}
	p.end()
	if out.Len() > 0 {
		t.Errorf("a bar that was never shown became %q", out.String())
	}
	var run client.RunDocument
	run.State, run.Items, run.Done = "completed", 3, 3
	p.show(run)
	p.end()
	last := out.String()[strings.LastIndex(out.String(), "\r"):]
	if !strings.Contains(last, "100%") || !strings.HasSuffix(last, "completed\n") {
		t.Errorf("at the end there is %q", last)
	}
	out.Reset()
	p.lines = 0
	p.draw([]string{"one", "two", "three"})
	p.draw([]string{"ONE", "TWO", "THREE"})
	testenv.Same(t, out.String(), "\r\x1b[Kone\n\x1b[Ktwo\n\x1b[Kthree\x1b[2A\r\x1b[KONE\n\x1b[KTWO\n\x1b[KTHREE",
		"bars over those before")
}

// To add a flag of run start that the API has, a field is added to its flags, and nothing else.
func TestAFlagOfRunStartIsOneField(t *testing.T) {
	t.Parallel()
	var line struct {
		Start struct {
			runStart
			Fake string `json:"plan_name,omitempty" help:"A fake."`
		} `cmd:""`
	}
	parser, err := kong.New(&line)
	if err == nil {
		err = SayHelp(parser.Model)
	}
	if err == nil {
		_, err = parser.Parse([]string{"start", "--fake=x", "--endpoint=e", "--sql=SELECT 1", "--source=s", "--param=a=b",
			"--param", "c=d=e,f", "--idempotency-key=k", "--rate=5", "--dry-run", "--on-duplicate=skip", "--key=nr"})
	}
	testenv.NoError(t, err)
	var got client.RunSettings
	testenv.NoError(t, cli.Fill(&got, &line.Start))
	testenv.Same(t, string(testenv.Must(json.Marshal(got))(t)), `{"endpoint":"e","key":"nr","idempotency_key":"k",`+
		`"on_duplicate":"skip","sql":"SELECT 1","sql_source":"s","plan_name":"x","params":{"a":"b","c":"d=e,f"},"rate":5}`,
		"settings")
	_, err = parser.Parse([]string{"start", "--endpoint=e", "--param=a=1", "--param=a=2"})
	testenv.Says(t, err, "give each name once", "a parameter twice")
}
