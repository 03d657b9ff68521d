package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/testenv"
)

// A day of an open run: opened, added to, sealed, done. And items from a Parquet file.
func TestItemsThatComeLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.url = b.serve()["api"]
	b.echo(nil)
	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "later", "--seal-within", "6h"), 0, "is open until",
		"run add", "run seal")
	b.want(b.pipe("id\n1\n2\n", "run", "add", "later", "--idempotency-key", "a"), 0, "2 items added", "it has 2 now")
	b.want(b.pipe("id\n1\n2\n", "run", "add", "later", "--idempotency-key", "a"), 0, "nothing changed")
	b.want(b.pipe("id\n2\n", "run", "add", "later"), 1, `line 2: key "2" is the key of item 2 already`)
	odd := filepath.Join(t.TempDir(), "odd.ndjson")
	if err := os.WriteFile(odd, []byte(`{"key":"a\u0001b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "odd"), 0)
	b.want(b.tranche("run", "add", "odd", "--items", odd), 0, "1 item added")
	b.want(b.tranche("run", "add", "odd", odd, "--items", odd), 2, "named twice")
	b.want(b.tranche("run", "items", "odd"), 0, `a\x01b`)
	b.want(b.tranche("run", "item", "odd", `a\x01b`), 0, `a\x01b`)
	b.want(b.tranche("run", "seal", "later", "--expect", "3"), 1, "has 2 items, and 3 were expected")
	b.want(b.tranche("run", "show", "later"), 0, "open")
	b.want(b.tranche("run", "seal", "later", "--expect", "2"), 0, "sealed with 2 items")
	b.want(b.tranche("run", "watch", "later"), 0)
	b.want(b.tranche("run", "seal", "later"), 0, "was sealed before")
	b.want(b.tranche("run", "cancel", "later"), 1, "completed")

	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "late", "--seal-within", "1s", "--on-overdue",
		"seal"), 0)
	b.want(b.tranche("run", "watch", "late"), 0, "completed") // the leader seals it

	path := filepath.Join(t.TempDir(), "people.parquet")
	if err := parquet.WriteFile(path, []struct {
		ID   int64  `parquet:"id"`
		Name string `parquet:"name"`
	}{{1, "Ann"}, {2, "Bob"}}); err != nil {
		t.Fatal(err)
	}
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--parquet", path, "--wait"), 0, "2 items", "keys from id")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--file", path, "--wait"), 0, "2 items")
	for want, args := range map[string][]string{
		"--items (or --file) and --stream each say": {"--items", "x", "--stream", "y"},
		"--sql and --source":                        {"--sql", "SELECT 1"},
		"give --stream too":                         {"--items", "x", "--from-seq", "3"},
		"--format goes with --items":                {"--parquet", "x", "--format", "csv"},
		"--items FILE, --parquet FILE,":             {},
	} {
		b.want(b.tranche(append([]string{"run", "start", "--endpoint", "echo"}, args...)...), 2, want)
	}
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--sql", "SELECT 1", "--source", "x"), 1, "--connections")
}

// A node that is killed in the middle of an add has added nothing, and the same add can be made again.
func TestANodeThatIsKilledWhileItAdds(t *testing.T) {
	t.Parallel()
	database, nats := testenv.Database(t), testenv.NATS(t).URL()
	pool := testenv.Connect(t, database)
	number := func(query string) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s := launch(t, true, "--database", database, "--nats", nats)
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "it"), 0)
	const items = 40_000
	var text bytes.Buffer
	for i := range items {
		fmt.Fprintf(&text, "{\"id\":%d,\"text\":%q}\n", i, strings.Repeat("x", 50))
	}
	file := filepath.Join(t.TempDir(), "items.ndjson")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	add := []string{"run", "add", "it", file, "--idempotency-key", "monday"}
	tx, err := pool.Begin(t.Context()) // the add waits for this when it has written its items
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // should the test fail before
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM batchrun FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ended := b.begun(add...)
	eventually(t, "the add has written its items", func() bool {
		return number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%UPDATE batchrun SET items%'`) == 1
	})
	if err := s.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // killed
	b.want(ended(), 1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PostgreSQL has noticed", func() bool {
		return number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`) == 0
	})
	if n := number(`SELECT count(*) FROM work_queue`) + number(`SELECT items FROM batchrun`) +
		number(`SELECT count(*) FROM work_block`); n != 0 {
		t.Errorf("%d rows of a broken add are left", n)
	}
	b.url = launch(t, true, "--database", database, "--nats", nats).where["api"]
	b.want(b.tranche(add...), 0, "40,000 items added")
	b.want(b.tranche(add...), 0, "nothing changed")
	b.want(b.tranche("run", "seal", "it", "--expect", fmt.Sprint(items)), 0, "sealed with 40,000 items")
	b.want(b.tranche("doctor"), 0)
}
