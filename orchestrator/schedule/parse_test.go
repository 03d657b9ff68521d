package schedule_test

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

const full = `name: statements
cron: "30 2 1 * *"
zone: Europe/Berlin
plan: year-end@3
settings:
  rate: 100
  chunk: auto
  retry_codes: [BUSY]
  steps:
    compose: {chunk: 50}
run_name: "{schedule} {due.date}"
params: {year: "{due.year}", full: true, n: 3}
items:
  url: "https://crm.example.com/{params.year}?as-of={due.date}"
  format: csv
  key: id
  on_duplicate: skip
overlap: queue
misfire: all
misfire_limit: 3
jitter: 5m
not_before: "22:00"
done_by: "06:00"
on_late: cancel
start_deadline: 1h
start_attempts: 7
`

func TestParseReadsEverything(t *testing.T) {
	t.Parallel()
	s := testenv.Must(schedule.Parse("file", []byte(full)))(t)
	if s.Name != "statements" || s.Plan != "year-end@3" || s.Overlap != schedule.OverlapQueue ||
		s.Misfire != schedule.MisfireAll || s.MisfireLimit != 3 || s.OnLate != schedule.LateCancel ||
		s.StartAttempts != 7 || s.Window.DoneBy.String() != "06:00" || *s.Settings.Rate != 100 ||
		s.Settings.Steps["compose"].Chunk.Value != 50 || s.Items.OnDuplicate != "skip" {
		t.Errorf("it is read as %+v", s)
	}
	// Half past two at night of 1 November is the first in the window that is open since 22:00.
	due, _ := s.Next(instant(t, "2026-10-15T00:00:00Z"))
	r, err := s.Resolve(due)
	if err != nil || r.RunName != "statements 2026-11-01" || r.Params["year"] != "2026" || r.Params["full"] != "true" ||
		r.Items.URL != "https://crm.example.com/2026?as-of=2026-11-01" || r.Items.Key != "id" {
		t.Errorf("it resolves to %+v, %v", r, err)
	}
}

// The day before had no midnight.
func TestVariables(t *testing.T) {
	t.Parallel()
	s := testenv.Must(schedule.Parse("daily", []byte(`{cron: "30 0 * * *", zone: America/Santiago, endpoint: e,
  params: {x: "a/b?{due.hour}"}, items: {url: "http://h/{params.x}/{due}"},
  run_name: "{{{due.yesterday}}} {due.week} {due.time} {due.unix} {schedule}"}`)))(t)
	r, err := s.Resolve(instant(t, "2026-09-07T03:30:00Z"))
	if err != nil || r.RunName != "{2026-09-06} 2026-W37 00:30 1788751800 daily" ||
		r.Items.URL != "http://h/a%2Fb%3F00/2026-09-07T03%3A30%3A00Z" {
		t.Errorf("it resolves to %+v, %v", r, err)
	}
}

// TestVariablesOfURLsArriveWhole has values that mean something in a URL: its server reads them as they are.
func TestVariablesOfURLsArriveWhole(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"R&D", "a=b", "1 + 1", "ann@bank.example", "50%", "x;y", "#1", "../up", "Zürich", ""} {
		s, err := schedule.Parse("daily", []byte(`{every: 1h, endpoint: e, params: {x: `+strconv.Quote(value)+`},
  items: {url: "http://h/{params.x}/items?branch={params.x}&at={due}"}}`))
		testenv.NoError(t, err)
		r := testenv.Must(s.Resolve(instant(t, "2026-01-01T00:00:00Z")))(t)
		u := testenv.Must(url.Parse(r.Items.URL))(t)
		want := url.Values{"branch": {value}, "at": {"2026-01-01T00:00:00Z"}}
		if u.Path != "/"+value+"/items" || !maps.EqualFunc(u.Query(), want, slices.Equal) || u.Fragment != "" {
			t.Errorf("%q became %s: path %q, query %v", value, r.Items.URL, u.Path, u.Query())
		}
	}
}

// TestParseSaysWhatIsWrong changes one thing at a time.
func TestParseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const rest = "endpoint: e\nitems: {file: f.csv}\n"
	for text, want := range map[string]string{
		`cron: "TZ=UTC 0 0 * * *"`:                         "s:1:7: cron: a time zone does not belong in the expression",
		`cron: "CRON_TZ="`:                                 "use the field zone",
		`cron: "@reboot"`:                                  "unrecognized descriptor: @reboot",
		`cron: "@every 0s"`:                                "0s is too often; at least 1m0s",
		`cron: "@every 10m0.5s"`:                           "want whole seconds",
		`cron: "@every"`:                                   "want an interval like 15m or 12h, a day being 24h; this is \"\"",
		`every: 59s`:                                       "s:1:8: every: want a duration like 90s, 2m or 1h30m, within 1m",
		`every: 10000h`:                                    "within 1m to 8784h",
		`every: daily`:                                     "want a duration like 90s",
		`cron: "0 0 30 2 *"`:                               "never fires: there is no such day",
		`cron: "0 0 0 * * *"`:                              "it has six fields, and seconds are not part",
		`cron: "0 0 * *"`:                                  "it has 4 fields; want five fields: minute hour",
		`cron: "60 0 * * *"`:                               `minute "60": want 0 to 59`,
		`cron: "0 0 * * 8"`:                                `day-of-week "8": want 0 to 7`,
		`cron: "0 0 * * 7-5"`:                              "beginning of range (7) beyond end of range (5)",
		`cron: "*/61 0 * * *"`:                             "minute \"*/61\": the step is 61, and the field has 60 values",
		`cron: "0 0 L * *"`:                                "day-of-month \"L\": want *, a number",
		`cron: "0 0 * * 1#2"`:                              "L, W and # are not known",
		`cron: "0,,5 0 * * *"`:                             "has an empty part",
		`cron: "*-5 0 * * *"`:                              "minute \"*-5\": want *",
		`cron: "5/0 0 * * *"`:                              "step of range should be a positive number",
		`cron: "0 0 * foo *"`:                              "failed to parse int from foo",
		"cron: 0 0 * * *\nevery: 5m":                       "s:2:8: every: give one of cron and every",
		"zone: UTC":                                        "cron: give one of cron",
		"every: 5m\nzone: Mars/Phobos":                     "s:2:7: zone: no time zone \"Mars/Phobos\"",
		"every: 5m\nzone: Local":                           "is another zone on each machine",
		"every: 5m\nzone: ../../etc/passwd":                "no time zone",
		"every: 5m\nplan: p":                               "plan: give one of plan",
		"every: 5m\nmisfire_limit: 3":                      "it goes with misfire: all",
		"every: 5m\non_late: pause":                        "s:2:10: on_late: it goes with done_by",
		"every: 5m\nnot_before: '6:00'":                    "not_before: want a time of day like 06:00",
		"every: 5m\ndone_by: '24:00'":                      "want a time of day",
		"every: 5m\nnot_before: '06:00'\ndone_by: '06:00'": "so that nothing could ever start",
		"every: 5m\njitter: 25h":                           "or 1h30m, within 0s to 24h",
		"every: 5m\noverlap: kill":                         "overlap: want one of skip, queue, cancel_old",
		"every: 5m\nrun_name: '{due.dat}'":                 "s:2:11: run_name: there is no variable {due.dat}",
		"every: 5m\nrun_name: 'a}'":                        "a single brace",
		"every: 5m\nrun_name: '{params.x}'":                "there is no variable {params.x}",
		"every: 5m\nparams: {a: '{params.b}', b: x}":       "there is no variable {params.b}",
		"every: 5m\nsettings: {speed: 3}":                  `s:2:12: unknown field "speed"; there are priority`,
		"every: 5m\nsettings: {rate: fast}":                "settings.rate: want",
		"every: 5m\nsettings: {steps: {a: {chunk: 0x5}}}":  "settings.steps.a.chunk: want",
		"every: 5m\nsettings: {chunk: 9000}":               "settings.chunk: ",
		"every: 5m\nname: 'a b'":                           "s:2:7: name: ",
		"evry: 5m":                                         `unknown field "evry", did you mean every?; there are name, cron`,
		"every: 5m\nstart_attempts: 0":                     "start_attempts: want a whole number within 1 to 100",
	} {
		_, err := schedule.Parse("s", []byte(text+"\n"+rest))
		testenv.Says(t, testenv.As[*strictyaml.Error](t, err, "%s", text), want, "%s", text)
	}
	for items, want := range map[string]string{
		"{}":                          "items: give one of file, url and sql",
		"{file: a, url: 'http://h/'}": "items: give one of file, url and sql",
		"{sql: {source: crm}}":        "items.sql.query: give the query",
		"{sql: {query: SELECT 1}}":    "items.sql.source: name the source",
		"{sql: {source: c, query: '{params.x}'}}":   "params may not be part of SQL",
		"{sql: {source: c, query: a}, format: csv}": "rows have no format",
		"{url: 'ftp://h/x'}":                        "want an address like https://",
		"{url: 'http://u:p@h/'}":                    "no user or password in it",
		"{url: 'http://{schedule}.h/'}":             "has a variable; it must be written out",
		"{file: a, format: xlsx}":                   "items.format: want one of csv, ndjson, parquet",
	} {
		_, err := schedule.Parse("s", []byte("every: 5m\nendpoint: e\nitems: "+items+"\n"))
		testenv.Says(t, err, want, "items %s", items)
	}
	at := parse(t, "every: 5m\n").Wrong("plan", "there is none")
	testenv.Says(t, at, "schedule s:1:7: plan: there is none\n", "a field is located as")
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	now := instant(t, "2026-01-01T00:00:00Z")
	for text, want := range map[string]string{
		"cron: 0 0 13 * 5":                        "it is due on the days of either",
		"cron: 0 0 */2 * 1":                       "to mean both, and this one does not",
		"cron: 0 0 * * 5":                         "",
		"cron: 0 0 */1 * 5":                       "",
		"every: 5m\nmisfire: all":                 "overlap: queue has them wait",
		"every: 5m\njitter: 5m":                   "jitter: up to 5m0s is longer than the 5m0s between two due times",
		"cron: 0 9,17 * * *\njitter: 8h":          "longer than the 8h0m0s",
		"cron: 0 9 * * *\njitter: 5m":             "",
		"every: 5m\nmisfire: all\noverlap: queue": "",
	} {
		got := strings.Join(parse(t, text+"\n").Warnings(now), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q; want %q", text, got, want)
		}
	}
	// What the warning says is so: of odd days and of Mondays, either will do. The 3rd was a Saturday, the 12th a Monday.
	s := parse(t, "cron: 0 0 */2 * 1\n")
	const want = "07 00:00+00, 09 00:00+00, 11 00:00+00, 12 00:00+00, 13 00:00+00"
	testenv.Same(t, shown(t, s.NextN(now.AddDate(0, 0, 5), 5), "UTC"), want, "it is due at")
}

func tryExpression(t *testing.T, expression string) (valid bool) {
	t.Helper()
	text := "cron: '" + strings.ReplaceAll(expression, "'", "''") +
		"'\nzone: America/Santiago\nendpoint: e\nitems: {file: f}\n"
	s, err := schedule.Parse("s", []byte(text))
	if err != nil {
		_ = testenv.As[*strictyaml.Error](t, err, "%q", expression)
		return false
	}
	after := time.Date(2026, 9, 5, 3, 59, 59, 1, time.UTC)
	for range 3 {
		due, ok := s.Next(after)
		if !ok || !due.After(after) {
			t.Errorf("%q: after %s comes %s, %v", expression, after, due, ok)
			return true
		}
		if again, _ := s.Next(due.Add(-1)); !again.Equal(due) {
			t.Errorf("%q: %s is due after %s, and %s just before it", expression, due, after, again)
		}
		after = due
	}
	return true
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		full, "cron: TZ=0", "cron: '@every 9223372036854775807ns'", "cron: '0 0 29 2 *'", "every: 5m",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := schedule.Parse("s", []byte(text))
		if err == nil {
			s.Preview(time.Unix(1_800_000_000, 0), 3)
		}
		tryExpression(t, text)
	})
}
