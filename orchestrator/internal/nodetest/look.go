package nodetest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// answered is how long JetStream may take for an answer to a test: less than Stuck, as an answer may be lost with its
// server, and is asked for again.
const answered = time.Minute

// JS is JetStream, over the connection of the test.
func (b *Bundle) JS(t *testing.T) jetstream.JetStream {
	t.Helper()
	return JetStream(t, b.NC)
}

// JetStream is what answers over a connection, however slow the machine is.
func JetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(answered))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Letters returns what is buried, newest first.
func (b *Bundle) Letters(t *testing.T) []deadletter.DeadLetter {
	t.Helper()
	page, err := deadletter.New(b.Store).DeadLetters(t.Context(), deadletter.DeadFilter{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Letters
}

// Buried waits for a number of letters.
func (b *Bundle) Buried(t *testing.T, n int) []deadletter.DeadLetter {
	t.Helper()
	Until(t, "the letters are buried", func() bool { return len(b.Letters(t)) >= n })
	all := b.Letters(t)
	if len(all) != n {
		t.Fatalf("%d letters are buried; want %d", len(all), n)
	}
	return all
}

// Number runs a query that returns one.
func (b *Bundle) Number(t *testing.T, sql string, args ...any) int {
	t.Helper()
	return testenv.Number(t, b.Pool, sql, args...)
}

// ErrorOf returns why an item failed.
func (b *Bundle) ErrorOf(t *testing.T, run workqueue.RunID, key string) string {
	t.Helper()
	var text string
	err := b.Pool.QueryRow(t.Context(), `SELECT p.error_code || ': ' || p.error_message FROM work_part p
		JOIN work_queue q USING (run_id, ordinal) WHERE run_id = $1 AND item_key = $2 AND p.error_code IS NOT NULL`,
		run, key).Scan(&text)
	if err != nil {
		t.Errorf("%s: %v", key, err)
	}
	return text
}

// Await waits until a query finds something true.
func (b *Bundle) Await(t *testing.T, what, query string) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); {
		var is bool
		if err := b.Pool.QueryRow(t.Context(), query).Scan(&is); err != nil {
			t.Fatal(err)
		}
		if is {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	t.Fatalf("it did not come to pass: %s", what)
}

// Exec runs a statement.
func (b *Bundle) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
