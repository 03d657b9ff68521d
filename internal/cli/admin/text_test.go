package admin

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/forecast"
)

func TestAuditChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, detail, want string }{
		{`{"chunk":500}`, `{"chunk":100}`, `{}`, "chunk 500 → 100"},
		{`{"a":1,"b":"x","same":2}`, `{"b":"y","c":true,"same":2}`, `{}`, "a 1 → none, b x → y, c none → yes"},
		{`{"hold":null}`, `{"hold":"operator"}`, `{"reason":"lunch","by":""}`, "hold none → operator, reason lunch"},
		{"", "", `{"items":3,"failed":true,"keys":0,"codes":null,"force":false}`, "failed yes, items 3"},
		{`{"auto":true}`, `{"auto":false}`, `{"codes":["A","B"]}`, `auto yes → no, codes ["A","B"]`},
		{`{"\u001b[31m":"a"}`, `{"\u001b[31m":"\u001b[1m"}`, `"odd"`, `\x1b[31m a → \x1b[1m`},
		{"", "", `{"long":"` + strings.Repeat("x", 500) + `"}`, "long " + strings.Repeat("x", 500)},
		{`{"hold":null}`, `{"hold":"operator","by":"ann","detail":"lunch"}`,
			`{"reason":"lunch","by":"ann","hold":"operator"}`, "detail none → lunch, hold none → operator"},
		{`{"generation":1}`, `{"generation":2}`, `{"generation":2,"items":3}`, "generation 1 → 2, items 3"},
		{"", `{"plan":"p","chunk":500,"rate":0}`, `{"plan":"p"}`, "chunk 500, plan p, rate 0"},
		{"", "", "", ""},
	} {
		e := client.AuditEntry{
			Actor: "ann", Before: json.RawMessage(c.before), After: json.RawMessage(c.after), Detail: json.RawMessage(c.detail),
		}
		testenv.Same(t, auditChange(&e), c.want, "%s → %s (%s)", c.before, c.after, c.detail)
	}
}

func TestPastTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 15:04":     time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
		"2026-01-31T15:04:05":  time.Date(2026, 1, 31, 15, 4, 5, 0, time.Local),
		"2026-01-31T15:04:05Z": time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
	} {
		if at, err := cli.PastTime(text); err != nil || !at.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, at, err, want)
		}
	}
	testenv.Same(t, time.Since(testenv.Must(cli.PastTime("90m"))(t)).Round(time.Minute), 90*time.Minute, "90m")
	for _, text := range []string{"", "now", "-5m", "31.1.2026", "0001-01-01T00:00:00Z"} {
		at, err := cli.PastTime(text)
		testenv.Fails(t, err, "%q is taken as %v", text, at)
	}
}

func TestLimitsOfEndpointsAreRead(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{
		"--max-in-flight 1 10000 none, not 0 10001 x 1.5", "--concurrency 1 1024 default, not 0 1025 none",
		"--rate 0.5 none, not 0 -1 NaN Inf", "--request-rate 10/s none, not 0/s 10", "--chunk-cap 0, not 5",
		"--breaker closed, not open",
	} {
		good, bad, _ := strings.Cut(flag, ", not ")
		name, good, _ := strings.Cut(good, " ")
		for text := range strings.FieldsSeq(good + " " + bad) {
			_, err := parsed[endpointsSet](t, "e", name+"="+text)
			if ok := slices.Contains(strings.Fields(good), text); (err == nil) != ok ||
				err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%s %s: %v", name, text, err)
			}
		}
	}
}

// parsed is a command with its arguments, as the program reads them.
func parsed[Command any](t *testing.T, args ...string) (command Command, err error) {
	t.Helper()
	line := testenv.Must(kong.New(&command, cli.Limits()))(t)
	_, err = line.Parse(args)
	return command, err
}

// A token of one namespace may acknowledge items of one batch, by the path of that.
func TestItemsOfOneBatch(t *testing.T) {
	t.Parallel()
	const a, b = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58", "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d59"
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = strings.TrimPrefix(r.URL.Path, "/api/v1/trackers/")
		_, _ = io.WriteString(w, `{"newly":1,"completed":[]}`)
	}))
	t.Cleanup(server.Close)
	cl := testenv.Must(client.New(server.URL))(t)
	for items, want := range map[string]string{
		a + ":0:17": a + "/ack", a + ":0:17 " + a + ":0:100-199 " + a + ":all": a + "/ack",
		a + ":0:17 " + b + ":all": "ack", a + ":0:17 " + b + ":0:17": "ack", "all": "ack", "x:0:17": "ack",
	} {
		ack := trackerAck{Refs: strings.Fields(items)}
		testenv.NoError(t, ack.Run(t.Context(), &cli.Console{Out: io.Discard}, cl))
		testenv.Same(t, path, want, "%s goes to", items)
	}
	testenv.Says(t, (&trackerAck{Refs: []string{"all"}, Code: new("")}).Validate(), "--code is empty", "an ack")
}

// An invariant is reported in words, whether it holds or not.
func TestInvariantsHaveWords(t *testing.T) {
	t.Parallel()
	holds := reportText(&doctor.Report{})
	for _, rule := range doctor.Rules() {
		line := string(rule.Invariant) + " "
		bad := reportText(&doctor.Report{Found: 1,
			Violations: []doctor.Violation{{Invariant: rule.Invariant, What: "it is"}}})
		if rule.Words == "" || !strings.Contains(holds, rule.Words) || !strings.Contains(holds, line) ||
			!strings.Contains(bad, rule.Words) {
			t.Errorf("%s has no words in\n%s%s", rule.Invariant, holds, bad)
		}
	}
}

func TestTypesOfSteps(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, schema, golang, script string }{
		{"scalars",
			`{"type":"object","required":["s","n","i","b","-"],"properties":{"s":{"type":"string"},"n":{"type":"number"},
				"i":{"type":"integer"},"b":{"type":"boolean"},"-":{"type":"string"}}}`,
			"struct {\n\tX string `json:\"-,\"`\n\tB bool `json:\"b\"`\n\tI int64 `json:\"i\"`\n" +
				"\tN float64 `json:\"n\"`\n\tS string `json:\"s\"`\n}",
			"{\n  \"-\": string;\n  b: boolean;\n  i: number;\n  n: number;\n  s: string;\n}"},
		{"optional",
			`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}},"n":{"type":"number"},
				"x":{}}}`,
			"struct {\n\tA []string `json:\"a,omitempty\"`\n\tN *float64 `json:\"n,omitempty\"`\n" +
				"\tX any `json:\"x,omitempty\"`\n}",
			"{\n  a?: Array<string>;\n  n?: number;\n  x?: unknown;\n}"},
		{"nested",
			`{"type":"object","required":["o"],"properties":{"o":{"type":"object","properties":{"p":{"type":"integer"}}}}}`,
			"struct {\n\tO struct {\n\t\tP *int64 `json:\"p,omitempty\"`\n\t} `json:\"o\"`\n}",
			"{\n  o: {\n    p?: number;\n  };\n}"},
		{"names that collide, or are no words",
			`{"type":"object","required":["a b","a-b","7"],"properties":{"a b":{"type":"string"},"a-b":{"type":"string"},
				"7":{"type":"string"}}}`,
			"struct {\n\tX7 string `json:\"7\"`\n\tAB string `json:\"a b\"`\n\tAB2 string `json:\"a-b\"`\n}",
			"{\n  \"7\": string;\n  \"a b\": string;\n  \"a-b\": string;\n}"},
		{"a name that no tag carries", `{"type":"object","properties":{"a\"` + "`" + `,b":{"type":"string"}}}`,
			"map[string]any", "{\n  \"a\\\"`,b\"?: string;\n}"},
		{"a map", `{"type":"object","additionalProperties":{"type":"integer"}}`,
			"map[string]int64", "Record<string, number>"},
		{"an array", `{"type":"array"}`, "[]any", "Array<unknown>"},
		{"no type", `{"oneOf":[{"type":"string"}]}`, "any", "unknown"},
	} {
		for lang, want := range map[string]string{
			"go": "\npackage inputs\n\n// YearEndInput is what endpoint e reads in step year-end.\ntype YearEndInput " +
				test.golang + "\n",
			"ts": "\n// YearEndInput is what endpoint e reads in step year-end.\nexport type YearEndInput = " +
				test.script + ";\n",
		} {
			got, err := typesText("p", lang, []stepInput{{"year-end", "e", json.RawMessage(test.schema)}})
			got, found := strings.CutPrefix(got, "// Code generated by tranche plan types p; DO NOT EDIT.\n")
			if err != nil || !found || aligned(got) != aligned(want) {
				t.Errorf("%s in %s: %v, got\n%s\nwant\n%s", test.name, lang, err, got, want)
			}
		}
	}
	both := []stepInput{{"a-b", "e", json.RawMessage(`{}`)}, {"a_b", "e", json.RawMessage(`{}`)}}
	text, err := typesText("p", "go", both)
	if err != nil || !strings.Contains(text, "type ABInput any") || !strings.Contains(text, "type ABInput2 any") {
		t.Errorf("steps of one name: %v, %s", err, text)
	}
}

// aligned is a text without the spaces by which gofmt puts columns under one another.
func aligned(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "\t") {
			lines[i] = strings.Join(strings.Fields(line), " ")
		}
	}
	return strings.Join(lines, "\n")
}

// Limits that are not named stay, and only who says so keeps everything.
func TestLimitsThatAreSet(t *testing.T) {
	t.Parallel()
	type settings = client.RetentionSettings
	was := settings{Age: "90d", MaxCount: 7}
	for name, c := range map[string]struct {
		given string
		want  settings
		wrong string // part of the error
	}{
		"none":           {"", was, "--keep-all"},
		"one":            {"--max-bytes=1GiB", settings{Age: "90d", MaxCount: 7, MaxBytes: 1 << 30}, ""},
		"one off":        {"--age=off", settings{MaxCount: 7}, ""},
		"all off":        {"--age=off --max-count=off", settings{KeepAll: true}, ""},
		"keep all":       {"--keep-all", settings{KeepAll: true}, ""},
		"keep all but":   {"--keep-all --age=3d", was, "leave it out"},
		"no number":      {"--max-count=few", was, "--max-count"},
		"less than none": {"--max-count=-1", was, "--max-count"},
		"no size":        {"--max-bytes=0", was, "a size like 50GiB"},
	} {
		set := was
		given, err := parsed[retentionSet](t, append(strings.Fields(c.given), "runs")...)
		if err == nil {
			given.change(&set)
		}
		right := err == nil && c.wrong == "" || err != nil && c.wrong != "" && strings.Contains(err.Error(), c.wrong)
		if !right || set != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, set, err, c.want, c.wrong)
		}
	}
}

// A file of ids and ranges is told apart line by line; what is neither goes to the server, which says what is wrong,
// and the command says on which line that stands.
func TestAckLines(t *testing.T) {
	t.Parallel()
	const batch = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"
	lines := &ackLines{unit: "ids.txt: line", Scanner: linesOf(strings.NewReader(strings.Join([]string{
		"\ufeff" + batch + ":0:1", "", "  " + batch + ":0:2-3 ", batch + ":4", batch + ":4-7", batch + ":all", "0:17",
		batch + ":0:01", "garbage",
	}, "\r\n")))}
	piece, err := lines.fill("REFUSED")
	if err != nil || piece.count() != 8 || piece.set.Code != "REFUSED" {
		t.Errorf("%+v, %v", piece, err)
	}
	testenv.SameList(t, piece.set.IDs, []string{batch + ":0:1", batch + ":0:01"}, "ids")
	want := []string{batch + ":0:2-3", batch + ":4", batch + ":4-7", batch + ":all", "0:17", "garbage"}
	testenv.SameList(t, piece.set.Ranges, want, "ranges")
	for location, want := range map[string]string{
		"body.ids[1]": "ids.txt: line 8: wrong", "body.ranges[5]": "ids.txt: line 9: wrong", "body.ids[2]": "the server's",
		"body.code": "the server's",
	} {
		refused := &client.ProblemError{Problem: client.Problem{Detail: "the server's",
			Errors: []*client.ErrorDetail{{Location: location, Message: "wrong"}}}}
		testenv.Same(t, lines.place(refused, piece).Error(), want, "%s", location)
	}
	testenv.Same(t, testenv.Must(lines.fill(""))(t).count(), 0, "after the end there")
	long := &ackLines{unit: "argument", Scanner: linesOf(strings.NewReader("\n" + strings.Repeat("x", 2*maxAckLine)))}
	_, err = long.fill("")
	testenv.Says(t, err, "argument 2: ", "a line without an end")
}

func TestCanaryText(t *testing.T) {
	t.Parallel()
	testenv.Same(t, canaryText(nil, 0), "", "no canary")
	text := canaryText(&client.EndpointCanaryView{State: "5% of the requests go to v2", Compared: []client.VersionStats{
		{Endpoint: "v2", Requests: 8, Items: 4000, Failed: 48, Retried: 8, Timeouts: 1, P50Millis: 250, P95Millis: 310,
			Codes: []client.CodeCount{{Code: "odd", Items: 40}, {Code: "busy", Items: 8}}}, {Endpoint: "v1"}}}, 0)
	for _, want := range []string{"5% of the requests go to v2, since",
		"8  4,000   1.20%        8         1  250ms  310ms  40 odd, 8 busy", "v1             0      0       -"} {
		testenv.Has(t, text, want, "the canary")
	}
}

func TestConditionsOfOneKindKeepTheirDetails(t *testing.T) {
	t.Parallel()
	of := []client.Condition{{Kind: "k", Detail: "from 1 to 2"}, {Kind: "k", Detail: "from 3 to 4"}}
	text := healthText(&client.Health{Conditions: of, Kinds: []client.KindSummary{{Kind: "k"}}}, 0)
	testenv.Has(t, text, of[0].Detail, "health")
	testenv.Has(t, text, of[1].Detail, "health")
}

const nightPlan = `
steps:
  - {name: check, endpoint: checks, chunk: 100, in_flight: 8}
  - {name: send, endpoint: mails, chunk: 100, in_flight: 8, needs: [check], barrier: approve}
`

// A run is simulated without a server; errors name the flag and what is accepted.
func TestSimulate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "night.yaml")
	testenv.NoError(t, os.WriteFile(file, []byte(nightPlan), 0o600))
	play := func(change func(*simulateCommand)) (string, error) {
		s := &simulateCommand{Plan: file, Items: 80_000, Latency: []string{"check=1s", "send=500ms±50ms"},
			Start: "2099-01-31T22:00"} // 100 s, then 50 s
		change(s)
		var out bytes.Buffer
		err := s.Run(t.Context(), &cli.Console{In: strings.NewReader(""), Out: &out, Err: &out}, nil)
		return out.String(), err
	}
	for name, c := range map[string]struct {
		change func(*simulateCommand)
		says   []string
	}{
		"alone": {func(s *simulateCommand) { s.DoneBy = "22:10" }, []string{"Jan 31 22:02:3", "22:10:00", ": met\n",
			"8 requests in flight by its in_flight", "step send is approved immediately", "█"}},
		"an outage": {func(s *simulateCommand) {
			s.Outage, s.DoneBy = []string{"check@22:01+20m"}, "22:10"
		}, []string{"Jan 31 22:22:3", "late by 12m"}},
		"an outage by another clock": {func(s *simulateCommand) {
			at := testenv.Must(time.ParseInLocation("2006-01-02T15:04", "2099-01-31T22:01", time.Local))(t)
			s.Outage = []string{"check@" + at.In(time.FixedZone("", 3600)).Format(time.RFC3339) + "+20m"}
		}, []string{"Jan 31 22:22:3"}},
		"slow":     {func(s *simulateCommand) { s.Slow = []string{"check=2x@22:00+1h"} }, []string{"Jan 31 22:04:1"}},
		"retries":  {func(s *simulateCommand) { s.Retries = []string{"check=50%"} }, []string{"Jan 31 22:03:2"}},
		"settings": {func(s *simulateCommand) { s.Set = []string{"check.in_flight=4"} }, []string{"Jan 31 22:04:1"}},
	} {
		out, err := play(c.change)
		for _, says := range c.says {
			if err != nil || !strings.Contains(out, says) {
				t.Errorf("%s: %v; want %q in\n%s", name, err, says, out)
			}
		}
	}
	for says, change := range map[string]func(*simulateCommand){
		"the latency of its requests is unknown":   func(s *simulateCommand) { s.Latency = s.Latency[:1] },
		`no step "mail"; it has: check, send`:      func(s *simulateCommand) { s.Latency = []string{"mail=1s"} },
		`invalid time "fast"; want one like 200ms`: func(s *simulateCommand) { s.Latency = []string{"send=fast"} },
		`invalid share "2"; want 0%`:               func(s *simulateCommand) { s.Retries = []string{"send=2"} },
		`invalid factor "a"`:                       func(s *simulateCommand) { s.Slow = []string{"send=ax@23:00+1m"} },
		`send@25:00+1m: invalid time`:              func(s *simulateCommand) { s.Outage = []string{"send@25:00+1m"} },
		`invalid span ""; want how long it lasts`:  func(s *simulateCommand) { s.Outage = []string{"send@23:00"} },
		"send: want one like":                      func(s *simulateCommand) { s.Outage = []string{"send"} },
		`--set send.color=1: no setting "color"`:   func(s *simulateCommand) { s.Set = []string{"send.color=1"} },
		`--set mail.rate=1: the run has no step`:   func(s *simulateCommand) { s.Set = []string{"mail.rate=1"} },
		`--done-by: invalid time "noon"`:           func(s *simulateCommand) { s.DoneBy = "noon" },
		`invalid time "2001-01-31T22:00"`:          func(s *simulateCommand) { s.Start = "2001-01-31T22:00" },
		"more than ten years": func(s *simulateCommand) {
			s.Items, s.Latency = 1_000_000_000, []string{"check=24h", "send=1s"}
		},
		"not before 2099-01-31T22:00": func(s *simulateCommand) { s.DoneBy = "2099-01-31T21:00" },
	} {
		out, err := play(change)
		testenv.Says(t, err, says, "%s", out)
	}
}

// What a rerun requested again is not a retry.
func TestAProfileTellsRetriesFromRerun(t *testing.T) {
	t.Parallel()
	n := &forecast.Network{Steps: []forecast.Step{{}}}
	profile(n, map[string]int{"send": 0}, []client.StepReport{{Name: "send", Requests: 22, Asked: 220, Retried: 20,
		Done: 100, P50Seconds: 1}})
	testenv.Same(t, n.Steps[0].Cost.Again, 0.1, "of the items are retried")
}
