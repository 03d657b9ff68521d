package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/database"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

// accepting accepts the failure of the run "it", sees it shown, and withdraws it.
func (b *bench) accepting() {
	b.Helper()
	accept := []string{"run", "accept", "it", "--failed", "--reason", "the account is closed"}
	b.want(b.tranche(append(accept, "--dry-run")...), 0, "dry run",
		"1 item would be accepted: 1 failed, of which 1 accepted", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, 0 to go")
	b.want(b.tranche(accept...), 0, "1 item accepted: 1 failed, of which 1 accepted")
	b.want(b.tranche(accept...), 1, "accepted already")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, of which 1 accepted")
	b.want(b.tranche("run", "report", "it"), 0, "of which 1 accepted")
	b.want(b.tranche("run", "errors", "it"), 0, "accepted; step", "tranche run accept")
	b.want(b.tranche("run", "items", "it", "--state", "failed"), 0, "failed (accepted)")
	b.want(b.tranche("run", "item", "it", "2"), 0, "accepted", "the account is closed")
	b.want(b.tranche("run", "history", "it"), 0, "accept", "the account is closed")
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed, of which 1 accepted")
	b.want(b.pipe("2\n3\n", "run", "accept", "it", "--keys", "-", "--withdraw"), 0, "1 item accepted no more: 1 failed")
}

func TestControlOfRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start := func(args ...string) {
		t.Helper()
		b.want(b.pipe(people, append([]string{"run", "start", "--endpoint", "echo", "--items", "-"}, args...)...), 0,
			"started")
	}
	start("--name", "it") // nobody listens yet
	b.want(b.tranche("run", "pause", "it", "--reason", "the service is sick"), 0, "paused: nothing more is sent",
		"go on with: tranche run resume")
	b.want(b.tranche("run", "pause", "it"), 1, "paused already", "the service is sick")
	b.want(b.tranche("run", "set", "it", "--chunk", "1", "--threshold", "2"), 0, "→ 1", "stays paused", "max failed")
	b.want(b.tranche("run", "set", "it", "--chunk", "1"), 0, "nothing was changed")
	b.want(b.tranche("run", "approve", "it"), 1, "not waiting for approval")
	b.want(b.tranche("run", "pause", "--all"), 0, "no run was paused")
	b.want(b.tranche("run", "resume", "it", "--max-failed", "none"), 0, "resumed: its items")
	start("--name", "other")
	b.want(b.tranche("run", "pause", "--all"), 0, "2 runs paused", "started from now on are not paused", "resume --all")
	b.want(b.tranche("run", "resume", "--all"), 0, "2 runs resumed: their items")
	b.want(b.tranche("run", "cancel", "other", "--reason", "twice"), 0, "3 items left")

	mended := make(chan struct{})
	b.echo(mended)
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed")
	b.want(b.tranche("run", "rerun", "it", "--failed", "--dry-run"), 0, "dry run",
		"1 item again", "1 request over 1 block",
		"nothing was changed")
	b.want(b.tranche("run", "list", "--result", "failed"), 0, " it ")
	b.want(b.tranche("run", "list", "--result", "ok"), 0, "no run fits")
	b.accepting()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("1\r\n\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	close(mended)
	b.want(b.tranche("run", "rerun", "it", "--keys", file, "--wait"), 0, "2 items again, as generation 2",
		"3 of 3 items done")
	b.want(b.pipe("1\nnobody\n", "run", "rerun", "it", "--keys", "-"), 1, `"nobody"`)
	b.correcting()
	b.want(b.tranche("run", "rerun", "it", "--key", "1", "--key", "2", "--canary", "1"), 0,
		"1 of them run first; 1 are held",
		"tranche run approve")
	b.want(b.tranche("run", "set", "--help"), 0, "N|auto", "--threshold")
	b.want(b.tranche("run", "cancel", "--all"), 0, "1 run cancelled")
	b.want(b.tranche("run", "cancel", "--all"), 0, "none is under way")
	for _, args := range [][]string{
		{"pause"}, {"pause", "it", "--all"}, {"resume", "--all", "--max-failed", "1"}, {"set", "it"},
		{"resume", "it", "--max-failed", "x"}, {"set", "it", "--chunk", "0"}, {"set", "it", "--rate", "fast"},
		{"rerun", "it", "--failed", "--canary-auto"}, {"rerun", "it", "--failed", "--dry-run", "--wait"},
		{"rerun", "it", "--keys", "no-such-file"}, {"accept", "it", "--failed"}, {"accept", "it", "--reason", "r"},
	} {
		b.want(b.tranche(append([]string{"run"}, args...)...), 2)
	}
}

// correcting corrects an item of the run "it", which has completed, and sees what it was.
func (b *bench) correcting() {
	b.Helper()
	const file = "id,fixed\n1,yes\n"
	correct := []string{"run", "correct", "it", "--items", "-", "--reason", "it was wrong"}
	b.want(b.pipe(file, append(correct, "--dry-run")...), 0, "dry run", "1 item corrected", "nothing was changed")
	b.want(b.pipe(file, append(correct, "--wait")...), 0, "has 1 item corrected, as generation 3", "3 of 3 items done")
	b.want(b.pipe(file, correct...), 1, "just as given")
	b.want(b.pipe("id\nnobody\n", correct...), 1, `"nobody"`)
	b.want(b.tranche("run", "item", "it", "1"), 0, `"fixed":"yes"`, "until generation 3", "it was wrong")
	b.want(b.tranche("run", "report", "it"), 0, "corrected: 1 item; 1 results made of corrected data", "it was wrong")
	b.want(b.tranche("run", "rerun", "it", "--corrected", "--dry-run"), 0, "would run 1 item again", "\n  1\n")
	b.want(b.tranche("run", "reset", "it", "--where", `$.fixed == "yes"`, "--since", "1h", "--dry-run"), 0,
		"reset 1 item", "\n  1\n")
	b.want(b.tranche("run", "accept", "it", "--service", "nobody@1", "--reason", "r"), 1, "nothing to accept")
	b.want(b.tranche("run", "rerun", "it", "--where", "$.x = 1"), 1, "no path of SQL/JSON")
	b.want(b.tranche("run", "rerun", "it"), 2, "--failed, --key K", "--where")
	b.want(b.tranche("run", "start", "--from", "it"), 1, "no items in these states")
	b.want(b.tranche("run", "start", "--state", "failed", "--items", "x", "--endpoint", "echo"), 2, "give --from RUN too")
	b.want(b.tranche("run", "start", "--from", "other", "--state", "cancelled", "--name", "more"), 0,
		"started: plan ", "3 items")
	b.want(b.tranche("run", "show", "more"), 0, "carries on")
	b.want(b.tranche("run", "watch", "more"), 0, "3 of 3 items done")
	b.want(b.tranche("run", "export", "it", "--corrected", "--format", "csv"), 0, "\n1,done,")
}

// A run that somebody deletes is gone at once, and soon nothing is left of it.
func TestDeletionOfARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mended := make(chan struct{})
	close(mended)
	b.echo(mended)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it", "--wait"), 0, "3 of 3")
	b.want(b.tranche("run", "delete", "it"), 1, "completed for less than 1m0s", "try again in")
	db, err := pgx.Connect(t.Context(), b.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	var id string
	err = db.QueryRow(t.Context(), `UPDATE batchrun SET finished_at = finished_at - interval '1 hour' RETURNING id`).
		Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	b.wantSoon([]string{"run", "delete", "it", "--dry-run"}, "dry run, would be deleted", "(it) of plan echo, completed",
		"3 items in 1 steps", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "3")
	b.want(b.tranche("run", "delete", "it", "--reason", "a rehearsal"), 0, "deleted: run", "tranche retention show")
	b.want(b.tranche("run", "show", id), 1, "was deleted at", "a rehearsal")
	b.want(b.tranche("run", "delete"), 2)
	eventually(t, "nothing is left of it", func() bool {
		var left int
		err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM work_queue) + (SELECT count(*) FROM work_part)
			+ (SELECT count(*) FROM run_step) + (SELECT count(*) FROM retention_run WHERE gone_at IS NULL)`).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	b.want(b.tranche("doctor"), 0)
	b.want(b.tranche("audit", "--action", "delete"), 0, "a rehearsal")
}

const (
	givenPeople = `{"id":"1","name":"bad","n":12.50,"note":"=1+1","tags":["a"],"vip":true}
{"id":"2","name":"bad","n":7,"note":"'+49 30"}
{"id":"+49","name":"bad","n":null,"note":""}
`
	// What 1 and 2 are like when only the cell with the name has changed.
	givenBack = `{"id":"1","name":"ann","n":12.50,"note":"=1+1","tags":["a"],"vip":true}`
)

// What failed goes to a department as a table, and comes back with a cell corrected, from a text or a workbook, into
// the same run or into one that carries it on; all else is as it was.
func TestAnExportIsGivenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	file := filepath.Join(t.TempDir(), "failed.xlsx")
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--guard", "off", "--wait"}
	b.want(b.pipe(givenPeople, append(start, "--name", "it")...), 3, "3 failed")
	b.want(b.tranche("run", "errors", "it"), 0, "--flat --with payload --format xlsx", "tranche run correct")
	b.want(b.tranche("run", "explain", "it"), 0, "tranche run correct")
	export := []string{"run", "export", "it", "--state", "failed", "--flat", "--with", "payload", "--format"}
	csv := b.tranche(append(export, "csv")...)
	for _, part := range []string{"tranche.key,id,name,n,note,tags,vip,tranche.state", "'=1+1", "''+49 30"} {
		if !strings.Contains(csv.out, part) {
			t.Errorf("no %s in %s", part, csv.out)
		}
	}
	if r := b.tranche(append(export, "xlsx", "-o", file)...); r.code != 0 {
		t.Fatal(r)
	}
	correct := []string{"run", "correct", "it", "--items"}
	b.want(b.pipe(csv.out, append(correct, "-")...), 1, "3 items are in the run just as given")
	b.want(b.tranche(append(correct, file)...), 1, "3 items are in the run just as given")

	from := []string{"run", "start", "--from", "it", "--state", "failed", "--name", "more", "--idempotency-key", "k"}
	mended := strings.Replace(csv.out, "1,1,bad", "1,1,ann", 1)
	b.want(b.pipe(mended, append(from, "--correct", "-")...), 0, "3 items")
	b.want(b.pipe(mended, append(from, "--correct", "-")...), 0, "there already, by its idempotency key")
	b.want(b.tranche("run", "item", "more", "1"), 0, givenBack)
	other := written(t, "other.csv", strings.Replace(csv.out, "1,1,bad", "1,1,eve", 1))
	b.want(b.tranche(append(from, "--correct", other)...), 1, "with other content: corrections")
	b.want(b.tranche(from...), 1, "with other content: corrections")

	book, err := excelize.OpenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for cell, name := range map[string]string{"C2": "ann", "C3": "bob", "C4": "cy"} {
		if err := book.SetCellValue("items", cell, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.Save(); err != nil {
		t.Fatal(err)
	}
	b.want(b.tranche(append(correct, file, "--wait")...), 0, "has 3 items corrected", "3 of 3 items done")
	b.want(b.tranche("run", "item", "it", "1"), 0, givenBack)
	b.want(b.tranche("run", "item", "it", "2"), 0, `{"id":"2","name":"bob","n":7,"note":"'+49 30"}`)
	b.want(b.tranche("run", "item", "it", "+49"), 0, `{"id":"+49","name":"cy","n":null,"note":""}`)
	b.wantSoon([]string{"erase", "--key", "+49", "--dry-run"}, "dry run, would be erased, out of 2 runs", "not reached")
	b.want(b.tranche("erase", "--key", "+49"), 2, "say --yes")
	b.want(b.tranche("erase", "--key", "+49", "--yes"), 0, "erased, out of 2 runs", "stands where the key stood")
	b.want(b.tranche("run", "item", "it", "+49"), 1, "no item")
	b.want(b.tranche("audit", "--action", "erase"), 0, "PBKDF2")
	b.want(b.tranche("doctor"), 0)
}

func TestRunGroups(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	b.want(b.pipe("id,branch\n1,north\n2,north\n3,\x1b[31m\n", "run", "start", "--endpoint", "echo", "--name",
		"grouped", "--items", "-"), 0)
	b.want(b.tranche("run", "watch", "grouped"), 0)
	b.want(b.tranche("run", "groups", "grouped", "--by", "branch"), 0, "BRANCH", "north", "2", "100%")
	b.want(b.tranche("run", "groups", "grouped", "--by", "other"), 0, "(none)")
	b.want(b.tranche("run", "groups", "grouped"), 1, "--by FIELD is missing", "branch, id")
}

// A job of a scheduler whose data is wrong ends, says why, and how to go on; so does one that takes too long.
func TestAWaitEndsWhenNobodyComes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	var rows strings.Builder
	rows.WriteString("id,name\n")
	for i := range 2000 {
		fmt.Fprintf(&rows, "%d,bad\n", i)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--name", "wrong", "--chunk", "100",
		"--in-flight", "2", "--wait"), cli.ExitHeld, "outcomes of step echo failed with NO_SUCH",
		"let it go on with: tranche run resume", "go on with: tranche run watch")
	b.want(b.tranche("run", "show", "wrong"), 0, "paused (guard) by tranche")
	b.want(b.tranche("run", "explain", "wrong"), 0, "its first outcomes plainly failed")
	b.wantSoon([]string{"health"}, "run_guard", "its first outcomes plainly failed")
	b.want(b.tranche("run", "watch", "wrong", "--on-hold", "wait", "--max-wait", "1s"), cli.ExitMaxWait,
		"has not ended within --max-wait 1s")
	b.want(b.tranche("run", "resume", "--all"), 0, "no run was resumed", "paused by its guard")
	b.want(b.tranche("run", "resume", "wrong"), 0, "resumed")
	b.want(b.tranche("run", "watch", "wrong"), cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--guard", "off", "--wait"),
		cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--guard", "9/3"), cli.ExitUsage,
		"--guard: want failures of so many first outcomes")
	b.want(b.tranche("run", "watch", "wrong", "--max-wait", "-1s"), cli.ExitUsage, "--max-wait")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", "x", "--on-hold", "wait"), cli.ExitUsage,
		"--wait too")
	b.want(b.tranche("doctor"), 0, "hold")
}

// Compose all, look, then send.
func TestAGateOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	plan := filepath.Join(t.TempDir(), "letters.yaml")
	text := "steps:\n  - {name: compose, endpoint: echo}\n" +
		"  - {name: send, endpoint: echo, needs: [compose], inputs: [item], barrier: approve, approve_by: other}\n"
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const rows = "id,name\n1,ann\n2,bad\n3,bob\n"
	for _, name := range []string{"2025", "2026"} {
		b.want(b.pipe(rows, "run", "start", plan, "--items", "-", "--name", name, "--wait"), cli.ExitHeld,
			"step send waits for somebody, other than "+cli.OSUser()+", to approve it")
		look := b.tranche("run", "approve", name, "--step", "send", "--dry-run")
		b.want(look, 0, "2 go on, 1 are left out", "compose: 2 done, 1 failed", "anybody but "+cli.OSUser(),
			"sample  1  compose: JSON")
		if name == "2026" {
			b.want(look, 0, "against run", "unchanged      2", "still failing  1")
		}
		b.want(b.tranche("run", "explain", name), 0, "waits for somebody to approve it", "but not "+cli.OSUser())
		b.want(b.tranche("run", "item", name, "1"), 0, "until somebody approves the step")
		b.want(b.tranche("run", "approve", name, "--step", "send"), cli.ExitOther, "approved by somebody else")
		b.want(b.tranche("run", "approve", name), cli.ExitOther, "--step send")
		cl, err := client.New(b.url, client.WithActor("another"))
		if err != nil {
			t.Fatal(err)
		}
		done, err := cl.ApproveRun(t.Context(), name, client.ApproveSettings{Step: "send"})
		if err != nil || done.Items != 2 {
			t.Errorf("approved: %+v, %v", done, err)
		}
		b.want(b.tranche("run", "watch", name), cli.ExitFailed, "2 of 3 items done")
	}
	b.want(b.tranche("run", "approve", "2026", "--step", "send", "--all"), cli.ExitUsage, "")
	b.want(b.tranche("doctor"), 0, "hold")
}

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

// What operators see of a run, its errors and what was done to it. Keys and messages are hostile; want finds out.
func TestReportsByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mended := make(chan struct{})
	b.echo(mended)
	const evil = "id,name\n1,ann\n\x1b[31m2,bad\n3,bad\n"
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--wait", "--name"}
	b.want(b.pipe(evil, append(start, "first")...), 3, "2 failed")
	b.want(b.tranche("run", "report", "first"), 0, "items", "NO_SUCH", "nobody is", "ready", "echo@1.0.0",
		"sha256 of items",
		"completed", "SLOWEST SERVICES", "half took")
	errs := b.tranche("run", "errors", "first")
	b.want(errs, 0, `\x1b[31m2`, `\x1b[31mcalled`, "--group", "--failed", "by echo@1.0.0", "step echo")
	group, _, _ := strings.Cut(errs.out, " ")
	if !strings.Contains(errs.out, "--group "+group) || len(group) != 8 {
		t.Errorf("the group %q cannot be run again by:\n%s", group, errs.out)
	}

	close(mended)
	b.want(b.pipe(evil+"4,cy\n", append(start, "second")...), 0, "4 of 4 items done")
	b.want(b.tranche("run", "report", "second", "--against", "first"), 0, "newly fixed", `\x1b[31m2`, "only here",
		"failed NO_SUCH → done", "list of items: different", "--list")
	listed := b.tranche("run", "report", "second", "--against", "first", "--list", "newly_fixed", "--list", "only_here")
	b.want(listed, 0, `\x1b[31m2`+"\tnewly_fixed\tfailed NO_SUCH\tdone\n", "4\tonly_here\t-\tdone\n")
	if n := strings.Count(listed.out, "\n"); n != 3 {
		t.Errorf("listed %d keys; want 3:\n%s", n, listed.out)
	}
	b.want(b.tranche("run", "rerun", "first", "--group", group, "--wait"), 0, "2 items again", "3 of 3 items done")
	b.want(b.tranche("run", "report", "first", "--no-digests"), 0, "GENERATION", "\n2 ")

	for _, args := range [][]string{
		{"run", "report", "first"}, {"run", "report", "second", "--against", "first"}, {"audit"},
	} {
		if r := b.tranche(append(args, "--json")...); r.code != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%v: not one JSON document: %d %s%s", args, r.code, r.out, r.err)
		}
	}
	b.want(b.tranche("run", "report", "first", "--list", "changed"), 2, "--against")
	b.want(b.tranche("run", "report", "second", "--against", "first", "--list", "odd"), 1, "use one of newly_failing")
	b.want(b.tranche("run", "report", "nope"), 1, "tranche run list")
}

func TestTheAuditLogByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.tranche("audit"), 0, "nothing of this kind was done")
	store := database.New(testenv.Connect(t, b.database))
	for i := range 3 {
		set := pacestore.EndpointChange{Endpoint: "mail", Concurrency: new(i + 1)}
		if _, err := pacestore.New(store).ChangeEndpoint(t.Context(), set, "ann\x1b[31m"); err != nil {
			t.Fatal(err)
		}
	}
	b.want(b.tranche("audit"), 0, `ann\x1b[31m`, "endpoint_set", "mail", "concurrency 1 → 2", "concurrency 2 → 3")
	b.want(b.tranche("audit", "--limit", "2"), 0, "go on with --before 2")
	b.want(b.tranche("audit", "--before", "2"), 0, "mail")
	b.want(b.tranche("audit", "--since", "1h", "--action", "endpoint_set"), 0, "mail")
	b.want(b.tranche("audit", "--since", "2100-01-01"), 0, "nothing of this kind")
	b.want(b.tranche("audit", "--actor", "bob"), 0, "nothing of this kind")
	b.want(b.tranche("audit", "--run", "nope"), 1, "tranche run list")
	b.want(b.tranche("audit", "--since", "whenever"), 2, "is no time")
	b.want(b.tranche("audit", "--limit", "0"), 2, "--limit")
}

// A file is looked at, its schema proposed, refused when it does not fit, and let in with what fails alone.
func TestItemsWithASchema(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.url = b.serve()["api"]
	b.echo(nil)
	good := written(t, "good.csv", "id,balance\nC-1,1\nC-2,2\n")
	bad := written(t, "bad.csv", "id;saldo;x\nC-1;9;J\xfcrgen\nC-2;x;\nC-3;10;\n")
	proposed := b.tranche("plan", "infer", "--items", good)
	b.want(proposed, 0, `"pattern": "^-?[0-9]+$"`, "of 2 rows")
	schema := written(t, "schema.json", proposed.out[strings.IndexByte(proposed.out, '{'):])
	start := []string{"run", "start", "--endpoint", "echo", "--items", bad, "--schema", schema}
	b.want(b.tranche(start...), 1, "it may be windows-1252", "--encoding windows-1252")
	start = append(start, "--encoding", "cp1252")
	b.want(b.tranche(start...), 1, "bad.csv: 3 items do not fit the schema", `field "balance": it is missing`)
	start = append(start, "--rename", "saldo=balance", "--columns", "id,saldo", "--sort", "balance", "--desc")
	b.want(b.tranche(start...), 1, `line 3, key "C-2", field "balance": 'x' does not match pattern`)
	start = append(start, "--invalid", "fail", "--idempotency-key", "k", "--wait")
	b.want(b.tranche(start...), 3, "1 invalid")
	b.want(b.tranche("run", "errors", "last"), 0, "invalid", "C-2")
	b.want(b.tranche("run", "item", "last", "C-3"), 0, "ordinal  1", `{"id":"C-3","balance":"10"}`)
	b.want(b.tranche("run", "rerun", "last", "--failed"), 1, "1 item is invalid")
	b.want(b.tranche(append(start, "--on-duplicate", "skip")...), 1, "with other content: on_duplicate")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--types", "balance"), 2,
		"--types: want NAME=VALUE")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--schema", bad), 2, "not valid JSON")
}
