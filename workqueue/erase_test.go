package workqueue_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/start"
)

// secret stands in everything that is kept of a person.
const (
	person = "AHV-Zoë&756/1" // JSON, addresses and base64 write it in other ways
	secret = "Zgraggen"
)

// busy is the error of an erasure that has to wait.
func (b *bench) busy(while string) *erasure.UnderWayError {
	b.Helper()
	_, err := erasure.New(b.Store).Erase(b.Context(), erasure.Request{Key: person, Actor: "ann"})
	return testenv.As[*erasure.UnderWayError](b, err, "while %s", while)
}

func (b *bench) erase(req erasure.Request) erasure.Outcome {
	b.Helper()
	req.Key, req.Actor = person, "ann"
	return testenv.Must(erasure.New(b.Store).Erase(b.Context(), req))(b)
}

// personal is a run of which one item of four is the person's: with a payload, an error that was retried, a failure
// of its chunk, a result, a correction, dead letters and quarantined messages of it, and words about it.
func (b *bench) personal() workqueue.RunID {
	b.Helper()
	next := storetest.Keys("C0", person, "C2", "C3")
	loaded := testenv.Must(b.TryLoad(storetest.Request(), func(item *start.LoadItem) error {
		err := next(item)
		if item.Key == person {
			item.Payload = []byte(`{"name":"` + secret + `"}`)
		}
		return err
	}))(b)
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
		Message: person + ": no one is called " + secret}))
	b.WantState(run, "completed", 2)
	for _, ordinal := range []int{1, 2} {
		b.Exec(`WITH l AS (INSERT INTO large_result (id, run_id, step, ordinal, slice_id, pieces, bytes, sha256, content_type)
			VALUES (gen_random_uuid(), $1, 0, $2, $3, 1, 8, sha256('x'), $4) RETURNING id)
			INSERT INTO work_piece (large_id, piece, bytes) SELECT id, 1, convert_to($5, 'UTF8') FROM l`, run, ordinal, s.ID,
			map[bool]string{true: "text/" + secret, false: "text/plain"}[ordinal == 1],
			map[bool]string{true: "letter to " + secret, false: "letter"}[ordinal == 1])
	}
	b.Exec(`UPDATE batchrun SET params = jsonb_build_object('of', $2::text, $2::text, 1) WHERE id = $1`, run, person)
	b.Exec(`UPDATE work_result SET error_message = $2, error_keyed = $2 WHERE run_id = $1 AND ordinal = 3
		AND error_code IS NOT NULL`, run, "the same as "+person)
	b.Exec(`UPDATE run_correction SET reason = $2 WHERE run_id = $1`, run, "the address of "+person+" was wrong")
	l := letter("l"+run.String(), "e")
	l.Run, l.Slice, l.Body, l.Stack = &run, &s.ID, []byte(secret), secret
	b.bury(l)
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, run_id, slice_id, headers, body)
		VALUES ('r', $3, 's', $1, $2, jsonb_build_object('X', $3::text), convert_to($3, 'UTF8'))`, run, s.ID, secret)
	b.Exec(`INSERT INTO run_event (id, run_id, generation, kind, payload)
		VALUES (gen_random_uuid(), $1, 2, 'noted', jsonb_build_object('of', ARRAY[$2::text]))`, run, person)
	testenv.NoError(b, control.New(b.Store).Note(b.Context(), run, "called because of "+person, "ann"))
	return run
}

// aside leaves traces that belong to no item of a run.
func (b *bench) aside() {
	b.Helper()
	packed := testenv.Must(zstd.NewWriter(nil))(b)
	body := []byte(`{"items":[{"key":"` + person + `","name":"` + secret + `"}]}`)
	l := letter("alone", "e")
	l.Body, l.Headers = packed.EncodeAll(body, nil), map[string][]string{"Tranche-Encoding": {"zstd"}}
	b.bury(l, letter("other", "e"))
	// What a service asked another one for, within a run or one that does not exist any more, in forms of other languages.
	gone, slice := workqueue.NewRunID(), workqueue.NewSliceID()
	for i, body := range []string{`{"items":[{"payload":"` + ascii() + `"}]}`,
		`{"payload":"` + base64.StdEncoding.EncodeToString([]byte(`{"of":"`+person+`"}`)) + `"}`,
		`{"text":"{\"of\":\"` + strings.ReplaceAll(ascii(), `\`, `\\`) + `\"}"}`, `{"of":"\n` + ascii() + `\n`} {
		l := letter(fmt.Sprint("call", i), "e")
		l.Run, l.Slice, l.Root, l.Body = &gone, &slice, &slice, []byte(body)
		b.bury(l)
		b.Exec(`INSERT INTO quarantine (reason, detail, subject, run_id, slice_id, body) VALUES ('r', 'd', 's', $1, $2, $3)`,
			gone, slice, []byte(body))
	}
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, body) VALUES ('r', 'd', 's', $1), ('r', 'd', 's', 'x')`, body)
	b.Exec(`INSERT INTO health_ack (kind, subject, state, by, reason, severity, count)
		VALUES ('k', 's', 'acknowledged', 'ann', $1, 'info', 1)`, "waits for "+person+".")
	b.Exec(`INSERT INTO api_request (user_name, key, operation, fingerprint, claim, session_id, status, content_type, body)
		VALUES ('ann', 'k', 'GET /items/' || $2, '', gen_random_uuid(), gen_random_uuid(), 200, 'application/json', $1)`,
		[]byte(`{"examples":["`+ascii()+`","AHV-Zoë\u0026756/1","`+person+`2"]}`), url.PathEscape(person))
	b.Exec(`INSERT INTO alert (name, spec, source, created_by, changed_by, error)
		VALUES ('a', '{}', '', 'ann', 'ann', 'about ' || $1)`, person)
	b.Exec(`INSERT INTO alert_message (id, alert, what, grp, severity, body)
		VALUES (gen_random_uuid(), 'a', 'alert', 'g', 'info', jsonb_build_object('said', 'of ' || $1::text, $1::text, 1))`,
		person)
	b.Exec(`INSERT INTO audit_log (actor, action, subject, detail)
		VALUES ('ann', 'collector_drop', 'c', jsonb_build_object('keys', ARRAY[$1::text, 'C7']))`, person)
}

// everything is all that stands in all tables, a row a line: bytes as they are, unpacked, and the rest as JSON.
func (b *bench) everything() string {
	b.Helper()
	tables, err := pg.Collect(b.Context(), b.Pool, pgx.RowTo[string], `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY 1`)
	testenv.NoError(b, err)
	unpack := testenv.Must(zstd.NewReader(nil))(b)
	defer unpack.Close()
	var all strings.Builder
	for _, name := range tables {
		rows := pg.Rows(b.Context(), b.Pool, "SELECT * FROM "+name)
		for rows.Next() {
			values := testenv.Must(rows.Values())(b)
			all.WriteString(name)
			for i, value := range values {
				text, isBytes := value.([]byte)
				if plain, err := unpack.DecodeAll(text, nil); isBytes && err == nil {
					text = plain
				}
				if !isBytes {
					text, err = json.Marshal(value)
					testenv.NoError(b, err)
				}
				fmt.Fprintf(&all, " %s=%s", rows.FieldDescriptions()[i].Name, bytes.ReplaceAll(text, []byte("\n"), []byte(" ")))
			}
			all.WriteString("\n")
		}
		testenv.NoError(b, rows.Err())
	}
	return all.String()
}

// forms are all ways in which the person's key may be written.
func forms() []string {
	quoted, _ := json.Marshal(person)
	all := []string{secret, person, strings.Trim(string(quoted), `"`), url.PathEscape(person), url.QueryEscape(person),
		ascii(), strings.ToUpper(ascii()), strings.ReplaceAll(person, "/", `\/`)}
	for at := range 3 { // where a group of base64 begins
		all = append(all, base64.StdEncoding.EncodeToString([]byte(person[at:]))[:4*((len(person)-at)/3)])
	}
	return all
}

// ascii writes every character of the person as JSON may.
func ascii() string {
	var b strings.Builder
	for _, r := range person {
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String()
}

// traces are the lines of everything that have something of the person, in whatever form.
func (b *bench) traces() (left []string) {
	b.Helper()
	for line := range strings.Lines(b.everything()) {
		plain := strings.ReplaceAll(strings.ReplaceAll(line, `\\`, `\`), person+"2", "")
		if slices.ContainsFunc(forms(), func(form string) bool { return strings.Contains(plain, form) }) {
			left = append(left, line)
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
	testenv.Must(collector.New(b.Store).ApplyCollector(b.Context(), collector.Text{Name: "c", Spec: spec,
		Source: "c"}, "ann"))(b)
}

// operation adds one of the person's to collector c.
func (b *bench) operation(id string) {
	b.Helper()
	op := collector.Op{ID: id, Key: person, Payload: []byte(`{"name":"` + secret + `"}`)}
	_, _, err := collector.New(b.Store).AddOps(b.Context(), "c", 0, [][]collector.Op{{op}})
	testenv.NoError(b, err)
}

// Nothing that is kept has anything of the person, in no table, and the books are right as they were.
func TestErase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.collectorOfPerson()
	run, other := b.personal(), b.personal()
	b.aside()
	b.operation("o1")
	testenv.Says(t, b.busy("an operation waits"), "tranche collector drop c o1 --waiting", "the remedy")
	// One that stands in a partition, and is folded by the person's key.
	b.Exec(`UPDATE collector_op SET fold = key, key = '3/8', payload = '{}'`)
	b.Exec(`UPDATE collector_key SET key = '3/8'`)
	_ = b.busy("one waits that is folded by it")
	// And one of which only the payload says so.
	b.Exec(`UPDATE collector_op SET fold = NULL, payload = $1`, `{"customer":"`+ascii()+`","name":"`+secret+`"}`)
	_ = b.busy("one waits in a partition")
	b.operation("o2")
	b.Exec(`UPDATE collector_op SET parked_at = tranche_now(), error_code = 'X', error_message = $1`, secret)
	b.Exec(`UPDATE collector_key SET untried = 0, parked = 1, due_at = NULL, oldest_at = NULL`)
	if n := len(b.traces()); n < 25 {
		t.Fatalf("%d traces: %q", n, b.traces())
	}

	before := b.everything()
	would := b.erase(erasure.Request{DryRun: true})
	if after := b.everything(); after != before {
		t.Error("a dry run has changed something")
	}
	groups := func() string {
		found := testenv.Must(inspect.New(b.Store).GroupsBy(t.Context(), run, "name"))(t)
		return string(testenv.Must(json.Marshal(found))(t))
	}
	testenv.Has(t, groups(), secret, "groups")
	did := b.erase(erasure.Request{Run: run})
	testenv.Same(t, strings.Contains(groups(), secret), false, "whether the groups still have it")
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
		did.Erased.Items != 1 || would.Erased.Texts-did.Erased.Texts != 3 {
		t.Errorf("would be erased: %+v; was: %+v", would, did)
	}
	testenv.SameList(t, b.traces(), nil, "left")
	all := b.everything()
	for _, kept := range []string{"AHV-Zoë&756/12", "other", "called because of " + did.Marker, "article 17"} {
		testenv.Has(t, all, kept, "what is left")
	}
	for _, run := range []workqueue.RunID{run, other} {
		b.WantTally(run, storetest.Tally{Done: 3, Failed: 1})
		if n := b.Number(`SELECT count(*) FROM run_item WHERE run_id = $1 AND key LIKE 'erased-%' AND state = 'failed'
			AND error_code = 'BAD'`, run); n != 1 {
			t.Errorf("%d items have the marker", n)
		}
		testenv.Same(t, b.Number(`SELECT payload_bytes FROM work_block WHERE run_id = $1`, run), 3*2+len(`{"erased":true}`),
			"bytes of payloads of the block")
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
	testenv.SameList(t, b.busy("the run is in progress").Runs, []workqueue.RunID{run}, "runs in progress")
	if after := b.everything(); after != before {
		t.Error("something was erased")
	}
	// Of a run that is being loaded no view knows the items yet.
	b.Exec(`UPDATE batchrun SET state = 'loading', items = 0 WHERE id = $1`, run)
	_ = b.busy("the run is being loaded")
	b.Exec(`UPDATE batchrun SET state = 'running', items = 2 WHERE id = $1`, run)
	b.Record(storetest.Whole(b.One(run)))
	testenv.Same(t, len(b.erase(erasure.Request{}).Runs), 2, "runs erased, of %s and %s", done, run)
	b.Record(storetest.Whole(b.One(run)))
	b.WantState(run, "completed", 1)
	b.Check()
}

// Errors of other items are erased a page at a time, however many a run has: what was interrupted between two pages is
// finished by doing it again.
func TestErasurePagesErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.LoadKeys(storetest.Chunked(1), "C1")
	const all = 5_100
	b.Exec(`INSERT INTO work_result (run_id, slice_id, step, ordinal, generation, error_code, error_message)
		SELECT $1, gen_random_uuid(), 0, 0, n, 'BAD', $2 FROM generate_series(1, $3) n`, run, "as "+person, all)
	b.Exec(`INSERT INTO work_error (run_id, slice_id, step, ordinal, error_code, error_message)
		SELECT $1, gen_random_uuid(), 0, 0, 'BAD', $2 FROM generate_series(1, $3) n`, run, "as "+person, all)
	release := b.HoldRows(`SELECT FROM work_result WHERE run_id = $1 AND generation = $2 FOR UPDATE`, run, all)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := erasure.New(b.Store).Erase(ctx, erasure.Request{Key: person, Actor: "ann"})
		ended <- err
	}()
	b.Until("the last page waits", func() bool { return b.Waiters() == 1 })
	stop()
	if err := <-ended; err == nil {
		t.Fatal("it was not interrupted")
	}
	release()
	if n := b.Number(`SELECT count(*) FROM work_result WHERE error_message LIKE '%erased-%'`); n == 0 || n == all {
		t.Errorf("the page before erased %d errors", n)
	}
	if did := b.erase(erasure.Request{DryRun: true}); did.Erased.Errors >= 2*all || did.Erased.Errors < all {
		t.Errorf("would erase %+v", did.Erased)
	}
	b.erase(erasure.Request{})
	if n := b.Number(`SELECT (SELECT count(*) FROM work_result WHERE position($1 in error_message) > 0) +
		(SELECT count(*) FROM work_error WHERE position($1 in error_message) > 0)`, person); n > 0 {
		t.Errorf("left: %d", n)
	}
	if n := b.Number(`SELECT max((detail #>> '{erased,errors}')::int) FROM audit_log WHERE action = 'erase'`); n >= all {
		t.Errorf("a piece erased %d errors", n)
	}
}

// rowColumns are those whose rows are found by the item's key, or by their contents, and deleted or emptied.
const rowColumns = `
work_queue.item_key work_queue.payload work_correction.payload work_result.result work_result.content_type
work_result.error_message work_result.error_keyed work_error.error_message large_result.content_type work_piece.bytes
dead_letter.message dead_letter.stack dead_letter.origin dead_letter.headers dead_letter.body quarantine.detail
quarantine.subject quarantine.headers quarantine.body collector_op.key collector_op.op_id collector_op.payload
collector_op.fold
collector_op.folded_into collector_key.key api_request.body batchrun.params batchrun.content`

// exemptColumns are those in which no key of an item stands, by what does.
func exemptColumns() map[string]string {
	return map[string]string{
		"names of plans, endpoints and the like": `
alert.name alert.namespace alert_condition.alert alert_message.alert batchrun.plan batchrun.schedule collector.name
collector.endpoint
endpoint_change.endpoint endpoint_pace.endpoint endpoint_setting.endpoint endpoint_setting.canary plan.name
deleted_run.plan run_step.name run_step.endpoint step_profile.plan step_profile.step step_profile.endpoint
schedule.name schedule.zone schedule_occurrence.schedule tracker_service.webhook_host namespace.name batchrun.namespace
plan.namespace schedule.namespace collector.namespace tracker_service.namespace api_token.grants web_session.grants
tracker_service.webhook_secret work_block.endpoint work_slice.endpoint endpoint_setting.namespaces`,
		"who did what": `
alert.created_by alert.changed_by admin_act.asked_by admin_act.eyes admin_act.subject admin_act.settled_by
namespace.changed_by api_request.user_name api_token.name api_token.created_by api_token.makers api_token.revoked_by
audit_log.actor audit_log.origin batchrun.created_by batchrun.held_by collector.created_by collector.changed_by
collector.paused_by endpoint_setting.changed_by health_ack.by plan.created_by retention.changed_by
deleted_run.deleted_by run_acceptance.actor run_correction.actor run_step.approved_by schedule.created_by
schedule.changed_by schedule_occurrence.asked_by stream_setting.changed_by tracker_service.created_by
web_session.user_name web_session.subject`,
		"codes": `
collector.failure_code collector_key.failed_code collector_op.error_code dead_letter.cause quarantine.reason
run_fail_fast.codes run_step.retry_codes run_step.no_retry_codes tracker_failed.code work_error.error_code
work_result.error_code work_slice.error_code`,
		"states, settings, numbers and names of programs": `
admin_act.kind admin_act.what admin_act.method admin_act.state alert.state alert_condition.kind alert_condition.severity
alert_condition.notified_severity alert_condition.before alert_message.what alert_message.severity alert_message.state
api_request.content_type api_token.role api_token.networks archive.target audit_log.action audit_sink.target
batchrun.state batchrun.hold batchrun.max_failed batchrun.fail_fast batchrun.canary_state batchrun.on_overdue
batchrun.on_duplicate batchrun.from_outcome collector.state collector.folds database_mark.name dead_letter.mode
dead_letter.service dead_letter.state endpoint_change.what endpoint_change.before endpoint_change.after
endpoint_pace.learned endpoint_pace.breaker health_condition.kind health_ack.kind health_ack.state
health_ack.severity leader.name node_session.host node_session.version node_session.stats retention.kind
run_event.kind run_step.kind run_step.approval schedule.state schedule_occurrence.kind schedule_occurrence.state
schema_object.object step_profile.cost stream_epoch.name stream_fault.stream stream_setting.name stream_setting.applied
tracker_batch.owner tracker_batch.state tracker_service.webhook_state web_session.role work_slice.state work_slice.cause
work_slice.service`,
		"digests, and what is sealed": `
api_request.fingerprint api_token.hash batchrun.data_key node_session.keys audit_gone.hash audit_head.hash
audit_log.hash audit_log.erased run_add.digest web_session.hash web_session.renewal large_result.sha256`,
	}
}

// What the audit log says of tokens and settings is not about a person's item, whatever key is erased.
func TestErasureLeavesWhatTheLogSaysOfTokens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO audit_log (actor, action, subject, detail, after) VALUES
		('ann', 'token_create', 'backdoor', '{"note":"backdoor"}', '{"role":"backdoor"}'),
		('ann', 'retention_set', 'backdoor', '{}', NULL), ('ann', 'erase', 'backdoor', '{}', NULL),
		('ann', 'collector_drop', 'backdoor', '{}', NULL)`)
	testenv.Must(erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: "backdoor", Actor: "ann"}))(t)
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE subject = 'backdoor'`), 3, "rows name it")
}

// Every column in which text can stand is searched, or there is a reason why it is not.
func TestErasureKnowsAllColumns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	there, err := pg.Collect(t.Context(), b.Pool, pgx.RowTo[string], `SELECT c.relname || '.' || a.attname
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
		AND c.relname <> 'goose_db_version' AND coalesce(e.typname, t.typname) <> ALL ('{uuid,bool,bit,varbit,int2,int4,int8,
		float4,float8,numeric,timestamptz,timestamp,date,time,interval,oid}')`)
	testenv.NoError(t, err)
	lists := append(slices.Collect(maps.Values(exemptColumns())), rowColumns)
	for _, of := range erasure.Searched() {
		testenv.Same(t, (of.How == erasure.Kept), (of.Why != ""), "%s %.60s: the reason is %q", of.How, of.Names, of.Why)
		lists = append(lists, of.Names)
	}
	known := map[string]bool{}
	for name := range strings.FieldsSeq(strings.Join(lists, " ")) {
		if known[name] {
			t.Errorf("%s appears twice", name)
		}
		known[name] = true
		if !slices.Contains(there, name) {
			t.Errorf("there is no %s", name)
		}
	}
	for _, name := range there {
		if !known[name] {
			t.Errorf("erasure does not know %s: can a key stand in it? See erasure.Searched and the lists here", name)
		}
	}
}

// A run that read items of another before they were erased there does not bring them back.
func TestARunThatIsTakingItemsWhileTheyAreErased(t *testing.T) {
	t.Parallel()
	b := setup(t)
	from := b.personal()
	req := storetest.Request()
	req.Session, req.FromRun = b.Session, from
	req.FromVersion = testenv.Must(start.New(b.Store).Version(t.Context(), from))(t)
	taken := false
	_, err := start.New(b.Store).Load(t.Context(), req, func(item *start.LoadItem) error {
		if taken {
			b.erase(erasure.Request{})
			return io.EOF
		}
		item.Key, item.Payload, taken = person, []byte(`{"name":"`+secret+`"}`), true
		return nil
	})
	testenv.Same(t, testenv.As[*workqueue.StateError](t, err, "the run that continues").Run, from, "it continues")
	testenv.SameList(t, b.traces(), nil, "left")
	req.FromVersion = testenv.Must(start.New(b.Store).Version(t.Context(), from))(t)
	_, err = start.New(b.Store).Load(t.Context(), req, storetest.Keys("C1"))
	testenv.Same(t, err, nil, "started again")
}

// What came in while the rest was erased is reported.
func TestAKeyThatComesInWhileItIsErased(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.personal()
	release := b.HoldRows(`SELECT FROM run_step WHERE run_id = $1 FOR UPDATE`, run)
	ended := make(chan error, 1)
	go func() {
		_, err := erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: person, Actor: "ann"})
		ended <- err
	}()
	b.Until("the erasure has looked, and waits for the run", func() bool { return b.Waiters() == 1 })
	late := b.LoadKeys(storetest.Chunked(1), person)
	release()
	busy, ok := errors.AsType[*erasure.UnderWayError](<-ended)
	if !ok || !busy.Late || len(busy.Runs) != 1 || busy.Runs[0] != late {
		t.Fatalf("it ended with %v; want that run %s came in", busy, late)
	}
	b.Record(storetest.Whole(b.One(late)))
	b.erase(erasure.Request{})
	testenv.SameList(t, b.traces(), nil, "left")
}

// A run that is not done and has the key in a parameter is left alone, and what has it as a name is told.
func TestEraseParametersAndNames(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.LoadKeys(storetest.Chunked(1), "C1")
	b.Exec(`UPDATE batchrun SET params = jsonb_build_object('of', $2::text), idempotency_key = $2 WHERE id = $1`, run,
		"about "+person)
	testenv.SameList(t, b.busy("the run is in progress").Params, []workqueue.RunID{run}, "runs about the person")
	b.Record(storetest.Whole(b.One(run)))
	did := b.erase(erasure.Request{})
	if len(did.Kept) != 1 || !strings.HasPrefix(did.Kept[0], "batchrun.idempotency_key, rows: 1: ") {
		t.Errorf("is kept: %q", did.Kept)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE params ->> 'of' = 'about ' || $1`, did.Marker), 1,
		"the parameter was not erased")

	testenv.NoError(t, b.Store.SetKeys([][]byte{make([]byte, 32)}))
	b.Expire(b.Session)
	b.Session = b.Open()
	req := storetest.Request()
	req.Params = map[string]string{"of": "about " + person}
	sealed, lost := b.LoadKeys(req, "C1"), b.LoadKeys(req, "C1")
	b.Exec(`UPDATE batchrun SET params = '"~AAAA"' WHERE id = $1`, lost)
	_, err := erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: person, Actor: "ann"})
	b.WantSaid(err, sealed.String())
	for _, run := range []workqueue.RunID{sealed, lost} {
		b.Record(storetest.Whole(b.One(run)))
	}
	l := letter("sealed", "e")
	l.Run, l.Body = &sealed, []byte(secret+" "+person)
	b.bury(l)
	b.Store = database.New(b.Pool) // without the key
	b.Exec(`UPDATE batchrun SET name = concat('of ', $3::text, ' ', id) WHERE id IN ($1, $2)`, sealed, run, person)
	did = b.erase(erasure.Request{Run: sealed})
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE strpos(name, CASE id WHEN $1 THEN $2 ELSE $3 END) > 0`,
		sealed, did.Marker, person), 2, "the name of its run without the key, that of another with it")
	b.WantSaid(errors.New(fmt.Sprint(did.Kept)), "batchrun.params, rows: 1: ", "quarantine.body, rows: 1: ")
	one := b.Pool.Config()
	one.MaxConns = 1
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), one))(t)
	t.Cleanup(pool.Close)
	b.Store = database.New(pool)
	testenv.NoError(t, b.Store.SetKeys([][]byte{make([]byte, 32)}))
	seal, tx := testenv.Must(b.Store.Seal(t.Context(), pool, sealed))(t), testenv.Must(b.Pool.Begin(t.Context()))(t)
	params := testenv.Must(json.Marshal(map[string]string{"of": person, "to": "new"}))(t)
	b.Exec(`UPDATE batchrun SET params = jsonb_build_object('of', $2::text) WHERE id = $1`, run, person)
	testenv.Must(tx.Exec(t.Context(), `UPDATE batchrun SET params = CASE id WHEN $1 THEN $3::jsonb ELSE $4::jsonb END
		WHERE id IN ($1, $2)`, sealed, run, seal.Params(params), params))(t)
	ended := make(chan erasure.Outcome)
	go func() { ended <- b.erase(erasure.Request{}) }()
	b.Until("the erasure waits for parameters", func() bool { return b.Waiters() == 1 })
	testenv.NoError(t, tx.Commit(t.Context()))
	did = <-ended
	testenv.Same(t, did.Erased.DeadLetters, 1, "erased letters")
	b.WantSaid(errors.New(fmt.Sprint(did.Kept)), "batchrun.params, rows: 1: they cannot be decrypted")
	for _, of := range []workqueue.RunID{run, sealed} {
		testenv.Same(t, fmt.Sprint(testenv.Must(inspect.New(b.Store).Run(t.Context(), of))(t).Params),
			fmt.Sprint(map[string]string{"of": did.Marker, "to": "new"}), "parameters written meanwhile")
	}
}

// The key of an item is erased from texts in each form that has no other sign of an escape, and from no other word.
func TestErasedText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for said, want := range map[string]string{
		"GET /q?name=Zoe+Muster&x=1": "GET /q?name=MARK&x=1",
		"of Zoe Muster":              "of MARK",
		`Zoe\u0020Muster`:            "MARK",
		"Zoe%20Muster":               "MARK",
		"Zoe+Musterfrau":             "Zoe+Musterfrau",
	} {
		var text, json string
		err := b.Pool.QueryRow(t.Context(), `SELECT erased_text($1, $2, 'MARK'),
			erased_json(to_jsonb($1::text), $2, 'MARK') #>> '{}'`, said, "Zoe Muster").Scan(&text, &json)
		if err != nil || text != want || json != want {
			t.Errorf("%s became %q, in JSON %q (%v); want %q", said, text, json, err, want)
		}
	}
}
