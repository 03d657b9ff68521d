package apitest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// Open opens a run of the endpoint echo.
func (b *Bench) Open(settings string) (opened runs.Opened) {
	b.Helper()
	b.Post("/runs/open", settings, &opened)
	return opened
}

// Stored counts the rows that a dry run must not leave.
func (b *Bench) Stored() int {
	b.Helper()
	return b.Number(`SELECT (SELECT count(*) FROM batchrun) + (SELECT count(*) FROM work_queue)
		+ (SELECT count(*) FROM run_step) + (SELECT count(*) FROM work_block) + (SELECT count(*) FROM audit_log)
		+ (SELECT count(*) FROM tracker_batch) + (SELECT count(*) FROM endpoint_pace)
		+ (SELECT count(*) FROM run_event)`)
}

// WithSource gives the node a source called ledger, and runs statements in it.
func (b *Bench) WithSource(limits string, statements ...string) {
	b.Helper()
	dsn := testenv.OddDatabase(b)
	pool := testenv.Connect(b, dsn)
	for _, s := range statements {
		testenv.Must(pool.Exec(b.Context(), s))(b)
	}
	dir := b.TempDir()
	testenv.NoError(b, os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600))
	text := "sources: {ledger: {dsn: {file: dsn}, allow_superuser: true" + limits + "}}"
	known := testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"), []byte(text)))(b)
	b.ServeWith(testenv.Conn(b, testenv.NATS(b)), api.Config{Connections: known})
}

// Payloads returns the items of the only run.
func (b *Bench) Payloads() (all []string) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(),
		`SELECT coalesce(array_agg(item_key || ' ' || payload ORDER BY ordinal), '{}') FROM work_queue`).Scan(&all))
	return all
}

// StartWith starts a run with settings and items in one body.
func (b *Bench) StartWith(settings, items string) (int, string) {
	b.Helper()
	const begin = "--x\r\nContent-Disposition: form-data; name="
	body := begin + "run\r\n\r\n" + settings + "\r\n" + begin + "items\r\n\r\n" + items + "\r\n--x--\r\n"
	status, _, text := b.Asked("/runs", body, "Content-Type", "multipart/form-data; boundary=x")
	return status, string(text)
}

// LongAgo makes a run end three hours earlier, with all its events published.
func (b *Bench) LongAgo(run workqueue.RunID) {
	b.Helper()
	b.Exec(`UPDATE batchrun SET finished_at = finished_at - interval '3 hours' WHERE id = $1`, run)
	b.Exec(`UPDATE run_event SET published_at = at WHERE run_id = $1`, run)
}

// Sse is an open stream of events.
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
	answer := exchange(ctx, b, http.MethodGet, b.URL+api.Prefix+path, nil, header...) //nolint:bodyclose // by Close
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

// Lead applies the changes of all steps together, as a page does, until the items have the states in want.
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

// Told wants these numbers of shown and muted conditions about dead letters.
func (b *Bench) Told(open, aside int) {
	b.Helper()
	text := Looked(b)
	var h api.Health
	if err := json.Unmarshal(text, &h); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
	var found [2]int
	for i := range h.Conditions {
		if h.Conditions[i].Kind == "dead_letters" {
			found[0]++
		}
	}
	for i := range h.Muted {
		if h.Muted[i].Kind == "dead_letters" {
			found[1]++
		}
	}
	testenv.Same(b, found, [2]int{open, aside}, "told and muted: %s", text)
}

func (b *Bench) AddLetter(endpoint string, letter deadletter.DeadLetter) workqueue.LetterID {
	b.Helper()
	letter.MsgID, letter.Endpoint = uuid.NewString(), endpoint
	letter.Cause = cmp.Or(letter.Cause, "handler_error")
	if isNew, err := deadletter.New(b.Store).Add(b.Context(), letter); err != nil || !isNew {
		b.Fatal(isNew, err)
	}
	page, err := deadletter.New(b.Store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: 1})
	if err != nil || len(page.Letters) != 1 {
		b.Fatal(page, err)
	}
	return page.Letters[0].ID
}

// Stray quarantines a message, and returns its id.
func (b *Bench) Stray(q deadletter.Quarantined) int64 {
	b.Helper()
	testenv.NoError(b, deadletter.New(b.Store).Quarantine(b.Context(), q))
	page, err := deadletter.New(b.Store).QuarantinedMessages(b.Context(), deadletter.QuarantineFilter{Limit: 1})
	if err != nil || len(page.Messages) != 1 {
		b.Fatal(page, err)
	}
	return page.Messages[0].ID
}

// AckTwice acknowledges the last seven items, each twice concurrently: only one call reports the end.
func (b *Bench) AckTwice(batch string) {
	b.Helper()
	var told, newly atomic.Int64
	var all sync.WaitGroup
	for i := range 14 {
		all.Go(func() {
			var acked trackerclient.BatchesAcked
			code, text, err := b.TryAsk(http.MethodPost, api.Prefix+"/trackers/ack",
				strings.NewReader(fmt.Sprintf(`{"ids":["%s:1:%d"]}`, batch, 1+i/2)), "Content-Type", "application/json")
			if err != nil || code != http.StatusOK || json.Unmarshal(text, &acked) != nil {
				b.Errorf("%d %s, %v", code, text, err)
			}
			newly.Add(acked.Newly)
			told.Add(int64(len(acked.CompletedBatches)))
		})
	}
	all.Wait()
	if told.Load() != 1 || newly.Load() != 7 {
		b.Errorf("%d calls were told of the end, and %d items were new", told.Load(), newly.Load())
	}
}

func (b *Bench) Collect(text string) (out workqueue.AppliedDocument) {
	b.Helper()
	b.Post("/collectors?name=named", text, &out)
	return out
}

// Park parks the operations of a key, as after their last attempt.
func (b *Bench) Park(collector, key, code string) {
	b.Helper()
	for _, sql := range []string{
		`UPDATE collector_op SET parked_at = tranche_now(), attempts = 5, error_code = $3, error_message = 'no' ||
		chr(27) || '[2J', not_before = tranche_now(), failed_first = tranche_now(), failed_last = tranche_now()
		WHERE key = $2 AND collector = (SELECT id FROM collector WHERE name = $1)`,
		`UPDATE collector_key SET parked = untried, untried = 0, oldest_at = NULL, due_at = NULL
		WHERE key = $2 AND $3 <> '' AND collector = (SELECT id FROM collector WHERE name = $1)`,
	} {
		if tag, err := b.Pool.Exec(b.Context(), sql, collector, key, code); err != nil || tag.RowsAffected() == 0 {
			b.Fatal(tag, err)
		}
	}
}

// Parking makes a collector of that name with two parked operations, of keys a and b.
func (b *Bench) Parking() {
	b.Helper()
	b.Collect("name: parking\nendpoint: echo\n")
	var added api.AddedOperations
	for _, key := range []string{"a", "b"} {
		b.Post("/collectors/parking/ops", `{"id":"`+key+`1","key":"`+key+`","payload":1}`, &added)
		b.Park("parking", key, "GONE")
	}
}

const YearEnd = `name: year-end
priority: 7
max_failed: 1.0%
canary: 2
steps:
- name: make
  endpoint: echo
  chunk: 100 # a query each
  rate: 1000
  retry_codes: [BUSY]
`

const Nightly = "cron: 30 2 * * *\nzone: Europe/Berlin\nplan: year-end\nparams: {year: \"{due.year}\"}\n" +
	"items: {file: \"{due.date}/customers.csv\"}\n"
