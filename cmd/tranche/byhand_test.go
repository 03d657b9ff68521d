package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/parquet-go/parquet-go"
	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

// accepting accepts the failure of the run "it", sees it shown, and withdraws it.
func (b *bench) accepting() {
	b.Helper()
	accept := []string{"run", "accept", "it", "--failed", "--reason", "the account is closed"}
	b.want(b.tranche(append(accept, "--dry-run")...), 0, "dry run",
		"1 item would be accepted: 1 failed, 1 of them accepted", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, 0 to go")
	b.want(b.tranche(accept...), 0, "1 item accepted: 1 failed, 1 of them accepted")
	b.want(b.tranche(accept...), 7, "accepted already")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, 1 of them accepted")
	b.want(b.tranche("run", "report", "it"), 0, "1 of them accepted")
	b.want(b.tranche("run", "errors", "it"), 0, "accepted; step", "tranche run accept")
	b.want(b.tranche("run", "items", "it", "--state", "failed"), 0, "failed (accepted)")
	b.want(b.tranche("run", "item", "it", "2"), 0, "accepted", "the account is closed")
	b.want(b.tranche("run", "history", "it"), 0, "accept", "the account is closed")
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed, 1 of them accepted")
	b.want(b.pipe("2\n3\n", "run", "accept", "it", "--keys", "-", "--withdraw"), 0, "1 item accepted no longer: 1 failed")
}

func TestControlOfRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start := func(args ...string) {
		t.Helper()
		b.want(b.pipe(people, append([]string{"run", "start", "--endpoint", "echo", "--items", "-"}, args...)...), 0,
			"started")
	}
	start("--name", "it") // no service listens yet
	b.want(b.tranche("run", "pause", "it", "--reason", "the service is sick"), 0, "paused: nothing more is sent",
		"resume with: tranche run resume")
	b.want(b.tranche("run", "pause", "it"), 7, "paused already", "the service is sick")
	b.want(b.tranche("run", "set", "it", "--chunk", "1", "--max-failed", "2"), 0, "→ 1", "stays paused", "max failed",
		"step echo", "applies to new requests")
	if r := b.tranche("run", "set", "it", "--priority", "1"); r.code != 0 || strings.Contains(r.out, "step") {
		t.Errorf("a setting of the run is shown as one of a step: %s%s", r.out, r.err)
	}
	b.want(b.tranche("run", "set", "it", "--step", "nope", "--chunk", "1"), 7, `has no step "nope"; it has echo`)
	b.want(b.tranche("run", "set", "it", "--chunk", "1"), 0, "nothing was changed")
	b.want(b.tranche("run", "set", "it", "--priority", "2", "--chunk", "2", "--if-was", "priority=0", "--if-was",
		"chunk=1"), 7, "is now 1")
	b.want(b.tranche("run", "approve", "it"), 7, "not waiting for approval")
	b.want(b.tranche("run", "pause", "--all"), 0, "no run was paused")
	b.want(b.tranche("run", "resume", "it", "--max-failed", "none"), 0, "resumed: its items")
	start("--name", "other")
	b.want(b.tranche("run", "pause", "--all"), 0, "2 runs paused", "new runs are not paused", "resume --all")
	b.want(b.tranche("run", "resume", "--all"), 0, "2 runs resumed: their items")
	b.want(b.tranche("run", "cancel", "other", "--reason", "twice"), 0, "3 items left")

	fixed := make(chan struct{})
	b.echo(fixed)
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed")
	b.want(b.tranche("run", "rerun", "it", "--failed", "--dry-run"), 0, "dry run",
		"would rerun 1 item", "1 request over 1 block",
		"nothing was changed")
	b.want(b.tranche("run", "list", "--result", "failed"), 0, " it ")
	b.want(b.tranche("run", "list", "--result", "ok"), 0, "no run matches")
	b.accepting()
	file := filepath.Join(t.TempDir(), "keys")
	testenv.NoError(t, os.WriteFile(file, []byte("1\r\n\n2\n"), 0o600))
	close(fixed)
	b.want(b.tranche("run", "rerun", "it", "--keys", file, "--wait"), 0, "reruns 2 items, as generation 2",
		"3 of 3 items done")
	b.want(b.pipe("1\nnobody\n", "run", "rerun", "it", "--keys", "-"), 7, `"nobody"`)
	b.correcting()
	b.want(b.tranche("run", "rerun", "it", "--key", "1", "--key", "2", "--canary", "1"), 0,
		"1 of them run first; 1 are held",
		"tranche run approve")
	b.want(runProgram(t, nil, "", "run", "set", "--help"), 0, "N|auto", "--max-failed")
	b.want(b.tranche("run", "cancel", "--all"), 0, "1 run cancelled")
	b.want(b.tranche("run", "cancel", "--all"), 0, "none is in progress")
	for _, args := range [][]string{
		{"pause"}, {"pause", "it", "--all"}, {"resume", "--all", "--max-failed", "1"}, {"set", "it"},
		{"resume", "it", "--max-failed", "x"}, {"set", "it", "--chunk", "0"}, {"set", "it", "--rate", "fast"},
		{"rerun", "it", "--failed", "--canary-auto-approve"}, {"rerun", "it", "--failed", "--dry-run", "--wait"},
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
	b.want(b.pipe(file, correct...), 7, "just as given")
	b.want(b.pipe("id\nnobody\n", correct...), 7, `"nobody"`)
	b.want(b.tranche("run", "item", "it", "1"), 0, `"fixed":"yes"`, "until generation 3", "it was wrong")
	b.want(b.tranche("run", "report", "it"), 0, "corrected: 1 item; 1 results made of corrected data", "it was wrong")
	b.want(b.tranche("run", "rerun", "it", "--corrected", "--state", "done", "--dry-run"), 0,
		"would rerun 1 item", "\n  1\n")
	b.want(b.tranche("run", "reset", "it", "--where", `$.fixed == "yes"`, "--since", "1h", "--dry-run"), 0,
		"reset 1 item", "\n  1\n")
	b.want(b.tranche("run", "accept", "it", "--service", "nobody@1", "--reason", "r"), 7, "nothing to accept")
	b.want(b.tranche("run", "rerun", "it", "--where", "$.x = 1"), 7, "not a path of SQL/JSON")
	b.want(b.tranche("run", "rerun", "it"), 2, "--failed, --key K", "--where")
	b.want(b.tranche("run", "start", "--from", "it"), 7, "no items in these states")
	b.want(b.tranche("run", "start", "--state", "failed", "--items", "x", "--endpoint", "echo"), 2, "give --from RUN too")
	b.want(b.tranche("run", "start", "--from", "other", "--state", "cancelled", "--name", "more"), 0,
		"started: plan ", "3 items")
	b.want(b.tranche("run", "show", "more"), 0, "continues")
	b.want(b.tranche("run", "watch", "more"), 0, "3 of 3 items done")
	b.want(b.tranche("run", "export", "it", "--corrected", "--format", "csv"), 0, "\n1,done,")
}

// A run that someone deletes is gone immediately, and soon nothing is left of it.
func TestDeletionOfARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	fixed := make(chan struct{})
	close(fixed)
	b.echo(fixed)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it", "--wait"), 0, "3 of 3")
	b.want(b.tranche("run", "delete", "it"), 7, "completed for less than 1m0s", "try again in")
	db := testenv.Must(pgx.Connect(t.Context(), b.database))(t)
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	var id string
	err := db.QueryRow(t.Context(), `UPDATE batchrun SET finished_at = finished_at - interval '1 hour' RETURNING id`).
		Scan(&id)
	testenv.NoError(t, err)
	b.wantSoon([]string{"run", "delete", "it", "--dry-run"}, "dry run, would be deleted", "(it) of plan echo, completed",
		"3 items in 1 steps", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "3")
	b.want(b.tranche("run", "delete", "it", "--reason", "a rehearsal"), 0, "deleted: run", "tranche retention show")
	b.want(b.tranche("run", "show", id), 7, "was deleted at", "a rehearsal")
	b.want(b.tranche("run", "delete"), 2)
	eventually(t, "nothing is left of it", func() bool {
		var left int
		err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM work_queue) + (SELECT count(*) FROM work_result)
			+ (SELECT count(*) FROM run_step) + (SELECT count(*) FROM deleted_run WHERE purged_at IS NULL)`).Scan(&left)
		testenv.NoError(t, err)
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
// the same run or into one that continues it; all else is as it was.
func testAnExportIsGivenBack(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	file := filepath.Join(t.TempDir(), "failed.xlsx")
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--fail-fast", "off", "--wait"}
	b.want(b.pipe(givenPeople, append(start, "--name", "it")...), 3, "3 failed")
	b.want(b.tranche("run", "errors", "it"), 0, "--flat --include payload --format xlsx", "tranche run correct")
	b.want(b.tranche("run", "explain", "it"), 0, "tranche run correct")
	export := []string{"run", "export", "it", "--state", "failed", "--flat", "--include", "payload", "--format"}
	csv := b.tranche(append(export, "csv")...)
	for _, part := range []string{"tranche.key,id,name,n,note,tags,vip,tranche.state", "'=1+1", "''+49 30"} {
		testenv.Has(t, csv.out, part, "the file")
	}
	if r := b.tranche(append(export, "xlsx", "-o", file)...); r.code != 0 {
		t.Fatal(r)
	}
	correct := []string{"run", "correct", "it", "--items"}
	b.want(b.pipe(csv.out, append(correct, "-")...), 7, "3 items are in the run just as given")
	b.want(b.tranche(append(correct, file)...), 7, "3 items are in the run just as given")

	from := []string{"run", "start", "--from", "it", "--state", "failed", "--name", "more", "--idempotency-key", "back"}
	fixed := strings.Replace(csv.out, "1,1,bad", "1,1,ann", 1)
	b.want(b.pipe(fixed, append(from, "--correct", "-")...), 0, "3 items")
	b.want(b.pipe(fixed, append(from, "--correct", "-")...), 0, "exists already, by its idempotency key")
	b.want(b.tranche("run", "item", "more", "1"), 0, givenBack)
	other := written(t, "other.csv", strings.Replace(csv.out, "1,1,bad", "1,1,eve", 1))
	b.want(b.tranche(append(from, "--correct", other)...), 7, "with other content: corrections")
	b.want(b.tranche(from...), 7, "with other content: corrections")

	book := testenv.Must(excelize.OpenFile(file))(t)
	for cell, name := range map[string]string{"C2": "ann", "C3": "bob", "C4": "cy"} {
		testenv.NoError(t, book.SetCellValue("items", cell, name))
	}
	testenv.NoError(t, book.Save())
	b.want(b.tranche(append(correct, file, "--wait")...), 0, "has 3 items corrected", "3 of 3 items done")
	b.want(b.tranche("run", "item", "it", "1"), 0, givenBack)
	b.want(b.tranche("run", "item", "it", "2"), 0, `{"id":"2","name":"bob","n":7,"note":"'+49 30"}`)
	b.want(b.tranche("run", "item", "it", "+49"), 0, `{"id":"+49","name":"cy","n":null,"note":""}`)
	b.wantSoon([]string{"erase", "--key", "+49", "--dry-run"}, "dry run, would be erased, out of 2 runs", "not reached")
	b.want(b.tranche("erase", "--key", "+49"), 2, "confirm it with --yes")
	b.want(b.tranche("erase", "--key", "+94", "--yes"), 1, "nothing was erased", `has the key "+94"; check its spelling`)
	b.want(b.tranche("erase", "--key", "+49", "--yes"), 0, "erased, out of 2 runs", "the key is now erased-")
	b.want(b.tranche("run", "item", "it", "+49"), 7, "no item")
	b.want(b.tranche("audit", "--action", "erase"), 0, "PBKDF2")
	b.want(b.tranche("doctor"), 0)
}

func testRunGroups(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	b.want(b.pipe("id,branch\n1,north\n2,north\n3,\x1b[31m\n", "run", "start", "--endpoint", "echo", "--name",
		"grouped", "--items", "-"), 0)
	b.want(b.tranche("run", "watch", "grouped"), 0)
	b.want(b.tranche("run", "groups", "grouped", "--by", "branch"), 0, "BRANCH", "north", "2", "100%")
	b.want(b.tranche("run", "groups", "grouped", "--by", "other"), 0, "(none)",
		`warning: no item has field "other"`)
	b.want(b.tranche("run", "groups", "grouped"), 1, "--by FIELD is missing", "branch, id")
}

// A job of a scheduler whose data is wrong ends, says why, and how to continue; so does one that takes too long.
func testAWaitEndsWhenNobodyComes(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	var rows strings.Builder
	rows.WriteString("id,name\n")
	for i := range 2000 {
		fmt.Fprintf(&rows, "%d,bad\n", i)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--name", "wrong", "--chunk", "100",
		"--in-flight", "2", "--wait"), cli.ExitHeld, "outcomes of step echo failed with NO_SUCH",
		"resume without this check: `tranche run resume", "continue with: tranche run watch")
	b.want(b.tranche("run", "show", "wrong"), 0, "paused (fail_fast) by tranche")
	b.want(b.tranche("run", "explain", "wrong"), 0, "too many first outcomes failed")
	b.wantSoon([]string{"health"}, "run_fail_fast", "too many first outcomes failed")
	b.want(b.tranche("run", "watch", "wrong", "--on-hold", "wait", "--max-wait", "1s"), cli.ExitMaxWait,
		"has not ended within --max-wait 1s")
	b.want(b.tranche("run", "resume", "--all"), 0, "no run was resumed", "paused by its fail-fast limit")
	b.want(b.tranche("run", "resume", "wrong"), 0, "resumed")
	b.want(b.tranche("run", "watch", "wrong"), cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--fail-fast", "off", "--wait"),
		cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--fail-fast", "9/3"),
		cli.ExitUsage, "--fail-fast: want failures N of the first M outcomes")
	b.want(b.tranche("run", "watch", "wrong", "--max-wait", "-1s"), cli.ExitUsage, "--max-wait")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", "x", "--on-hold", "wait"), cli.ExitUsage,
		"--wait too")
	b.want(b.tranche("doctor"), 0, "hold")
}

// Compose all, look, then send.
func testAGateOnTheCommandLine(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	plan := filepath.Join(t.TempDir(), "letters.yaml")
	text := "steps:\n  - {name: compose, endpoint: echo}\n" +
		"  - {name: send, endpoint: echo, needs: [compose], inputs: [item], barrier: approve, approvers: other}\n"
	testenv.NoError(t, os.WriteFile(plan, []byte(text), 0o600))
	const rows = "id,name\n1,ann\n2,bad\n3,bob\n"
	for _, name := range []string{"2025", "2026"} {
		b.want(b.pipe(rows, "run", "start", plan, "--items", "-", "--name", name, "--wait"), cli.ExitHeld,
			"step send waits for approval by a user who took no part in the run")
		look := b.tranche("run", "approve", name, "--step", "send", "--dry-run")
		b.want(look, 0, "2 continue, 1 are left out", "compose: 2 done, 1 failed", "anyone without a part in it",
			"sample      1  compose: JSON")
		if name == "2026" {
			b.want(look, 0, "against run", "unchanged      2", "still failing  1")
		}
		b.want(b.tranche("run", "explain", name), 0, "waits for approval", "who took no part in the run")
		b.want(b.tranche("run", "item", name, "1"), 0, "until the step is approved")
		b.want(b.tranche("run", "approve", name, "--step", "send"), cli.ExitRefused, "approved by another user")
		b.want(b.tranche("run", "approve", name), cli.ExitRefused, "--step send")
		cl := testenv.Must(client.New(b.url, client.WithActor("another")))(t)
		done := testenv.Must(cl.ApproveRun(t.Context(), name, client.ApproveSettings{Step: "send"}))(t)
		testenv.Same(t, done.Items, 2, "approved: %+v", done)
		b.want(b.tranche("run", "watch", name), cli.ExitFailed, "2 of 3 items done")
	}
	b.want(b.tranche("run", "approve", "2026", "--step", "send", "--all"), cli.ExitUsage, "")
	b.want(b.tranche("doctor"), 0, "hold")
}

// A day of an open run: opened, added to, sealed, done. And items from a Parquet file.
func testItemsThatComeLater(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "later", "--seal-within", "6h"), 0, "is open until",
		"run add", "run seal")
	b.want(b.pipe("id\n1\n2\n", "run", "add", "later", "--idempotency-key", "a"), 0, "2 items added", "it has 2 now")
	b.want(b.pipe("id\n1\n2\n", "run", "add", "later", "--idempotency-key", "a"), 0, "nothing changed")
	b.want(b.pipe("id\n2\n", "run", "add", "later"), 7, `line 2: key "2" is the key of item 2 already`)
	odd := filepath.Join(t.TempDir(), "odd.ndjson")
	testenv.NoError(t, os.WriteFile(odd, []byte(`{"key":"a\u0001b"}`), 0o600))
	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "odd"), 0)
	b.want(b.tranche("run", "add", "odd", "--items", odd), 0, "1 item added")
	b.want(b.tranche("run", "add", "odd", odd, "--items", odd), 2, "named twice")
	b.want(b.tranche("run", "items", "odd"), 0, `a\x01b`)
	b.want(b.tranche("run", "item", "odd", `a\x01b`), 0, `a\x01b`)
	b.want(b.tranche("run", "seal", "later", "--expect", "3"), 7, "has 2 items, and 3 were expected")
	b.want(b.tranche("run", "show", "later"), 0, "open")
	b.want(b.tranche("run", "seal", "later", "--expect", "2"), 0, "sealed with 2 items")
	b.want(b.tranche("run", "watch", "later"), 0)
	b.want(b.tranche("run", "seal", "later"), 0, "was sealed before")
	b.want(b.tranche("run", "cancel", "later"), 7, "completed")

	b.want(b.tranche("run", "open", "--endpoint", "echo", "--name", "late", "--seal-within", "1s", "--on-overdue",
		"seal"), 0)
	b.want(b.tranche("run", "watch", "late"), 0, "completed") // the leader seals it

	path := filepath.Join(t.TempDir(), "people.parquet")
	testenv.NoError(t, parquet.WriteFile(path, []struct {
		ID   int64  `parquet:"id"`
		Name string `parquet:"name"`
	}{{1, "Ann"}, {2, "Bob"}}))
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
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--sql", "SELECT 1", "--source", "x"), 7, "--connections")
}

// What operators see of a run, its errors and what was done to it. Keys and messages are hostile; want finds out.
func testReportsByHand(t *testing.T, b *bench) {
	t.Helper()
	fixed := make(chan struct{})
	b.echo(fixed)
	const evil = "id,name\n1,ann\n\x1b[31m2,bad\n3,bad\n"
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--wait", "--name"}
	b.want(b.pipe(evil, append(start, "first")...), 3, "2 failed")
	b.want(b.tranche("run", "report", "first"), 0, "items", "NO_SUCH", "no one is", "ready", "echo@1.0.0",
		"sha256 of items",
		"completed", "SLOWEST SERVICES", "half took")
	errs := b.tranche("run", "errors", "first")
	b.want(errs, 0, `\x1b[31m2`, `\x1b[31mcalled`, "--group", "--failed", "by echo@1.0.0", "step echo")
	group, _, _ := strings.Cut(errs.out, " ")
	if !strings.Contains(errs.out, "--group "+group) || len(group) != 8 {
		t.Errorf("the group %q cannot be run again by:\n%s", group, errs.out)
	}

	close(fixed)
	b.want(b.pipe(evil+"4,cy\n", append(start, "second")...), 0, "4 of 4 items done")
	b.want(b.tranche("run", "report", "second", "--against", "first"), 0, "newly fixed", `\x1b[31m2`, "only here",
		"failed NO_SUCH → done", "list of items: different", "--list")
	listed := b.tranche("run", "report", "second", "--against", "first", "--list", "newly_fixed", "--list", "only_here")
	b.want(listed, 0, `\x1b[31m2`+"\tnewly_fixed\tfailed NO_SUCH\tdone\n", "4\tonly_here\t-\tdone\n")
	testenv.Same(t, strings.Count(listed.out, "\n"), 3, "keys listed:\n%s", listed.out)
	b.want(b.tranche("run", "rerun", "first", "--group", group, "--wait"), 0, "reruns 2 items", "3 of 3 items done")
	b.want(b.tranche("run", "report", "first", "--no-digests"), 0, "GENERATION", "\n2 ")

	for _, args := range [][]string{
		{"run", "report", "first"}, {"run", "report", "second", "--against", "first"}, {"audit"},
	} {
		if r := b.tranche(append(args, "--json")...); r.code != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%v: not one JSON document: %d %s%s", args, r.code, r.out, r.err)
		}
	}
	b.want(b.tranche("run", "report", "first", "--list", "changed"), 2, "--against")
	b.want(b.tranche("run", "report", "second", "--against", "first", "--list", "odd"), 2, "newly_failing")
	b.want(b.tranche("run", "report", "nope"), 7, "tranche run list")
}

func testTheAuditLogByHand(t *testing.T, b *bench) {
	t.Helper()
	b.want(b.tranche("audit"), 0, "there are no such entries")
	store := database.New(testenv.Connect(t, b.database))
	for i := range 3 {
		set := pacestore.EndpointChange{Endpoint: "mail", Concurrency: new(i + 1)}
		testenv.Must(pacestore.New(store).ChangeEndpoint(t.Context(), set, "ann\x1b[31m"))(t)
	}
	b.want(b.tranche("audit"), 0, `ann\x1b[31m`, "endpoint_set", "mail", "concurrency 1 → 2", "concurrency 2 → 3")
	b.want(b.tranche("audit", "--limit", "2"), 0, "continue with --before 2")
	b.want(b.tranche("audit", "--before", "2"), 0, "mail")
	b.want(b.tranche("audit", "--since", "1h", "--action", "endpoint_set"), 0, "mail")
	b.want(b.tranche("audit", "--since", "2100-01-01"), 0, "there are no such entries")
	b.want(b.tranche("audit", "--actor", "bob"), 0, "there are no such entries")
	b.want(b.tranche("audit", "--run", "nope"), 7, "tranche run list")
	b.want(b.tranche("audit", "--since", "whenever"), 2, "invalid time")
	b.want(b.tranche("audit", "--limit", "0"), 2, "--limit")
}

// A file is looked at, its schema proposed, refused when it does not fit, and let in with what fails alone.
func testItemsWithASchema(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	good := written(t, "good.csv", "id,balance\nC-1,1\nC-2,2\n")
	bad := written(t, "bad.csv", "id;saldo;x\nC-1;9;J\xfcrgen\nC-2;x;\nC-3;10;\n")
	proposed := b.tranche("plan", "infer", "--items", good)
	b.want(proposed, 0, `"pattern": "^-?[0-9]+$"`, "of 2 rows")
	schema := written(t, "schema.json", proposed.out[strings.IndexByte(proposed.out, '{'):])
	start := []string{"run", "start", "--endpoint", "echo", "--items", bad, "--schema", schema}
	b.want(b.tranche(start...), 7, "bad.csv: line 2", "it may be windows-1252", "--encoding windows-1252")
	start = append(start, "--encoding", "cp1252")
	b.want(b.tranche(start...), 7, "bad.csv: 3 items do not fit the schema", `field "balance": it is missing`)
	start = append(start, "--rename", "saldo=balance", "--columns", "id,saldo", "--sort", "balance", "--desc")
	b.want(b.tranche(start...), 7, `line 3, key "C-2", field "balance": 'x' does not match pattern`)
	start = append(start, "--on-invalid", "fail", "--idempotency-key", "k", "--wait")
	b.want(b.tranche(start...), 3, "1 invalid")
	b.want(b.tranche("run", "errors", "last"), 0, "invalid", "C-2")
	b.want(b.tranche("run", "item", "last", "C-3"), 0, "ordinal  1", `{"id":"C-3","balance":"10"}`)
	b.want(b.tranche("run", "rerun", "last", "--failed"), 7, "1 item is invalid")
	b.want(b.tranche(append(start, "--on-duplicate", "skip")...), 7, "with other content: on_duplicate")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--types", "balance"), 2,
		"--types: want NAME=VALUE")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--schema", bad), 2, "not valid JSON")
}

const yearEndPlan = `# The year-end statements.
name: year-end
priority: 7
max_failed: 1%
steps:
  - name: make
    endpoint: echo
    chunk: 250
    in_flight: 8
`

func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func testPlans(t *testing.T, b *bench) {
	t.Helper()
	file := written(t, "y.yaml", yearEndPlan)
	b.want(b.tranche("plan", "list"), 0, "no saved plans", "tranche plan apply")
	b.want(b.tranche("plan", "apply", file), 0, "plan year-end is saved, version 1", "tranche run start year-end")
	b.want(b.tranche("plan", "apply", file), 0, "plan year-end is unchanged: version 1")
	b.want(b.pipe(strings.Replace(yearEndPlan, "250", "100", 1), "plan", "apply", "-"), 0,
		"plan year-end is version 2 now, after version 1")
	b.want(b.tranche("plan", "list"), 0, "year-end", "make to echo")
	b.want(b.tranche("plan", "list", "year-end"), 0, "VERSION")
	shown := b.tranche("plan", "show", "year-end@1")
	b.want(shown, 0, "plan year-end@1, applied", "the newest version is 2")
	testenv.Same(t, shown.out, yearEndPlan, "shown")
	var document struct {
		Version int
		Spec    struct{ Steps []struct{ Chunk int } }
	}
	r := b.tranche("--json", "plan", "show", "year-end")
	if err := json.Unmarshal([]byte(r.out), &document); err != nil || document.Version != 2 ||
		document.Spec.Steps[0].Chunk != 100 {
		t.Errorf("as JSON: %s, %v", r.out, err)
	}
	for _, args := range [][]string{
		{"plan", "list"}, {"plan", "list", "year-end"}, {"plan", "apply", file}, {"plan", "delete", "year-end"},
	} {
		if r := b.tranche(append([]string{"--json"}, args...)...); r.code != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%v: %d, not one JSON document: %s%s", args, r.code, r.out, r.err)
		}
	}
	b.want(b.tranche("plan", "show", "year-end"), 7, "was deleted", "tranche plan list")
	b.want(b.tranche("plan", "delete", "year-end"), 7, "was deleted")
	b.want(b.tranche("plan", "show", "year-end@x"), 2, "versions count from 1, like year-end@1")
	b.want(b.tranche("plan", "apply", "no-such.yaml"), 2, "no-such.yaml", "no such file")
}

// Types follow what the services of a plan's steps announce; a step whose service does not gives none for any.
func testTypesOfAPlan(t *testing.T, b *bench) {
	t.Helper()
	file := written(t, "y.yaml", strings.Replace(yearEndPlan, "name: year-end", "name: typed", 1))
	b.want(b.tranche("plan", "apply", file), 0)
	missing := b.tranche("plan", "types", "typed")
	b.want(missing, 1, "do not say what they read: echo (step make)", "Start a service", "tranche endpoints show")
	testenv.Same(t, missing.out, "", "types in spite of that")
	b.echo(nil)
	golang := "type MakeInput struct {\n\tName *string `json:\"name,omitempty\"`\n}"
	b.wantSoon([]string{"plan", "types", "typed"}, golang, "plan types typed; DO NOT EDIT", "package inputs")
	b.want(b.tranche("plan", "types", file, "--lang", "ts"), 0, "export type MakeInput = {\n  name?: string;\n};")
	b.want(b.tranche("plan", "types", "typed", "--step", "other"), 2, `no step "other" is done by a service`)
	b.want(b.tranche("plan", "types", "typed@9"), 7, "typed")
	bad := written(t, "bad.yaml", "steps: [{endpoint: 5}]")
	b.want(b.tranche("plan", "types", bad), 2, bad+":1:20", "endpoint: want text")
	b.want(b.tranche("--json", "plan", "types", file), 2, "types are source text")
}

func testABadPlanNamesFileAndLine(t *testing.T, b *bench) {
	t.Helper()
	bad := written(t, "bad.yaml", strings.Replace(yearEndPlan, "250", "9000", 1))
	want := []string{bad + ":8:12: steps[0].chunk: 9000 is not within 1 to 8192", "chunk: 9000"}
	b.want(b.tranche("plan", "apply", bad), 1, want...)
	b.want(b.pipe(people, "run", "start", bad, "--items", "-"), 1, want...)
	tabbed := written(t, "tab.yaml", "steps:\n\t- endpoint: echo\n")
	b.want(b.tranche("plan", "apply", tabbed), 1, tabbed+":2:1: a tab; YAML is indented with spaces")
	b.want(b.pipe("", "plan", "apply", "-"), 2, "standard input is empty")
	b.want(b.tranche("plan", "apply", written(t, "a plan.yaml", "steps: [{endpoint: e}]\n")), 1, `"a plan": use A-Z`)
}

func testARunOfAPlan(t *testing.T, b *bench) {
	t.Helper()
	file := written(t, "y.yaml", strings.Replace(yearEndPlan, "name: year-end", "name: yearly", 1))
	b.want(b.tranche("plan", "apply", file), 0)
	start := func(code int, text string, args ...string) {
		t.Helper()
		b.want(b.pipe(people, append([]string{"run", "start", "--items", "-"}, args...)...), code, text)
	}
	start(0, "plan yearly@1, 3 items", "yearly", "--name", "newest")
	start(0, "plan yearly@1, 3 items", "yearly@1", "--chunk", "auto", "--chunk-time", "2s", "--chunk-bytes", "1MiB",
		"--in-flight", "auto", "--rate", "10", "--attempts", "5", "--backoff", "2s", "--max-backoff", "1m",
		"--retry-codes", "BUSY", "--retry-codes", "SLOW", "--no-retry-codes", "GONE", "--request-timeout", "1m",
		"--max-failed", "0.5%", "--canary", "2", "--canary-auto-approve", "--priority=-3", "--name", "otherwise")
	start(0, "plan yearly, 3 items", file)
	start(0, "no service listens on endpoint echo", "--endpoint", "echo", "--max-failed", "none")
	b.want(b.tranche("--json", "run", "show", "newest"), 0, `"priority": 7`, `"max_failed": "1%"`)
	b.want(b.tranche("--json", "run", "show", "otherwise"), 0, `"priority": -3`, `"retry_codes": [`, `"SLOW"`,
		`"chunk_time": "2s"`, `"chunk_bytes": 1048576`, `"rate": 10`, `"max_failed": "0.5%"`, `"canary": 2`)

	start(2, `"nope" is neither a file here nor a saved plan`, "nope")
	start(2, "tranche plan list", "yearly@7")
	start(2, `"dir/nope" is neither a file here nor a saved plan`, "dir/nope")
	start(2, "no-plan.yaml", "no-plan.yaml")
	start(2, "either a plan or --endpoint", "yearly", "--endpoint", "echo")
	start(2, "--chunk: want a whole number like 500, or auto", "yearly", "--chunk", "many")
	start(2, "--in-flight: 0 is not within 1 to 10000", "yearly", "--in-flight", "0")
	start(2, "--attempts: 0 is not within 1 to 100", "yearly", "--attempts", "0")
	start(2, "--backoff: want a duration", "yearly", "--backoff", "5")
	start(2, "--request-timeout: 0s is not", "yearly", "--request-timeout", "0s")
	start(2, "--max-failed: want a number of items like 500, a percentage", "yearly", "--max-failed", "few")
	start(2, "--rate: -1 is not within", "yearly", "--rate=-1")
	start(2, `--retry-codes: "a b"`, "yearly", "--retry-codes", "a b")
	start(7, "chunk_time: it goes with chunk: auto only, and the chunk is 250", "yearly", "--chunk-time", "1s")
	start(7, "canary_auto_approve: there is no canary", "yearly", "--canary-auto-approve")
	b.want(b.tranche("run", "cancel", "--all"), 0)
}

const nightly = `name: nightly
cron: "30 2 * * *"
zone: Europe/Berlin
plan: year-end
items: {file: "{due.date}.csv"}
not_before: "02:00"
done_by: "06:00"
`

// A run that could not be started is reported by the exit code, regardless of the output.
func testRunNowThatFails(t *testing.T, b *bench) {
	t.Helper()
	b.want(b.pipe(strings.Replace(nightly, "nightly", "at-once", 1)+"start_attempts: 1\n", "schedule", "apply", "-"), 0,
		"version 1")
	b.want(b.tranche("schedule", "run-now", "at-once", "--wait", "2m"), 1, "the run failed", "year-end")
	r := b.tranche("--json", "schedule", "run-now", "at-once", "--wait", "2m")
	var now client.Occurrence
	if err := json.Unmarshal([]byte(r.out), &now); r.code != 1 || err != nil || now.State != "failed" || r.err != "" {
		t.Errorf("exit %d, %v: %s%s", r.code, err, r.out, r.err)
	}
}

func testSchedules(t *testing.T, b *bench) {
	t.Helper()
	file := written(t, "n.yaml", nightly)
	b.want(b.tranche("schedule", "list"), 0, "no saved schedules", "tranche schedule apply")
	b.want(b.tranche("schedule", "preview", file, "--count", "2"), 0, "DUE IN Europe/Berlin", " 02:30 +0", "DONE BY (UTC)",
		"warning: plan: year-end is not saved")
	b.want(b.tranche("schedule", "apply", file), 0, "schedule nightly is saved, version 1; due next ",
		"--schedule-files DIR")
	b.want(b.tranche("schedule", "apply", file), 0, "unchanged: version 1")
	b.want(b.pipe(strings.Replace(nightly, "30 2", "0 3", 1), "schedule", "apply", "-"), 0,
		"version 2 now, after version 1")
	b.want(b.tranche("schedule", "list"), 0, "0 3 * * *", "Europe/Berlin", "year-end", "active")
	b.want(b.tranche("schedule", "run-now", "nightly", "--wait", "0s"), 0, "it is due", "tranche schedule history nightly")
	b.want(b.tranche("schedule", "pause", "nightly"), 0, "nightly is paused", "waiting meanwhile: 1 due time")
	b.want(b.tranche("schedule", "history", "nightly"), 0, "DUE", "now")
	b.want(b.tranche("schedule", "resume", "nightly"), 0, "nightly continues; due next ")
	r := b.tranche("--json", "schedule", "delete", "nightly")
	if r.code != 0 || !json.Valid([]byte(r.out)) {
		t.Errorf("not one JSON document: %s%s", r.out, r.err)
	}
	b.want(b.tranche("schedule", "show", "nightly"), 7, "was deleted", "tranche schedule list")
	bad := written(t, "bad.yaml", strings.Replace(nightly, "30 2", "30 25", 1))
	b.want(b.tranche("schedule", "apply", bad), 1, bad, ":2:7: cron", `cron: "30 25`)
	b.want(b.tranche("schedule", "preview", "no-such.yaml"), 2, "no-such.yaml", "no such file")
}

// buried puts dead letters into the database, with what a terminal must not be told in them.
func (b *bench) buried(endpoint string, n int, letter deadletter.DeadLetter) []workqueue.LetterID {
	b.Helper()
	store := database.New(testenv.Connect(b.T, b.database))
	letter.Endpoint, letter.Cause, letter.Message = endpoint, "handler_panic", "it \x1b[31mdied"
	for range n {
		letter.MsgID = uuid.NewString()
		if isNew, err := deadletter.New(store).Add(b.Context(), letter); err != nil || !isNew {
			b.Fatal(isNew, err)
		}
	}
	page := testenv.Must(deadletter.New(store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: n}))(b)
	var ids []workqueue.LetterID
	for i := range page.Letters {
		ids = append(ids, page.Letters[i].ID)
	}
	return ids
}

func testDeadLettersByHand(t *testing.T, b *bench) {
	t.Helper()
	b.want(b.tranche("dlq", "list"), 0, "no dead letters")
	b.want(b.tranche("dlq", "requeue", "--all"), 0, "no dead letter waits")
	headers := map[string][]string{"Evil": {"\x1b[31m"}, wire.HeaderMode: {"single"}}
	mail := b.buried("mail", 3, deadletter.DeadLetter{
		Body: []byte(`{"items":[{"i":0,"k":"a\u001b[31m"}]}`), Headers: headers, Stack: "statement:1", Deliveries: 5,
	})
	loop := b.buried("loop", 1, deadletter.DeadLetter{Body: []byte("\x1b[31mtext"), Requeued: deadletter.MaxRequeues})[0]
	b.want(b.tranche("dlq", "list"), 0, loop.String()[:18], mail[2].String()[:18], "mail", "handler_panic", "waiting",
		`it \x1b[31mdied`)
	b.want(b.tranche("dlq", "list", "--endpoint", "mail", "--limit", "2"), 0, "continue with --after "+mail[1].String())
	b.want(b.tranche("dlq", "list", "--state", "dropped"), 0, "no dead letters")
	b.want(b.tranche("dlq", "show", mail[0].String()), 0, "statement:1", "deliveries", `Evil`, `\x1b[31m`, `"i": 0`,
		"tranche dlq requeue "+mail[0].String()[:18])
	b.want(b.tranche("dlq", "show", loop.String()), 0, `\x1b[31mtext`)

	b.want(b.tranche("dlq", "requeue", mail[0].String()[:18]), 0, "1 dead letter requeued")
	b.want(b.tranche("dlq", "requeue", mail[0].String()), 1, "0 dead letters requeued, 1 refused", "already")
	b.want(b.tranche("dlq", "drop", mail[0].String()), 7, "it is requeued")
	b.want(b.tranche("dlq", "requeue", "--endpoint", "mail"), 0, "2 dead letters requeued")
	b.want(b.tranche("dlq", "requeue", "--all"), 1, "1 refused", "fix the service")
	b.want(b.tranche("dlq", "requeue", "--all", "--force"), 0, "1 dead letter requeued")
	b.buried("mail", 1, deadletter.DeadLetter{})
	b.want(b.tranche("dlq", "drop", "--all"), 0, "1 dead letter dropped")
	b.want(b.tranche("dlq", "list", "--state", "requeued"), 0, "mail", "loop")

	for _, op := range []string{"requeue", "drop"} {
		b.want(b.tranche("dlq", op), 2, "--all")
		b.want(b.tranche("dlq", op, "--all", "--endpoint", "mail"), 2, "either ids")
		b.want(b.tranche("dlq", op, "ffff"), 7, "no dead letter has", "tranche dlq list")
	}
	b.want(b.tranche("dlq", "show", "nope"), 7, "tranche dlq list")
	b.want(b.tranche("dlq", "list", "--limit", "0"), 2, "--limit")
	b.want(b.tranche("dlq", "list", "--state", "lost"), 2, "--state")
	b.want(b.tranche("dlq", "list", "--after", "x"), 7, "after is not")
}

func testTheQuarantineByHand(t *testing.T, b *bench) {
	t.Helper()
	b.want(b.tranche("quarantine", "list"), 0, "nothing is in quarantine")
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it"), 0, "3 items")
	store := database.New(testenv.Connect(t, b.database))
	run := testenv.Must(inspect.New(store).Resolve(t.Context(), "it"))(t)
	for range 2 {
		err := deadletter.New(store).Quarantine(t.Context(), deadletter.Quarantined{
			Reason: "json", Detail: "byte \x1b[31m3", Subject: "tranche.reply.echo", Run: uuid.UUID(run), Body: []byte("{\x1b"),
		})
		testenv.NoError(t, err)
	}
	b.want(b.tranche("quarantine", "list", "--run", "it", "--limit", "1"), 0, "json", `byte \x1b[31m3`, "--after 2")
	b.want(b.tranche("quarantine", "show", "2"), 0, "tranche.reply.echo", run.String(), `{\x1b`)
	b.want(b.tranche("run", "show", "it"), 0, "2 messages about it", "tranche quarantine list")
	b.want(b.tranche("quarantine", "show", "9"), 7, "tranche quarantine list")
	b.want(b.tranche("quarantine", "list", "--run", "nope"), 7, "tranche run list")
}

// Operators change how much an instance does concurrently while it runs.
func testEndpointsByHand(t *testing.T, b *bench) {
	t.Helper()
	b.echo(nil)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--wait"), 3, "1 failed")
	b.wantSoon([]string{"endpoints"}, "ENDPOINT", "BACKLOG", "CALLS", "RATE", "P99", "1: echo 1.0.0")
	b.wantSoon([]string{"endpoints", "list"}, "1: echo 1.0.0")
	b.wantSoon([]string{"endpoints", "show", "echo"}, "left to the services", "3 items, 1 of them with an error", "1.0.0",
		"listening")
	b.want(b.tranche("endpoints", "set", "echo", "--concurrency", "3"), 0, "3 concurrent chunks")
	b.want(b.tranche("endpoints", "show", "echo"), 0, "3 for each instance")
	eventually(t, "the instance has taken it over", func() bool {
		var e client.Endpoint
		err := json.Unmarshal([]byte(b.tranche("endpoints", "show", "echo", "--json").out), &e)
		return err == nil && len(e.Listeners) == 1 && e.Listeners[0].Concurrency == 3
	})
	b.want(b.tranche("endpoints", "set", "echo", "--concurrency", "4", "--if-was", "concurrency=default"), 7, "is now 3")
	b.want(b.tranche("endpoints", "set", "echo", "--concurrency", "default"), 0, "left to its services")
	for _, n := range []string{"0", "-1", "1025", "many", ""} {
		b.want(b.tranche("endpoints", "set", "echo", "--concurrency="+n), 2, "--concurrency", "or default")
	}
	b.want(b.tranche("endpoints", "set", "ehco", "--concurrency", "1"), 0,
		"warning: no service listens on ehco and no run uses it; known: echo")
	b.want(b.tranche("endpoints", "set", "a b", "--concurrency", "1"), 7, "endpoint name")
	b.want(b.tranche("endpoints", "show", "nope"), 7, "no service listens", "tranche endpoints")
}

// A letter that was requeued comes to the service, which answers the one who asked.
func testARequeuedLetterIsServed(t *testing.T, b *bench) {
	t.Helper()
	nc := testenv.Dial(t, b.nats, nats.Name("single"))
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "post", Version: "1.0.0"}))(t)
	served := make(chan int, 10)
	testenv.NoError(t, endpoints.HandleEach(svc, "post", func(_ context.Context, in int) (int, error) {
		served <- in
		return in, nil
	}))
	stop := testenv.Keep(t, t.Errorf, "the service", svc.Run)
	defer stop()
	b.buried("post", 1, deadletter.DeadLetter{Mode: "single", Body: []byte(`{"items":[{"i":0,"k":"a","d":7}]}`),
		Headers: map[string][]string{
			wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderMode: {"single"},
			wire.HeaderSlice: {uuid.NewString()}, wire.HeaderRun: {uuid.NewString()},
			wire.HeaderStep: {"0"}, wire.HeaderAttempt: {"1"}, wire.HeaderGeneration: {"1"},
		}})
	b.want(b.tranche("dlq", "requeue", "--endpoint", "post"), 0, "1 dead letter requeued")
	got := -1
	eventually(t, "it is served", func() bool {
		select {
		case got = <-served:
			return true
		default:
			return false
		}
	})
	testenv.Same(t, got, 7, "what the service got")
}

func testWhatPeopleMustDoByHand(t *testing.T, b *bench) {
	t.Helper()
	b.wantSoon([]string{"nodes"}, "NODE", "live", "leader")
	b.want(b.tranche("nodes", "--json"), 0, `"nodes": [`)
	b.wantSoon([]string{"health", "--json"}, `"conditions": `) // critical as long as no node leads
	b.want(b.tranche("health", "mute", "failed_items", "--reason", "known"), 2, "--for TIME or --until-worse")
	b.want(b.tranche("health", "mute", "failed_items", "--for", "8h"), 2, "--reason")
	b.want(b.tranche("health", "mute", "failed_items", "--for", "8h", "--reason", "known"), 7, "tranche health")
	db := testenv.Connect(t, b.database)
	testenv.Must(db.Exec(t.Context(), `INSERT INTO dead_letter (id, msg_id, endpoint, cause)
		VALUES (gen_random_uuid(), '1', 'lost', 'gave_up')`))(t)
	b.wantSoon([]string{"health", "--json"}, `"kind": "dead_letters"`)
	b.want(b.tranche("health", "ack", "dead_letters", "lost"), 0, "dead_letters lost is acknowledged by ")
	b.wantSoon([]string{"health"}, "WARNING 1 dead letter of lost", "acknowledged")
	b.want(b.tranche("health", "mute", "dead_letters", "--until-worse", "--reason", "of the test"), 0,
		"until it gets worse", "tranche health clear dead_letters")
	shown := b.wantSoon([]string{"health"}, "MUTED", "of the test")
	// The disk may be full.
	if before, _, _ := strings.Cut(shown.out, "MUTED"); strings.Contains(before, "dead letter") {
		t.Errorf("it is told anyway:\n%s", before)
	}
	b.want(b.tranche("health", "clear", "dead_letters"), 0, "reported again")
	b.want(b.tranche("health", "clear", "dead_letters"), 0, "dead_letters was neither muted nor acknowledged")
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "people"), 0, "started")
	b.want(b.tranche("run", "items", "people", "--from", "1", "--limit", "1"), 0, "ORDINAL", "--after 1")
	b.want(b.tranche("run", "items", "people", "--state", "odd"), 2, "--state")
	b.want(b.tranche("run", "items", "people", "--limit", "0"), 2, "--limit")
	b.want(b.tranche("run", "requests", "people"), 0, "scheduled", "sent")
	b.want(b.tranche("run", "requests", "nope"), 7, "tranche run list")
	b.want(b.tranche("dlq", "drop", "--all"), 0)
	testenv.Must(db.Exec(t.Context(), `DELETE FROM dead_letter`))(t)
}

// A container's health check asks this, without a token.
func testHealthReady(t *testing.T, b *bench) {
	t.Helper()
	b.wantSoon([]string{"health", "ready"}, "ready") // which does not wait for long
	b.wantSoon([]string{"health", "ready", "--json"}, `"ready": true`)
	b.want(runProgram(t, []string{"TRANCHE_URL=http://127.0.0.1:1"}, "", "health", "ready"), 1,
		"ask http://127.0.0.1:1/readyz")
	listen := "TRANCHE_LISTEN=0.0.0.0:" + b.url[strings.LastIndex(b.url, ":")+1:] // as in its container
	b.want(runProgram(t, []string{listen}, "", "health", "ready"), 0, "ready")
	b.want(runProgram(t, []string{listen, "TRANCHE_TLS_CERT=x"}, "", "health", "ready"), 1, "ask https://127.0.0.1:")
	b.want(runProgram(t, nil, "", "token", "create", "--database", "env", "--name", "me", "--role", "viewer"), 2,
		"TRANCHE_DATABASE is not set")
}
