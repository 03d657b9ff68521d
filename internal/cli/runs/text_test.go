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
		{name: "unknown keys", found: map[string]int{"C-0": 7}, fail: "C-100000", want: "unknown key"},
	} {
		var changed []string
		r := &redoing[int]{
			chosen: &chosen{itemChoice: itemChoice{Keys: name}, evidence: evidence{Service: "statements"}},
			dry:    tc.dry, did: "done",
			ask: func(_ context.Context, keys []string, dry bool, _ ...client.CallOption) (int, error) {
				problem := func(status int, detail string) error {
					return &client.ProblemError{Problem: client.Problem{Status: status, Detail: detail}}
				}
				switch n := tc.found[keys[0]]; {
				case keys[0] == tc.fail:
					return 0, problem(http.StatusUnprocessableEntity, "unknown key")
				case n == 0:
					return 0, problem(http.StatusConflict, "the evidence matches nothing")
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
	resume := client.Advice{Do: "let it go on", Command: "tranche run resume R"}
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
		Notes: []string{"the run is paused; go on with: `tranche run resume 0198f6b1-7c8e-7000-8000-000000000000`"},
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

func TestRerunSaysWhoLetsTheOthersGo(t *testing.T) {
	t.Parallel()
	again := &client.Rerun{Run: workqueue.NewRunID().String(), Items: 10, Held: 8, Generation: 2}
	testenv.Has(t, rerunText(again, false), "When the first have ended: tranche run approve", "with a canary that waits")
	text := rerunText(again, true)
	testenv.Has(t, text, "They follow by themselves, unless more of the first fail", "with one that goes on by itself")
}

func TestResetText(t *testing.T) {
	t.Parallel()
	done := client.Reset{Step: "transactions", Items: 50, Generation: 2, Steps: []client.StepReset{
		{Step: "transactions", Named: true, Reset: 50, Ready: 48, Withdrawn: 3},
		{Step: "statement", Kept: 40, Waiting: 9, LeftOut: 1},
	}, Notes: []string{"2 items are at step transactions waiting for step accounts"}}
	for name, c := range map[string]struct {
		change func(*client.Reset)
		want   []string
	}{
		"done": {func(*client.Reset) {}, []string{"resets 50 items at step transactions, as generation 2",
			"transactions  50 to be recomputed, 2 of them once the steps before are done, 3 withdrawn",
			"statement     40 kept unless a part changes, 9 waiting for the parts, 1 left out still",
			"waiting for step accounts", "then statement where a part changes", "tranche run watch"}},
		"dry":     {func(r *client.Reset) { r.DryRun = true }, []string{"dry run:", "would reset", "nothing was changed"}},
		"paused":  {func(r *client.Reset) { r.Paused = "by ann" }, []string{"paused (by ann)", "tranche run resume"}},
		"cascade": {func(r *client.Reset) { r.Cascade = true }, []string{"then statement for all of them"}},
	} {
		one := done
		c.change(&one)
		text := resetText(&one)
		for _, want := range c.want {
			testenv.Has(t, text, want, "%s", name)
		}
	}
	both := addResets(&done, &done)
	if both.Items != 100 || both.Steps[0].Reset != 100 || both.Steps[1].Kept != 80 || len(both.Notes) != 2 {
		t.Errorf("twice the same is %+v", both)
	}
}

func TestStepsReadWell(t *testing.T) {
	t.Parallel()
	run := &client.RunDocument{}
	run.Items = 1000
	run.Progress, run.State = 0.5, "running"
	run.Steps = []client.StepView{
		{Name: "accounts", Kind: client.KindDirect, Endpoint: "accounts", SeesItem: true, Items: 1000, Done: 990,
			Failed: 10, Progress: 1},
		{Name: "branches\x1b[31m", Kind: client.KindHTTP, Endpoint: "http:branches:8081", SeesItem: true, Optional: true},
		{Name: "statement", Kind: client.KindLocal, Endpoint: "local:pdf", Needs: []string{"accounts", "branches"},
			Inputs: []string{"accounts"}, Items: 1000, Waiting: 990, Skipped: 10, Barrier: true, Progress: 0.01},
	}
	text := runSteps(run)
	for _, want := range []string{
		"LEFT OUT", "endpoint accounts, by plain requests", "HTTP service branches:8081; optional",
		"needs accounts, branches",
		"sees accounts; waits at its barrier", "local function pdf", `branches\x1b[31m`, "100%",
	} {
		testenv.Has(t, text, want, "the text")
	}
	if line := plainLine(*run); !strings.Contains(line, "50%") || !strings.Contains(line, "accounts 100%") {
		t.Errorf("a line of progress: %s", line)
	}
}

func TestAnItemOfSeveralStepsReadsWell(t *testing.T) {
	t.Parallel()
	at := time.Now()
	text := cli.ItemText(&client.ItemView{Key: "C7", State: client.OutcomeFailed, Payload: []byte(`{}`),
		Steps: []client.ItemStep{
			{Name: "accounts", Endpoint: "accounts", State: "failed", Generation: 2, RecordedAt: &at, Service: "bank",
				Error:   &client.ItemError{Code: "NO_SUCH", Message: "none"},
				Earlier: []client.EarlierPart{{Generation: 1, Size: 1200, SHA256: strings.Repeat("ab", 32)}}},
			{Name: "logo", Endpoint: "http:h", State: "done", Generation: 1, Size: 12, SHA256: strings.Repeat("cd", 32),
				ContentType: "image/png", ResultBytes: []byte("123456789012"), Stale: true},
			{Name: "statement", Endpoint: "local:pdf", State: "skipped", LeftOutBy: []string{"accounts"}},
			{Name: "index", Endpoint: "sql:ledger", State: "waiting", WaitsFor: []string{"statement", "logo"}},
		}}, 0)
	for _, want := range []string{
		"generation 1, 1,200 bytes, sha256 abababababababab\n", "left out: step accounts failed", "by bank",
		"12 bytes of image/png", "being recomputed", "waiting for steps statement, logo", "source ledger", "NO_SUCH: none",
	} {
		testenv.Has(t, text, want, "the text")
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

func TestTheTimeOfAReRunIsThatOfItsGeneration(t *testing.T) {
	t.Parallel()
	run := &client.RunDocument{}
	run.Generation, run.Seconds = 1, 9.1
	if text := runHead(run) + conclusion(run); strings.Contains(text, "(generation") {
		t.Errorf("a run that was not run again:\n%s", text)
	}
	run.Generation = 2
	testenv.Same(t, strings.Count((runHead(run)+conclusion(run)), "9.1s (generation 2)"), 2, "after a re-run")
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

// A forecast is a time, or how long it takes after something that is waited for, or why there is none.
func TestForecastsAreSaid(t *testing.T) {
	t.Parallel()
	then := &client.Span{P10Seconds: 2400, P50Seconds: 2800, P90Seconds: 3300}
	for want, f := range map[string]*client.Forecast{
		"waits for approval of step send, then 40 to 55 min": {WaitsFor: "approval of step send", Then: then},
		"not yet: it takes items until it is sealed":         {WhyNot: "it takes items until it is sealed"},
	} {
		testenv.Same(t, forecastText(f), want, "the forecast")
	}
	by := time.Now().Add(time.Hour)
	run := client.RunSummary{DoneBy: &by, Forecast: &client.Forecast{WhyNot: "it waits"}}
	testenv.Same(t, endsText(&run), "not yet, to be done by "+by.Format("15:04"), "the end before its deadline")
	run.AtRisk = &client.AtRisk{Late: "5 min"}
	testenv.Same(t, endsText(&run), "not yet, 5 min late for "+by.Format("15:04"), "the end after its deadline")
	f := client.Forecast{P10: at(time.Now(), 60), P50: at(time.Now(), 70), P90: at(time.Now(), 90)}
	if got := forecastText(&f); !strings.Contains(got, " (") || !strings.Contains(got, " to ") {
		t.Errorf("%q has no band", got)
	}
	for want, s := range map[string]client.Span{"5 to 9 s": {P10Seconds: 5, P90Seconds: 9}, "30 s": {P10Seconds: 30,
		P90Seconds: 30.2}, "3.5 to 4.0 h": {P10Seconds: 12_600, P90Seconds: 14_400}} {
		testenv.Same(t, spanText(&s), want, "the span")
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
	err = cli.Fill(&got, &line.Start)
	text, _ := json.Marshal(got) // it has no error either
	const want = `{"endpoint":"e","key":"nr","idempotency_key":"k","on_duplicate":"skip","sql":"SELECT 1",` +
		`"sql_source":"s","plan_name":"x","params":{"a":"b","c":"d=e,f"},"rate":5}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	_, err = parser.Parse([]string{"start", "--endpoint=e", "--param=a=1", "--param=a=2"})
	testenv.Says(t, err, "give each name once", "a parameter twice")
}
