package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
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

// Multi is StartWith, and wants a status.
func (b *Bench) Multi(want int, settings, items string) {
	b.Helper()
	if status, text := b.StartWith(settings, items); status != want {
		b.Errorf("%d %s", status, text)
	}
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
