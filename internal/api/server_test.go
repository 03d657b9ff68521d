package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/api/starts"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

type (
	startStore     = start.Store
	redoStore      = redo.Store
	controlStore   = control.Store
	collectorStore = collector.Store
)

// storeEngine is a node that only writes: nothing is sent to services.
type storeEngine struct {
	startStore
	redoStore
	controlStore
	collectorStore
	db      *database.DB
	session workqueue.SessionID
	ready   chan struct{} // closed
	asked   *atomic.Int32 // for what has to reach services
}

func (e storeEngine) Session() workqueue.SessionID { return e.session }

func (e storeEngine) Requeue(
	ctx context.Context, sel deadletter.DeadSelection, actor string,
) (deadletter.Requeue, error) {
	e.asked.Add(1)
	return deadletter.New(e.db).Requeue(ctx, sel, actor)
}

func (e storeEngine) ChangeEndpoint(
	ctx context.Context, change pace.EndpointChange, actor string,
) (pace.EndpointSetting, error) {
	e.asked.Add(1)
	return pace.New(e.db).ChangeEndpoint(ctx, change, actor)
}

func (e storeEngine) AddOps(
	ctx context.Context, name string, version int, batches [][]collector.Op,
) ([]collector.AddedOps, error) {
	out, _, err := collector.New(e.db).AddOps(ctx, name, version, batches)
	return out, err
}

func (e storeEngine) Ready() <-chan struct{} { return e.ready }

func (e storeEngine) Start(
	ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
) (start.Loaded, error) {
	return e.Load(ctx, req, next)
}

type bench struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *database.DB
	engine storeEngine
	server *api.Server
	url    string
	oidc   *access.OIDC // nil: nobody logs in by a provider
}

func setup(t *testing.T) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	store := database.New(pool)
	session, err := session.New(store).StartSession(t.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"},
		time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	engine := storeEngine{startStore: start.New(store), redoStore: redo.New(store), controlStore: control.New(store),
		collectorStore: collector.New(store), db: store, session: session, ready: make(chan struct{}),
		asked: new(atomic.Int32)}
	close(engine.ready)
	server, err := api.New(store, engine, testenv.Conn(t, testenv.NATS(t)), api.Config{
		Version: "test", Alerts: tellers(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(web.Close)
	return &bench{T: t, pool: pool, store: store, engine: engine, server: server, url: web.URL}
}

type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Value any `json:"value"`
	} `json:"errors"`
}

// ask sends a request and reads the answer, which must be a problem when it says no.
func (b *bench) ask(method, path string, body io.Reader, header ...string) (int, []byte) {
	b.Helper()
	code, text, err := b.tryAsk(method, path, body, header...)
	if err != nil {
		b.Fatal(err)
	}
	return code, text
}

// tryAsk does that in a goroutine that is not the test's.
func (b *bench) tryAsk(method, path string, body io.Reader, header ...string) (int, []byte, error) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer.StatusCode, text, err
	}
	var p problem
	if answer.StatusCode >= 400 {
		kind := answer.Header.Get("Content-Type")
		if kind != "application/problem+json" || json.Unmarshal(text, &p) != nil || p.Status != answer.StatusCode ||
			p.Title == "" || p.Detail == "" {
			b.Errorf("%s %s: %d is not a whole problem: %s %s", method, path, answer.StatusCode, kind, text)
		}
	}
	return answer.StatusCode, text, nil
}

func (b *bench) refused(status int, detail, method, path string, body io.Reader, header ...string) problem {
	b.Helper()
	code, text := b.ask(method, path, body, header...)
	var p problem
	_ = json.Unmarshal(text, &p) // ask has checked it
	if code != status || !strings.Contains(p.Detail, detail) {
		b.Errorf("%s %s: got %d %q; want %d %q", method, path, code, p.Detail, status, detail)
	}
	return p
}

func (b *bench) start(query string) starts.Started {
	b.Helper()
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&"+query, strings.NewReader(three))
	var out starts.Started
	if err := json.Unmarshal(text, &out); err != nil || code > 201 {
		b.Fatalf("start: %d %s", code, text)
	}
	return out
}

// finish answers every item; those whose key begins with bad fail.
func (b *bench) finish(run workqueue.RunID) {
	b.Helper()
	claimed, err := dispatch.New(b.store).Claim(b.Context(), dispatch.ClaimRequest{
		Session: b.engine.session, Run: run, MaxSlices: 1000, MaxBytes: 1 << 20,
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range claimed.Slices {
		answer := settle.Answer{Slice: s.ID, Endpoint: "echo", Service: "test", Answered: s.Mask.Count()}
		for bit := range s.Mask.All() {
			slot := settle.Slot{Ordinal: s.Block.Ordinal(bit), Result: []byte(`{"ok":true}`)}
			if slot.Ordinal == 1 {
				slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "=BAD", Message: "no\tgood"}
			}
			answer.Slots = append(answer.Slots, slot)
		}
		if _, err := settle.New(b.store).Record(b.Context(), []settle.Answer{answer}); err != nil {
			b.Fatal(err)
		}
	}
}

const three = "id,name\n=1,ann\n2,bob\n3,cy\n"

func TestTheWayOfARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const query = "name=first&chunk=2&param=year%3D2026&idempotency_key=k1"
	started := b.start(query)
	if started.Items != 3 || started.Key != "id" || len(started.Warnings) != 1 {
		t.Errorf("started %+v", started)
	}
	if again := b.start(query); !again.Existing || again.Run != started.Run {
		t.Errorf("with the same idempotency key: %+v", again)
	}
	b.finish(started.Run)

	_, text := b.ask(http.MethodGet, api.Prefix+"/runs/first", nil)
	var run runs.RunDocument
	if err := json.Unmarshal(text, &run); err != nil {
		t.Fatal(err)
	}
	if run.State != "completed" || run.Done != 2 || run.Failed != 1 || run.Params["year"] != "2026" ||
		run.CreatedBy != kernel.Anonymous || run.Steps[0].Settings.Chunk != 2 {
		t.Errorf("the run is %s", text)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/runs/last/export?format=csv", nil)
	want := "key,state,result,error_code,error_message,accepted\n" +
		"=1,done,\"{\"\"ok\"\":true}\",,,\n2,failed,,'=BAD,no\tgood,\n3,done,\"{\"\"ok\"\":true}\",,,\n"
	if string(text) != want {
		t.Errorf("CSV is %q; want %q", text, want)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/runs/last/export?state=done&state=missing", nil)
	if lines := bytes.Count(text, []byte("\n")); lines != 2 || !json.Valid(text[:bytes.IndexByte(text, '\n')]) {
		t.Errorf("NDJSON of what is done: %s", text)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/runs/last/errors", nil)
	if !strings.Contains(string(text), `"count":1`) {
		t.Errorf("errors: %s", text)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/runs/last/errors?all=true", nil)
	if !strings.Contains(string(text), `"key":"2"`) || bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("all errors: %s", text)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/runs/last/items/"+url.PathEscape("=1"), nil)
	if !strings.Contains(string(text), `"state":"done"`) {
		t.Errorf("item: %s", text)
	}
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs/last/rerun", strings.NewReader(`{"failed":true,"chunk":1}`),
		"Content-Type", "application/json", kernel.ActorHeader, "ann")
	if code != http.StatusOK || !strings.Contains(string(text), `"generation":2`) {
		t.Errorf("rerun: %s", text)
	}
	if code, text = b.ask(http.MethodPost, api.Prefix+"/runs/last/cancel", nil); code != http.StatusOK {
		t.Errorf("cancel: %s", text)
	}
	b.refused(409, "cancelled", http.MethodPost, api.Prefix+"/runs/last/cancel", nil)
	var actor string
	err := b.pool.QueryRow(t.Context(), `SELECT actor FROM audit_log WHERE action = 'rerun'`).Scan(&actor)
	if err != nil || actor != "ann" {
		t.Errorf("the audit log says %q, %v; want ann", actor, err)
	}
	_, text = b.ask(http.MethodGet, api.Prefix+"/doctor", nil)
	if !strings.Contains(string(text), `"found":0`) {
		t.Errorf("doctor: %s", text)
	}
}

func TestStartByMultipart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	send := func(head, items string) (int, string) {
		t.Helper()
		body := "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n" + head +
			"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"; filename=\"items\"\r\n\r\n" + items + "\r\n--x--\r\n"
		code, text := b.ask(http.MethodPost, api.Prefix+"/runs", strings.NewReader(body),
			"Content-Type", "multipart/form-data; boundary=x")
		return code, string(text)
	}
	plan, err := json.Marshal("name: year-end\nsteps:\n  - name: make\n    endpoint: echo\n    chunk: 7\n")
	if err != nil {
		t.Fatal(err)
	}
	if code, text := send(`{"plan":`+string(plan)+`}`, three); code != 201 || !strings.Contains(text, `"items":3`) {
		t.Errorf("a good plan: %d %s", code, text)
	}
	if code, text := send(`{"plan":"steps: 3"}`, three); code != 422 || !strings.Contains(text, "plan") {
		t.Errorf("a bad plan: %d %s", code, text)
	}
	if code, text := send(`{"endpont":"echo"}`, three); code != 422 || !strings.Contains(text, "endpont") {
		t.Errorf("an unknown setting: %d %s", code, text)
	}
	code, _ := b.ask(http.MethodPost, api.Prefix+"/runs",
		strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\n"+three+"\r\n--x--\r\n"),
		"Content-Type", "multipart/form-data; boundary=x")
	if code != http.StatusUnprocessableEntity {
		t.Errorf("without settings: %d", code)
	}
	cut := "--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"endpoint\":\"echo\"}" +
		"\r\n--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\nid\n1\n2\n"
	code, text := b.ask(http.MethodPost, api.Prefix+"/runs", strings.NewReader(cut),
		"Content-Type", "multipart/form-data; boundary=x")
	if code != http.StatusUnprocessableEntity {
		t.Errorf("items that break off: %d %s", code, text)
	}
	runs, err := inspect.New(b.store).Runs(t.Context(), inspect.RunFilter{})
	if err != nil || len(runs) != 1 || runs[0].Plan != "year-end" {
		t.Errorf("there should be the one good run: %+v, %v", runs, err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runs := api.Prefix + "/runs"
	post := func(detail, query, items string) {
		t.Helper()
		b.refused(422, detail, http.MethodPost, runs+"?"+query, strings.NewReader(items))
	}
	post("either an endpoint or a plan", "", three)
	post("a b", "endpoint=a+b", three)
	post(`no column "nope"`, "endpoint=echo&key=nope", three)
	post("line 3", "endpoint=echo", "id,name\n1,a\n2\n")
	post(`key "1"`, "endpoint=echo", "id\n1\n1\n")
	post("empty", "endpoint=echo", "")
	post("line 2", "endpoint=echo", "id\n\xff\xfe\n")
	post("chunk: 9000 is not within 1 to 8192", "endpoint=echo&chunk=9000", three)
	post("name=value", "endpoint=echo&param=year", three)
	post(`"last"`, "endpoint=echo&name=last", three)
	b.refused(422, "", http.MethodPost, runs+"?endpoint=echo&colour=red", strings.NewReader(three))
	b.refused(422, "", http.MethodPost, runs+"?endpoint=echo&on_duplicate=maybe", strings.NewReader(three))
	b.refused(404, "tranche run list", http.MethodGet, runs+"/nope", nil)
	b.refused(404, "openapi", http.MethodGet, "/nowhere", nil)
	if got, err := inspect.New(b.store).Runs(t.Context(), inspect.RunFilter{}); err != nil || len(got) != 0 {
		t.Errorf("a mistake left a run: %+v, %v", got, err)
	}

	one := b.start("name=twin")
	two := b.start("name=twin")
	p := b.refused(409, "fits 2 runs", http.MethodGet, runs+"/twin", nil)
	if len(p.Errors) != 2 || p.Errors[0].Value != two.Run.String() || p.Errors[1].Value != one.Run.String() {
		t.Errorf("the runs that fit: %+v", p.Errors)
	}
	b.refused(404, "no item has this key", http.MethodGet, runs+"/last/items/nobody", nil)
	b.refused(422, "not done, failed or missing", http.MethodGet, runs+"/last/export?state=lost", nil)
	again := func(status int, detail, body string) {
		t.Helper()
		b.refused(status, detail, http.MethodPost, runs+"/last/rerun", strings.NewReader(body),
			"Content-Type", "application/json")
	}
	again(422, "choose one", `{}`)
	again(422, "choose one", `{"failed":true,"keys":["2"]}`)
	again(409, "nothing to re-run", `{"failed":true}`)
	again(404, "no item with key", `{"keys":["nobody"]}`)
	again(404, `no item with key "a", "b\"", "c0", "c1"`, `{"keys":["a","b\"","c0","c1"]}`)
	again(404, `"c8" and 1 more; see tranche run show`,
		`{"keys":["a","b\"","c`+strings.Join(strings.Fields("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18"), `","c`)+`"]}`)
}

// A large input with a mistake at its start is answered, not reset.
func TestAMistakeInALargeInputIsAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	input := "id,name\n1\n" + strings.Repeat("2,some name that is not short\n", 400_000)
	b.refused(422, "line 2", http.MethodPost, api.Prefix+"/runs?endpoint=echo", strings.NewReader(input))
}

// PROOF: who may do what, 5 and 6.
func TestForeignersAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runs := api.Prefix + "/runs"
	b.refused(403, "another origin", http.MethodPost, runs+"?endpoint=echo", strings.NewReader(three),
		"Origin", "https://evil.example")
	b.refused(403, "another origin", http.MethodPost, runs+"/last/cancel", nil, "Sec-Fetch-Site", "cross-site")
	b.refused(403, "evil.example", http.MethodGet, runs, nil, "Host", "evil.example")
	if code, _ := b.ask(http.MethodGet, runs, nil, "Host", "LocalHost:99"); code != http.StatusOK {
		t.Errorf("localhost is refused: %d", code)
	}
	b.refused(405, "", http.MethodGet, runs+"/last/cancel", nil)
	for _, method := range []string{http.MethodGet, http.MethodOptions} { // there is no CORS
		answer := b.send(method, runs, "", "Origin", "https://evil.example", "Access-Control-Request-Method", "GET")
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
	b := setup(t)
	b.start("name=it")
	letter := b.bury("echo", deadletter.DeadLetter{Body: []byte(`{}`)})
	stray := b.stray(deadletter.Quarantined{Reason: "json", Body: []byte("{")})
	b.apply("steps: [{endpoint: echo}]", "name=echo")
	put := func(path, kind, body string) (made struct{ ID string }) {
		t.Helper()
		code, text := b.ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), "Content-Type", kind)
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
	_, text := b.ask(http.MethodGet, api.Prefix+"/openapi.json", nil)
	var described struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &described); err != nil || len(described.Paths) < 9 {
		t.Fatalf("the description has %d paths, %v", len(described.Paths), err)
	}
	state := func() (state string) {
		t.Helper()
		err := b.pool.QueryRow(t.Context(), `SELECT concat(
			(SELECT string_agg(r::text, ';') FROM batchrun r), (SELECT string_agg(w::text, ';') FROM work_slice w),
			(SELECT string_agg(md5(k::text), ';') FROM work_block k), (SELECT string_agg(d::text, ';') FROM dead_letter d),
			(SELECT string_agg(q::text, ';') FROM quarantine q), (SELECT count(*) FROM audit_log),
			(SELECT string_agg(c::text, ';') FROM collector c), (SELECT string_agg(o::text, ';') FROM collector_op o),
			(SELECT string_agg(s::text, ';') FROM schedule s), (SELECT count(*) FROM schedule_fire),
			(SELECT string_agg(md5(g::text), ';') FROM tracker_group g),
			(SELECT string_agg(t::text, ';') FROM tracker_service t),
			(SELECT string_agg(a::text, ';') FROM alert a), (SELECT count(*) FROM alert_message))`).Scan(&state)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	before := state()
	for path, methods := range described.Paths {
		if _, ok := methods["get"]; ok {
			id := letter.String()
			if strings.HasPrefix(path, "/quarantine") {
				id = fmt.Sprint(stray)
			}
			if strings.HasPrefix(path, "/trackers") {
				id = batch
			}
			path = strings.NewReplacer("{run}", "last", "{key}", "2", "{name}", "echo", "{id}", id, "{version}", "1").
				Replace(path)
			if strings.HasSuffix(path, "/events") {
				if path == "/events" {
					path += "?topic=runs"
				}
				b.peek(path)
				continue
			}
			if strings.HasSuffix(path, "/comparison") {
				path += "?against=last"
			}
			if strings.HasSuffix(path, "/groups/map") {
				path += "?by=id"
			}
			want := http.StatusOK
			if strings.HasSuffix(path, "/result") || strings.HasSuffix(path, "/gate") {
				want = http.StatusNotFound // nothing has been answered yet, and the plan has no gate
			}
			if code, text := b.ask(http.MethodGet, api.Prefix+path, nil); code != want {
				t.Errorf("GET %s: %d %s", path, code, text)
			}
		}
	}
	if after := state(); after != before {
		t.Error("a GET changed the database")
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, _ := b.ask(http.MethodGet, path, nil); code != http.StatusOK {
			t.Errorf("GET %s: %d", path, code)
		}
	}
}

// PROOF: who may do what, 19.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for i := range 5 {
		want = append(want, b.start(fmt.Sprintf("name=r%d", i)).Run.String())
	}
	slices.Reverse(want)
	var got []string
	for next := ""; ; {
		_, text := b.ask(http.MethodGet, api.Prefix+"/runs?limit=2&before="+next, nil)
		var list runs.RunList
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Runs {
			got = append(got, r.ID.String())
		}
		if next = list.Next; next == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}

// peek opens a stream, which has no end, and reads what it begins with.
func (b *bench) peek(path string) {
	b.Helper()
	ctx, leave := context.WithCancel(b.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+api.Prefix+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if line, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil || answer.StatusCode != http.StatusOK {
		b.Errorf("GET %s: %s, %q, %v", path, answer.Status, line, err)
	}
}

// tellers lets alerts run one program.
func tellers(t *testing.T) *alerts.Receivers {
	t.Helper()
	receivers, err := alerts.NewReceivers(alerts.Config{Transport: http.DefaultTransport,
		Programs: map[string]string{"page": "/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	return receivers
}
