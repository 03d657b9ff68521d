package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/storetest"
	"github.com/tranchehq/tranche/workqueue/start"
)

// secret stands in everything that is kept of a person.
const (
	person = "AHV-756.1"
	secret = "Zgraggen"
)

func (b *bench) erase(req erasure.Request) erasure.Outcome {
	b.Helper()
	req.Key, req.Actor = person, "ann"
	out, err := erasure.New(b.Store).Erase(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// personal is a run of which one item of four is the person's: with a payload, an error that was tried again, a failure
// of its chunk, a result, a correction, dead letters and quarantined messages of it, and words about it.
func (b *bench) personal() workqueue.RunID {
	b.Helper()
	req := storetest.Request()
	req.Session = b.Session
	i := 0
	loaded, err := start.New(b.Store).Load(b.Context(), req, func(item *start.LoadItem) error {
		if i == 4 {
			return io.EOF
		}
		item.Key, item.Payload = fmt.Sprint("C", i), []byte(`{}`)
		if i == 1 {
			item.Key, item.Payload = person, []byte(`{"name":"`+secret+`"}`)
		}
		i++
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	run := loaded.Run
	later := storetest.Faulty(b.One(run), workqueue.SlotError{Code: "LATER", Message: "not now", Retry: true})
	later.Slots[1].Err = &workqueue.SlotError{Code: "LATER", Message: "not now for " + secret, Retry: true}
	b.Record(later)
	s := b.One(run)
	b.Exec(`UPDATE work_slice SET error_code = 'BUSY', error_message = $2 WHERE id = $1`, s.ID, "chunk of "+secret)
	a := storetest.Whole(s)
	a.Slots[1].Result = []byte(`{"hello":"` + secret + `"}`)
	b.Record(a)
	b.Correct(run, `{"name":"`+secret+` 2"}`, person)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "BAD",
		Message: person + ": nobody is called " + secret}))
	b.WantState(run, "completed", 2)
	for _, ordinal := range []int{1, 2} {
		b.Exec(`WITH l AS (INSERT INTO work_large (id, run_id, step, ordinal, slice_id, pieces, bytes, sha256, content_type)
			VALUES (gen_random_uuid(), $1, 0, $2, $3, 1, 8, sha256('x'), $4) RETURNING id)
			INSERT INTO work_piece (large_id, piece, bytes) SELECT id, 1, convert_to($5, 'UTF8') FROM l`, run, ordinal, s.ID,
			map[bool]string{true: "text/" + secret, false: "text/plain"}[ordinal == 1],
			map[bool]string{true: "letter to " + secret, false: "letter"}[ordinal == 1])
	}
	b.Exec(`UPDATE run_correction SET reason = $2 WHERE run_id = $1`, run, "the address of "+person+" was wrong")
	l := letter("l"+run.String(), "e")
	l.Run, l.Slice, l.Body, l.Stack = &run, &s.ID, []byte(secret), secret
	b.bury(l)
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, run_id, slice_id, headers, body)
		VALUES ('r', $3, 's', $1, $2, jsonb_build_object('X', $3::text), convert_to($3, 'UTF8'))`, run, s.ID, secret)
	b.Exec(`INSERT INTO run_event (id, run_id, generation, kind, payload)
		VALUES (gen_random_uuid(), $1, 2, 'noted', jsonb_build_object('of', ARRAY[$2::text]))`, run, person)
	if err := control.New(b.Store).Note(b.Context(), run, "called because of "+person, "ann"); err != nil {
		b.Fatal(err)
	}
	return run
}

// aside leaves traces that belong to no item of a run.
func (b *bench) aside() {
	b.Helper()
	packed, err := zstd.NewWriter(nil)
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(`{"items":[{"key":"` + person + `","name":"` + secret + `"}]}`)
	l := letter("alone", "e")
	l.Body, l.Headers = packed.EncodeAll(body, nil), map[string][]string{"Tranche-Encoding": {"zstd"}}
	b.bury(l, letter("other", "e"))
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, body) VALUES ('r', 'd', 's', $1), ('r', 'd', 's', 'x')`, body)
	b.Exec(`INSERT INTO health_mark (kind, subject, state, by, reason, severity, count)
		VALUES ('k', 's', 'aside', 'ann', $1, 'info', 1)`, "waits for "+person+".")
	b.Exec(`INSERT INTO api_request (user_name, key, operation, fingerprint, claim, session_id, status, content_type, body)
		VALUES ('ann', 'k', 'correct', '', gen_random_uuid(), gen_random_uuid(), 200, 'application/json', $1)`,
		[]byte(`{"examples":["`+person+`","AHV-756.12"]}`))
	b.Exec(`INSERT INTO alert (name, spec, source, created_by, changed_by, error)
		VALUES ('a', '{}', '', 'ann', 'ann', 'about ' || $1)`, person)
	b.Exec(`INSERT INTO alert_message (id, alert, what, grp, severity, body)
		VALUES (gen_random_uuid(), 'a', 'alert', 'g', 'info', jsonb_build_object('said', 'of ' || $1::text, $1::text, 1))`,
		person)
	b.Exec(`INSERT INTO audit_log (actor, action, subject, detail)
		VALUES ('ann', 'collector_drop', 'c', jsonb_build_object('keys', ARRAY[$1::text, 'C7']))`, person)
}

// everything is all that stands in all tables, as text.
func (b *bench) everything() string {
	b.Helper()
	tables, err := pg.Collect(b.Context(), b.Pool, pgx.RowTo[string], `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY 1`)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := b.Pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(b.Context(), `SET bytea_output = 'escape'`); err != nil {
		b.Fatal(err)
	}
	var all strings.Builder
	for _, name := range tables {
		fmt.Fprintf(&all, "TABLE %s\n", name)
		if _, err := conn.Conn().PgConn().CopyTo(b.Context(), &all, "COPY "+name+" TO STDOUT"); err != nil {
			b.Fatal(err)
		}
	}
	return all.String()
}

// traces are the lines of everything that have something of the person.
func (b *bench) traces() (left []string) {
	b.Helper()
	table := ""
	for line := range strings.Lines(b.everything()) {
		if name, ok := strings.CutPrefix(line, "TABLE "); ok {
			table = name
		} else if strings.Contains(line, secret) || strings.Contains(strings.ReplaceAll(line, person+"2", ""), person) {
			left = append(left, table+line)
		}
	}
	return left
}

// collectorOfPerson makes collector c, which gets operations of the person.
func (b *bench) collectorOfPerson() {
	b.Helper()
	spec := collector.CollectorSpec{Endpoint: storetest.Endpoint, MinSize: 2, MaxSize: 3,
		MaxAge:      collector.Span(time.Hour),
		MaxAttempts: 2, InFlight: 100, Dedupe: collector.DefaultDedupe, Timeout: collector.Span(time.Minute),
		Order: collector.OrderFIFO}
	if _, err := collector.New(b.Store).ApplyCollector(b.Context(), collector.Text{Name: "c", Spec: spec,
		Source: "c"}, "ann"); err != nil {
		b.Fatal(err)
	}
}

// operation adds one of the person's to collector c.
func (b *bench) operation(id string) {
	b.Helper()
	op := collector.Op{ID: id, Key: person, Payload: []byte(`{"name":"` + secret + `"}`)}
	if _, _, err := collector.New(b.Store).AddOps(b.Context(), "c", 0, [][]collector.Op{{op}}); err != nil {
		b.Fatal(err)
	}
}

// Nothing that is kept has anything of the person, in no table, and the books are right as they were.
func TestErase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.collectorOfPerson()
	run, other := b.personal(), b.personal()
	b.aside()
	b.operation("o1")
	var busy *erasure.UnderWayError
	_, err := erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: person, Actor: "ann"})
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "collector c has operations") {
		t.Fatalf("while an operation waits: %v", err)
	}
	// One that stands in a partition, and is folded by the person's key.
	b.Exec(`UPDATE collector_op SET fold = key, key = 'P' || key`)
	b.Exec(`UPDATE collector_key SET key = 'P' || key`)
	if _, err = erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: person, Actor: "ann"}); !errors.As(err,
		&busy) {
		t.Fatalf("while one waits that is folded by it: %v", err)
	}
	b.operation("o2")
	b.Exec(`UPDATE collector_op SET parked_at = clock_timestamp(), error_code = 'X', error_message = $1`, secret)
	b.Exec(`UPDATE collector_key SET fresh = 0, parked = 1, due_at = NULL, oldest_at = NULL, failed_message = $1`, secret)
	if n := len(b.traces()); n < 25 {
		t.Fatalf("%d traces: %q", n, b.traces())
	}

	before := b.everything()
	would := b.erase(erasure.Request{DryRun: true})
	if after := b.everything(); after != before {
		t.Error("a dry run has changed something")
	}
	did := b.erase(erasure.Request{Run: run})
	if len(did.Runs) != 1 || did.Erased.Items != 1 || did.Erased.Results != 2 || did.Erased.Payloads != 1 ||
		did.Erased.DeadLetters != 1 || did.Erased.Quarantine != 1 || did.Erased.Operations != 0 {
		t.Errorf("out of one run: %+v", did)
	}
	for _, trace := range b.traces() {
		if strings.Contains(trace, run.String()) {
			t.Errorf("left of the run: %s", trace)
		}
	}
	did = b.erase(erasure.Request{Reason: "article 17"})
	if len(would.Runs) != 2 || would.Erased.Items != 2 || would.Erased.Operations != 2 || did.Erased.Operations != 2 ||
		did.Erased.Items != 1 || would.Erased.Texts-did.Erased.Texts != 2 {
		t.Errorf("would be erased: %+v; was: %+v", would, did)
	}
	if left := b.traces(); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, "\n"))
	}
	all := b.everything()
	for _, kept := range []string{"AHV-756.12", "other", "called because of " + did.Marker, "article 17"} {
		if !strings.Contains(all, kept) {
			t.Errorf("%s is gone, too", kept)
		}
	}
	for _, run := range []workqueue.RunID{run, other} {
		b.WantTally(run, storetest.Tally{Done: 3, Failed: 1})
		if n := b.Number(`SELECT count(*) FROM run_item WHERE run_id = $1 AND key LIKE 'erased-%' AND state = 'failed'
			AND error_code = 'BAD'`, run); n != 1 {
			t.Errorf("%d items have the marker", n)
		}
		if n := b.Number(`SELECT payload_bytes FROM work_block WHERE run_id = $1`, run); n != 3*2+len(`{"erased":true}`) {
			t.Errorf("the block has %d bytes of payloads", n)
		}
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'erase' AND detail ->> 'hash' LIKE
		substr(detail ->> 'marker', 8) || '%' AND length(detail ->> 'salt') = 32`); n < 4 {
		t.Errorf("%d rows of the audit log say so", n)
	}
	b.Check()
	if did := b.erase(erasure.Request{}); did.Erased != (erasure.Erased{}) || len(did.Runs) > 0 {
		t.Errorf("the second time: %+v", did)
	}
}

// An item that has no outcome yet keeps its run, and all others, from being touched; one that has does not, whatever
// else the run is at.
func TestEraseWhileRunsAreUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	done := b.personal()
	run := b.LoadKeys(storetest.Chunked(1), person, "C1")
	before := b.everything()
	_, err := erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: person, Actor: "ann"})
	if busy, ok := errors.AsType[*erasure.UnderWayError](err); !ok || len(busy.Runs) != 1 || busy.Runs[0] != run {
		t.Fatalf("while the run is under way: %v", err)
	}
	if after := b.everything(); after != before {
		t.Error("something was erased")
	}
	b.Record(storetest.Whole(b.One(run)))
	if did := b.erase(erasure.Request{}); len(did.Runs) != 2 {
		t.Errorf("erased %+v; want runs %s and %s", did, done, run)
	}
	b.Record(storetest.Whole(b.One(run)))
	b.WantState(run, "completed", 1)
	b.Check()
}

// What was broken off between two pieces is finished by doing it again.
func TestAnErasureThatWasBrokenOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.personal(), b.personal()
	release := b.HoldRows(`SELECT FROM run_step WHERE run_id = $1 FOR UPDATE`, second)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := erasure.New(b.Store).Erase(ctx, erasure.Request{Key: person, Actor: "ann"})
		ended <- err
	}()
	b.Until("the first run is done with, and the second waits", func() bool { return b.Waiters() == 1 })
	stop()
	if err := <-ended; err == nil {
		t.Fatal("it was not broken off")
	}
	release()
	if n := b.Number(`SELECT count(*) FROM work_queue WHERE item_key LIKE 'erased-%' AND run_id = $1`, first); n != 1 {
		t.Fatal("the first run was not done with")
	}
	if did := b.erase(erasure.Request{}); len(did.Runs) != 1 || did.Runs[0] != second {
		t.Errorf("went on with %+v", did)
	}
	if left := b.traces(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	b.Check()
}
