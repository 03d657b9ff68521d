package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStartByMultipart(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	send := func(head, items string) (int, string) {
		t.Helper()
		body := "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n" + head +
			"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"; filename=\"items\"\r\n\r\n" + items + "\r\n--x--\r\n"
		code, text := b.Ask(http.MethodPost, api.Prefix+"/runs", strings.NewReader(body),
			"Content-Type", "multipart/form-data; boundary=x")
		return code, string(text)
	}
	plan := testenv.Must(json.Marshal("name: year-end\nsteps:\n  - name: make\n    endpoint: echo\n    chunk: 7\n"))(t)
	if code, text := send(`{"plan":`+string(plan)+`}`, apitest.Three); code != 201 || !strings.Contains(text,
		`"items":3`) {
		t.Errorf("a good plan: %d %s", code, text)
	}
	if code, text := send(`{"plan":"steps: 3"}`, apitest.Three); code != 422 || !strings.Contains(text, "plan") {
		t.Errorf("a bad plan: %d %s", code, text)
	}
	if code, text := send(`{"endpont":"echo"}`, apitest.Three); code != 422 || !strings.Contains(text, "endpont") {
		t.Errorf("an unknown setting: %d %s", code, text)
	}
	more := apitest.Three + "\r\n--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\nid\n9"
	if code, text := send(`{"endpoint":"echo"}`, more); code != 422 || !strings.Contains(text, "send all items in one") {
		t.Errorf("a second part of items: %d %s", code, text)
	}
	code, _ := b.Ask(http.MethodPost, api.Prefix+"/runs",
		strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\n"+apitest.Three+"\r\n--x--\r\n"),
		"Content-Type", "multipart/form-data; boundary=x")
	testenv.Same(t, code, http.StatusUnprocessableEntity, "without settings")
	cut := "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"endpoint\":\"echo\"}" +
		"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\nid\n1\n2\n"
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs", strings.NewReader(cut),
		"Content-Type", "multipart/form-data; boundary=x")
	testenv.Same(t, code, http.StatusUnprocessableEntity, "items that end early: %s", text)
	runs, err := inspect.New(b.Store).Runs(t.Context(), inspect.RunFilter{})
	if err != nil || len(runs) != 1 || runs[0].Plan != "year-end" {
		t.Errorf("there should be the one good run: %+v, %v", runs, err)
	}
}

// PROOF: who may do what, 5 and 6.
func TestForeignersAreRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	runs := api.Prefix + "/runs"
	b.Refused(403, "another origin", http.MethodPost, runs+"?endpoint=echo", strings.NewReader(apitest.Three),
		"Origin", "https://evil.example")
	b.Refused(403, "another origin", http.MethodPost, runs+"/last/cancel", nil, "Sec-Fetch-Site", "cross-site")
	b.Refused(403, "evil.example", http.MethodGet, runs, nil, "Host", "evil.example")
	for path, host := range map[string]string{runs: "LocalHost:99", "/healthz": "10.244.1.7:8480",
		"/readyz": "10.244.1.7:8480"} { // probes come by address
		code, text := b.Ask(http.MethodGet, path, nil, "Host", host)
		testenv.Same(t, code, http.StatusOK, "%s for %s: %s", path, host, text)
	}
	b.Refused(405, "", http.MethodGet, runs+"/last/cancel", nil)
	for _, method := range []string{http.MethodGet, http.MethodOptions} { // there is no CORS
		answer := b.Send(method, runs, "", "Origin", "https://evil.example", "Access-Control-Request-Method", "GET")
		for name := range answer.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s is answered with the header %s", method, name)
			}
		}
	}
}

// PROOF: who may do what, 5.
// No GET changes anything: the whole description is walked.
func TestGETsChangeNothing(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	letter := b.AddLetter("echo", deadletter.DeadLetter{Body: []byte(`{}`)})
	stray := b.Stray(deadletter.Quarantined{Reason: "json", Body: []byte("{")})
	b.Apply("steps: [{endpoint: echo}]", "name=echo")
	put := func(path, kind, body string) (made struct{ ID string }) {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), "Content-Type", kind)
		if err := json.Unmarshal(text, &made); err != nil || code/100 != 2 {
			t.Fatalf("POST %s: %d %s", path, code, text)
		}
		return made
	}
	put("/collectors", "application/yaml", "{name: echo, endpoint: echo}")
	put("/collectors/echo/ops", "application/json", `{"ops":[{"key":"k","payload":1}]}`)
	put("/schedules", "application/yaml", "{name: echo, cron: 0 3 * * *, plan: echo, items: {file: a.csv}}")
	put("/alerts", "application/yaml", "{name: echo, when: {health: critical}, to: {command: page}}")
	batch := put("/trackers", "application/json", `{"owner":"me"}`).ID
	put("/trackers/"+batch+"/groups", "application/json", `{"items":9000}`)
	state := func() (state string) {
		t.Helper()
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT concat(
			(SELECT string_agg(r::text, ';') FROM batchrun r), (SELECT string_agg(w::text, ';') FROM work_slice w),
			(SELECT string_agg(md5(k::text), ';') FROM work_block k), (SELECT string_agg(d::text, ';') FROM dead_letter d),
			(SELECT string_agg(q::text, ';') FROM quarantine q), (SELECT count(*) FROM audit_log WHERE action <> 'read'),
			(SELECT string_agg(c::text, ';') FROM collector c), (SELECT string_agg(o::text, ';') FROM collector_op o),
			(SELECT string_agg(s::text, ';') FROM schedule s), (SELECT count(*) FROM schedule_occurrence),
			(SELECT string_agg(md5(g::text), ';') FROM tracker_group g),
			(SELECT string_agg(t::text, ';') FROM tracker_service t),
			(SELECT string_agg(a::text, ';') FROM alert a), (SELECT count(*) FROM alert_message))`).Scan(&state))
		return state
	}
	before := state()
	for op := range operations(b) {
		path, isGet := strings.CutPrefix(op, "GET ")
		if !isGet {
			continue
		}
		id := letter.String()
		switch {
		case strings.HasPrefix(path, "/quarantine"):
			id = fmt.Sprint(stray)
		case strings.HasPrefix(path, "/trackers"):
			id = batch
		}
		path = strings.NewReplacer("{run}", "last", "{key}", "2", "{name}", "echo", "{id}", id, "{version}", "1").
			Replace(path)
		want, query := http.StatusOK, ""
		switch {
		case path == "/events":
			b.Peek(path + "?topic=runs")
			continue
		case strings.HasSuffix(path, "/events"):
			b.Peek(path)
			continue
		case strings.HasSuffix(path, "/comparison"):
			query = "?against=last"
		case strings.HasSuffix(path, "/groups/map"):
			query = "?by=id"
		case strings.HasSuffix(path, "/result"), strings.HasSuffix(path, "/gate"):
			want = http.StatusNotFound // nothing has been answered yet, and the plan has no gate
		}
		code, text := b.Ask(http.MethodGet, api.Prefix+path+query, nil)
		testenv.Same(t, code, want, "GET %s: %s", path, text)
	}
	if after := state(); after != before {
		t.Error("a GET changed the database")
	}
	code, _ := b.Ask(http.MethodGet, "/healthz", nil)
	testenv.Same(t, code, http.StatusOK, "GET /healthz")
	code, text := apitest.Ready(b)
	testenv.Same(t, code, http.StatusOK, "GET /readyz: %s", text)
}

// What no route takes is the dashboard's, except what is below the API's prefix.
func TestTheDashboardTakesWhatNoRouteTakes(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = io.WriteString(w, "page "+r.URL.Path) // into memory
	})
	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{Dashboard: pages})
	for _, at := range []string{"/", "/runs", "/api", "/static/x.js", "/healthz/more"} {
		if code, text := b.Ask(http.MethodGet, at, nil); code != http.StatusOK || string(text) != "page "+at {
			t.Errorf("%s: %d %s", at, code, text)
		}
	}
	b.Refused(404, "openapi", http.MethodGet, api.Prefix+"/nowhere", nil)
	b.Refused(404, "use one of alert.json, collector.json", http.MethodGet, "/schemas/plans.json", nil)
	schema := b.Send(http.MethodGet, "/schemas/plan.json", "")
	testenv.Same(t, schema.Header.Get("Cache-Control"), "public, max-age=3600", "a schema is cached")
	b.Refused(405, "takes GET", http.MethodPost, "/healthz", strings.NewReader("x"))
	b.Refused(405, "takes GET and DELETE, not PUT", http.MethodPut, api.Prefix+"/trackers/x", strings.NewReader("{}"))
	if code, text := b.Ask(http.MethodGet, "/healthz", nil); code != http.StatusOK || string(text) != "ok\n" {
		t.Errorf("/healthz: %d %s", code, text)
	}
}

func TestBelowABasePath(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{BasePath: "/tranche"})
	made := b.Send(http.MethodPost, api.Prefix+"/runs?endpoint=echo", apitest.Three, "Content-Type", "text/csv")
	testenv.Has(t, made.Header.Get("Location"), "/tranche"+api.Prefix+"/runs/", "a new run is at")
	_, document := b.Get("/openapi.json")
	testenv.Has(t, document, `"servers":[{"url":"/tranche`+api.Prefix+`"}]`, "the API is at")
}
