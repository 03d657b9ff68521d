package archive_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/archive"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/retention"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var errDown = errors.New("a test takes nothing")

// memory is a storage that may refuse, or do something else, before the end of its nth object.
type memory struct {
	objects map[string][]byte
	names   []string // in the order of their ends
	nth     int
	do      func() error
}

func (*memory) Target() string { return "memory" }

func (m *memory) Put(_ context.Context, name string, body io.Reader) error {
	all, err := io.ReadAll(body)
	if m.nth--; m.nth == 0 {
		err = errors.Join(err, m.do())
	}
	if err != nil {
		return err
	}
	m.objects[name], m.names = all, append(m.names, path.Base(name))
	return nil
}

type bench struct {
	*storetest.Bench
	*memory

	archive *archive.Archive
	store   retention.Store
	lease   workqueue.Lease
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{Bench: storetest.Setup(t), memory: &memory{objects: map[string][]byte{}}}
	b.archive, b.store, b.lease = archive.New(b.Store, b.memory, runs.WriteItems), retention.New(b.Store), b.Lead()
	testenv.Must(b.store.NoteArchive(t.Context(), b.lease, "memory", nil))(t)
	return b
}

func (b *bench) goes(run workqueue.RunID, state string) bool {
	b.Helper()
	return testenv.Must(b.store.DeleteRun(b.Context(), b.lease, run, time.Now(), "age 1h", state))(b)
}

func (b *bench) lines(name string) (all []map[string]any) {
	b.Helper()
	unpacked := testenv.Must(gzip.NewReader(bytes.NewReader(b.objects[name])))(b)
	for lines := json.NewDecoder(unpacked); ; {
		var line map[string]any
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return all
		}
		testenv.NoError(b, err)
		all = append(all, line)
	}
}

// folders returns the folders that are whole: each with a manifest that is right about all else in it.
func (b *bench) folders() (whole []string) {
	b.Helper()
	for name, doc := range b.objects {
		dir := path.Dir(name)
		if path.Base(name) != "manifest.json" {
			continue
		}
		var m struct {
			Objects []struct {
				Name, SHA256 string
				Lines, Bytes int
			}
		}
		testenv.NoError(b, json.Unmarshal(doc, &m))
		for _, o := range m.Objects {
			object := b.objects[path.Join(dir, o.Name)]
			sum := sha256.Sum256(object)
			if o.Bytes != len(object) || o.SHA256 != hex.EncodeToString(sum[:]) ||
				o.Lines != len(b.lines(path.Join(dir, o.Name))) {
				b.Errorf("the manifest of %s says %+v", dir, o)
			}
		}
		whole = append(whole, dir[strings.Index(dir, "/")+1:])
	}
	slices.Sort(whole)
	return whole
}

// A run is archived with all that an export has, the manifest last, and only then deleted.
func TestARunIsArchivedBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Ended(30, time.Hour)
	if b.goes(run, "") {
		t.Fatal("it was deleted without an archive")
	}
	testenv.NoError(t, b.archive.Check(t.Context()))
	state := testenv.Must(b.archive.Run(t.Context(), run))(t)
	testenv.Same(t, strings.Join(b.names, " "), "README items.ndjson.gz audit.ndjson.gz manifest.json", "objects")
	testenv.Same(t, strings.Join(b.folders(), " "), "runs/"+run.String()+"/"+state, "whole folders")
	var items, audit []map[string]any
	for name, doc := range b.objects {
		switch path.Base(name) {
		case "items.ndjson.gz":
			items = b.lines(name)
		case "audit.ndjson.gz":
			audit = b.lines(name)
		case "manifest.json":
			testenv.Has(t, string(doc), `"id": "`+run.String(), "the manifest")
		}
	}
	if len(items) != 30 || items[3]["key"] != "C3" || items[3]["payload"] == nil || items[3]["result"] == nil {
		t.Errorf("items: %v", items)
	}
	if n := len(audit); n == 0 || audit[n-1]["action"] != "rerun" || audit[n-1]["salt"] == nil ||
		audit[n-1]["hash"] == nil {
		t.Errorf("audit: %v", audit)
	}

	// What is done to the run meanwhile counts: the archive has it, or the run stays.
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "ann",
		Select: redo.Selection{Keys: []string{"C2"}}}))(t)
	b.Finish(run)
	b.Exec(`UPDATE run_event SET published_at = tranche_now()`)
	b.Exec(`UPDATE batchrun SET finished_at = tranche_now() - interval '1 hour'`)
	if b.goes(run, state) {
		t.Fatal("it was deleted in another state than that of the archive")
	}
	b.nth, b.do = 2, func() error {
		b.Exec(`INSERT INTO audit_log (actor, action, run_id) VALUES ('ann', 'note', $1)`, run)
		return nil
	}
	testenv.Same(t, testenv.Must(b.archive.Run(t.Context(), run))(t), "", "the state of a run that changes meanwhile")
	state = testenv.Must(b.archive.Run(t.Context(), run))(t)
	testenv.Same(t, len(b.folders()), 2, "whole folders, one of each state that was archived")
	if !b.goes(run, state) {
		t.Error("it was not deleted")
	}
	testenv.Same(t, testenv.Must(b.archive.Run(t.Context(), run))(t), "", "the state of a run that was deleted")
}

// Of several steps all parts are there, and what an ended run lacks is missing in its archive, too.
func TestItemsAreArchivedWithAllParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, open := b.Load(storetest.Planned(storetest.Need("a"), storetest.Need("b", 0)), 5), b.OpenRun(nil)
	b.RecordStep(run, 0, 3)
	b.RecordStep(run, 1)
	b.Add(open, []string{"X"})
	testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: open, Actor: "ann"}))(t)
	for run, want := range map[workqueue.RunID]string{run: `[{"key":"C0","ordinal":0,"parts":{"a":{"result":{"of":0},` +
		`"state":"done"},"b":{"result":{"of":0},"state":"done"}},"payload":{},"state":"done"}`,
		open: `[{"key":"X","ordinal":0,"payload":{},"state":"missing"}]`} {
		if state := testenv.Must(b.archive.Run(t.Context(), run))(t); state == "" {
			t.Fatal("it has no state")
		}
		for name := range b.objects {
			if strings.Contains(name, run.String()) && path.Base(name) == "items.ndjson.gz" {
				testenv.Has(t, string(testenv.Must(json.Marshal(b.lines(name)))(t)), want, "items")
			}
		}
	}
}

// An attempt that fails at any object leaves nothing that looks whole, and a later one is as if there had been none.
func TestAnAttemptThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Ended(9, time.Hour)
	for b.nth = 1; ; {
		at := b.nth
		b.do = func() error { return errDown }
		_, err := b.archive.Run(t.Context(), run)
		if at > 3 {
			testenv.NoError(t, err)
			break
		}
		if testenv.Is(t, err, errDown, "object %d", at); len(b.folders()) > 0 {
			t.Errorf("after it failed at object %d, %v is whole", at, b.folders())
		}
		testenv.NoError(t, b.archive.Check(t.Context()))
		b.nth = at + 1
	}
	b.nth = 0
	first := maps.Clone(b.objects)
	testenv.Must(b.archive.Run(t.Context(), run))(t)
	for name, object := range b.objects {
		if !bytes.Equal(object, first[name]) && path.Base(name) != "manifest.json" {
			t.Errorf("%s differs when it is stored again", name)
		}
	}
	// What cannot be read is not the storage's fault, and is not whole either.
	broken := archive.New(b.Store, b.memory, func(context.Context, *database.DB, workqueue.RunID, int, io.Writer) (int64,
		error) {
		return 8, nil
	})
	_, err := broken.Run(t.Context(), run)
	testenv.Says(t, err, "has 9 items, and 8", "a run with an item too few")
}

// Rows of the audit log are deleted once they are archived, and the chain holds over both.
func TestTheAuditLogIsArchivedBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`UPDATE audit_expiry SET min_age = '0'`)
	b.Exec(`UPDATE retention SET age = interval '12 hours' WHERE kind = 'audit'`)
	b.Exec(`INSERT INTO audit_log (at, actor, action, subject, detail, before) SELECT
		tranche_now() - (40 - i) * interval '1 hour 1 second', 'ann', 'x', 'ü "' || i,
		'{"b": "<&\u00fc", "a": [1.0, null]}', '{}' FROM generate_series(1, 30) i`)
	testenv.NoError(t, b.store.SealAudit(t.Context()))
	before := time.Now().Add(-12 * time.Hour)
	expire := func() int64 {
		t.Helper()
		return testenv.Must(b.store.DeleteOld(t.Context(), b.lease, retention.RetainAudit, before, 1000))(t)
	}
	testenv.Same(t, expire(), 0, "rows deleted before they are archived")
	after, last, err := b.store.AuditToArchive(t.Context(), before)
	testenv.NoError(t, err)
	testenv.Same(t, fmt.Sprint(after, last), "0 30", "due: all of the next day, too")
	b.nth, b.do = 1, func() error { return errDown }
	testenv.Is(t, b.archive.Audit(t.Context(), after, last), errDown, "a storage that refuses")
	testenv.NoError(t, b.archive.Audit(t.Context(), after, last))
	testenv.Same(t, strings.Join(b.folders(), " "), "audit/000000000001-000000000030", "whole folders")
	testenv.NoError(t, b.store.AuditArchived(t.Context(), b.lease, last))
	testenv.Same(t, expire(), 28, "rows deleted")
	kept := len(b.objects)
	if err := b.archive.Audit(t.Context(), after, last); err == nil || len(b.objects) != kept {
		t.Error("a leader that was replaced stored what is left of the rows in place of all")
	}
	after, last, err = b.store.AuditToArchive(t.Context(), before)
	testenv.NoError(t, err)
	testenv.Same(t, fmt.Sprint(after, last), "30 0", "due after it")

	// The manifest's head is of the chain that continues, and the statement of the docs finds what was changed.
	var rows [][]byte
	for name, doc := range b.objects {
		switch path.Base(name) {
		case "manifest.json":
			var m struct{ Head string }
			testenv.NoError(t, json.Unmarshal(doc, &m))
			report := testenv.Must(doctor.New(b.Store).VerifyAudit(t.Context(), m.Head))(t)
			if !strings.HasPrefix(m.Head, "30:") || slices.ContainsFunc(report.Findings, func(f doctor.AuditFinding) bool {
				return strings.Contains(f.What, "head")
			}) {
				t.Errorf("head %s: %+v", m.Head, report)
			}
		case "audit.ndjson.gz":
			unpacked := testenv.Must(gzip.NewReader(bytes.NewReader(doc)))(t)
			rows = bytes.Split(bytes.TrimSpace(testenv.Must(io.ReadAll(unpacked))(t)), []byte("\n"))
		}
	}
	page := string(testenv.Must(os.ReadFile("../../docs/security.md"))(t))
	statement := regexp.MustCompile(`(?s)CREATE TEMP TABLE archived .*?;\n.*?\n(SELECT .*?);`).FindStringSubmatch(page)
	if statement == nil {
		t.Fatal("docs/security.md has no statement")
	}
	for says, change := range map[string]string{"": `SELECT`, "9": `DELETE FROM archived WHERE line->>'seal' = '8'`,
		"7": `UPDATE archived SET line = jsonb_set(line, '{detail,b}', '"x"') WHERE line->>'seal' = '7'`} {
		b.Exec(`CREATE TABLE archived (line jsonb)`)
		b.Exec(`INSERT INTO archived SELECT unnest($1::jsonb[])`, rows)
		b.Exec(change)
		var found string
		testenv.NoError(t, b.Pool.QueryRow(t.Context(),
			`SELECT coalesce(string_agg(seal, ' '), '') FROM (`+statement[1]+`) s`).
			Scan(&found))
		testenv.Same(t, found, says, "%s: rows found", change)
		b.Exec(`DROP TABLE archived`)
	}
}
