package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Open opens a run of the endpoint echo.
func (b *Bench) Open(settings string) (opened runs.Opened) {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs/open", strings.NewReader(settings))
	if err := json.Unmarshal(text, &opened); err != nil || code != http.StatusOK {
		b.Fatalf("open: %d %s", code, text)
	}
	return opened
}

// Want sends a POST and wants a status and texts in the answer.
func (b *Bench) Want(path, body string, status int, parts ...string) []byte {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body))
	if code != status {
		b.Errorf("POST %s: %d %s; want %d", path, code, text, status)
	}
	for _, part := range parts {
		if !strings.Contains(string(text), part) {
			b.Errorf("POST %s: %s; want %s in it", path, text, part)
		}
	}
	return text
}

// Number is what a query for one number says.
func (b *Bench) Number(query string, args ...any) (n int) {
	b.Helper()
	if err := b.Pool.QueryRow(b.Context(), query, args...).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// Answer records a result of each item of a run, by ordinal; nil fails it.
func (b *Bench) Answer(run workqueue.RunID, contentType string, result func(workqueue.Ordinal) []byte) {
	b.Helper()
	b.AnswerStep(run, 0, contentType, result)
}

// AnswerStep answers the items of a step.
func (b *Bench) AnswerStep(
	run workqueue.RunID, step workqueue.Step, contentType string, result func(workqueue.Ordinal) []byte,
) {
	b.Helper()
	claimed, err := dispatch.New(b.Store).Claim(b.Context(), dispatch.ClaimRequest{Session: b.Engine.ID, Run: run,
		Step: step, MaxSlices: 100, MaxBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range claimed.Slices {
		answer := settle.Answer{Slice: s.ID, Endpoint: "echo", Service: "test", Answered: s.Mask.Count()}
		for bit := range s.Mask.All() {
			slot := settle.Slot{Ordinal: s.Block.Ordinal(bit), ContentType: contentType}
			if slot.Result = result(slot.Ordinal); slot.Result == nil {
				slot.ContentType, slot.Err = "", &workqueue.SlotError{Code: "E", Message: "no"}
			}
			answer.Slots = append(answer.Slots, slot)
		}
		if _, err := settle.New(b.Store).Record(b.Context(), []settle.Answer{answer}); err != nil {
			b.Fatal(err)
		}
	}
}

// Gotten is an answer without its body.
type Gotten struct {
	StatusCode int
	Header     http.Header
}

// Get asks and hands the whole answer back.
func (b *Bench) Get(path string, header ...string) (Gotten, string) {
	b.Helper()
	return whole(b, http.MethodGet, path, nil, header...)
}

// exchange sends a request and returns the answer, of which the body is not read yet.
func exchange(
	ctx context.Context, b *Bench, method, url string, body io.Reader, header ...string,
) *http.Response {
	b.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := carried(b, req)
	if err != nil {
		b.Fatal(err)
	}
	return answer
}

// whole sends a request to the API and reads the answer to its end.
func whole(b *Bench, method, path string, body io.Reader, header ...string) (Gotten, string) {
	b.Helper()
	answer := exchange(b.Context(), b, method, b.URL+api.Prefix+path, body, header...)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	return Gotten{answer.StatusCode, answer.Header}, string(text)
}

// Says posts a body and wants an answer that holds all the parts.
func (b *Bench) Says(status int, path, body string, parts ...string) {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), "Content-Type", "application/json",
		kernel.ActorHeader, "ann")
	if code != status {
		b.Errorf("POST %s: %d %s; want %d", path, code, text, status)
	}
	for _, part := range parts {
		if !strings.Contains(string(text), part) {
			b.Errorf("POST %s does not say %s: %s", path, part, text)
		}
	}
}

// Asked is the status and the problem of an answer, without what only a run that was made can tell.
func (b *Bench) Asked(path, body string, header ...string) (int, string, []byte) {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), header...)
	var p Problem
	if code >= 400 && json.Unmarshal(text, &p) != nil {
		b.Fatalf("%s: %s", path, text)
	}
	return code, p.Detail, text
}

// Stored counts what a dry run must not leave behind.
func (b *Bench) Stored() (n int) {
	b.Helper()
	err := b.Pool.QueryRow(b.Context(), `SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_queue)
		+ (SELECT count(*) FROM run_step) + (SELECT count(*) FROM work_block) + (SELECT count(*) FROM audit_log)
		+ (SELECT count(*) FROM tracker_batch) + (SELECT count(*) FROM endpoint_pace)
		+ (SELECT count(*) FROM run_event)`).Scan(&n)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// WithSource makes the bench one whose node knows a source called ledger, and runs statements in it.
func (b *Bench) WithSource(limits string, statements ...string) {
	b.Helper()
	dsn := testenv.OddDatabase(b)
	pool := testenv.Connect(b, dsn)
	for _, s := range statements {
		if _, err := pool.Exec(b.Context(), s); err != nil {
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600); err != nil {
		b.Fatal(err)
	}
	text := "sources: {ledger: {dsn: {file: dsn}, allow_superuser: true" + limits + "}}"
	known, err := connections.Parse(filepath.Join(dir, "connections.yaml"), []byte(text))
	if err != nil {
		b.Fatal(err)
	}
	b.ServeWith(testenv.Conn(b, testenv.NATS(b)), api.Config{Connections: known})
}

// ServeWith serves anew with a configuration of one's own.
func (b *Bench) ServeWith(nc *nats.Conn, config api.Config) {
	b.Helper()
	server, err := api.New(b.Store, NodeOf(b.Engine), nc, config)
	if err != nil {
		b.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	b.Cleanup(web.Close)
	b.URL = web.URL
}

// Payloads are the items of the only run.
func (b *Bench) Payloads() (all []string) {
	b.Helper()
	err := b.Pool.QueryRow(b.Context(),
		`SELECT coalesce(array_agg(item_key || ' ' || payload ORDER BY ordinal), '{}') FROM work_queue`).Scan(&all)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// StartWith is a start whose settings come with the items.
func (b *Bench) StartWith(settings, items string) (int, string) {
	b.Helper()
	const begin = "--x\r\nContent-Disposition: form-data; name="
	body := begin + "run\r\n\r\n" + settings + "\r\n" + begin + "items\r\n\r\n" + items + "\r\n--x--\r\n"
	status, _, text := b.Asked("/runs", body, "Content-Type", "multipart/form-data; boundary=x")
	return status, string(text)
}

// Apply puts a plan on record.
func (b *Bench) Apply(plan, query string) start.AppliedPlan {
	b.Helper()
	code, text := b.Ask(http.MethodPost, api.Prefix+"/plans?"+query, strings.NewReader(plan),
		"Content-Type", "application/yaml", kernel.ActorHeader, "ann")
	var out start.AppliedPlan
	if err := json.Unmarshal(text, &out); err != nil || code != http.StatusOK {
		b.Fatalf("apply: %d %s", code, text)
	}
	return out
}

// Read gets a document.
func (b *Bench) Read(path string, out any) {
	b.Helper()
	code, text := b.Ask(http.MethodGet, api.Prefix+path, nil)
	if err := json.Unmarshal(text, out); err != nil || code != http.StatusOK {
		b.Fatalf("GET %s: %d %s", path, code, text)
	}
}

// Count counts rows.
func (b *Bench) Count(sql string) (n int) {
	b.Helper()
	if err := b.Pool.QueryRow(b.Context(), sql).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// Retain asks for something about retention, and reads the answer.
func (b *Bench) Retain(method, path, body string, status int, out any) string {
	b.Helper()
	code, text := b.Ask(method, api.Prefix+path, strings.NewReader(body))
	if code != status {
		b.Fatalf("%s %s: %d %s; want %d", method, path, code, text, status)
	}
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			b.Fatal(err)
		}
	}
	return string(text)
}

// LongAgo has a run ended three hours ago, and everybody told.
func (b *Bench) LongAgo(run workqueue.RunID) {
	b.Helper()
	for _, sql := range []string{`UPDATE batchrun SET finished_at = finished_at - interval '3 hours' WHERE id = $1`,
		`UPDATE run_event SET published_at = at WHERE run_id = $1`} {
		if _, err := b.Pool.Exec(b.Context(), sql, run); err != nil {
			b.Fatal(err)
		}
	}
}

// Multi is a start whose settings come with the items.
func (b *Bench) Multi(want int, settings, items string) {
	b.Helper()
	if status, text := b.StartWith(settings, items); status != want {
		b.Errorf("%d %s", status, text)
	}
}

// Sse is a stream of events that was opened.
type Sse struct {
	*testing.T
	Lines *bufio.Scanner
	Close func()
	Last  string
}

// Follow opens a stream of events.
func (b *Bench) Follow(path string, header ...string) *Sse {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), longest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+api.Prefix+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(req) //nolint:bodyclose // by close
	if err != nil {
		b.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(answer.Body)
		b.Fatalf("%s: %d %s", path, answer.StatusCode, text)
	}
	s := &Sse{T: b.T, Lines: bufio.NewScanner(answer.Body), Close: func() { cancel(); _ = answer.Body.Close() }}
	b.Cleanup(s.Close)
	return s
}

// Next reads to the next event of a name.
func (s *Sse) Next(name string) string {
	s.Helper()
	event := ""
	for s.Lines.Scan() {
		field, value, _ := strings.Cut(s.Lines.Text(), ": ")
		switch {
		case field == "id":
			s.Last = value
		case field == "event":
			event = value
		case field == "data" && event == name:
			return value
		}
	}
	s.Fatalf("the stream ended before event %s: %v", name, s.Lines.Err())
	return ""
}

// Lead applies the changes of all steps together, as a page does, until they have led to where the items are.
func (s *Sse) Lead(want []byte) {
	s.Helper()
	for states := make([]byte, len(want)); !slices.Equal(states, want); {
		text := s.Next("delta")
		var delta live.Delta
		if err := json.Unmarshal([]byte(text), &delta); err != nil || delta.Step != "" || len(delta.Changes)%3 != 0 {
			s.Fatalf("delta %s: %v", text, err)
		}
		for change := range slices.Chunk(delta.Changes, 3) {
			if int(change[0]+change[1]) > len(states) {
				s.Fatalf("delta %s goes beyond %d items", text, len(states))
			}
			for o := change[0]; o < change[0]+change[1]; o++ {
				states[o] = byte(change[2])
			}
		}
	}
}

// Head asks and reads nothing of the answer but its head.
func (b *Bench) Head(path string, header ...string) (int, http.Header) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	answer := exchange(ctx, b, http.MethodGet, b.URL+path, nil, header...)
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header
}
