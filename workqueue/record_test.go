package workqueue_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestRecordStoresAnyText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	a := storetest.Faulty(s, workqueue.SlotError{Code: "c\x00d", Message: "nul \x00, not UTF-8 \xff\xfe, \u202e bidi"})
	a.Service = "svc\x00\xff"
	a.Slots[0].Err.Retry = false
	a.Slots[1] = settle.Slot{Ordinal: a.Slots[1].Ordinal, Result: []byte{0, 0xff, 0}, ContentType: "application/pdf"}
	a.Slots[2].Err = &workqueue.SlotError{Code: "busy", Message: strings.Repeat("\x00\xc3", 1000), Retry: true}
	testenv.MustSame(t, b.Record(a).Verdicts[0].Taken, 4, "taken")
	b.WantTally(run, storetest.Tally{Live: 1, Done: 1, Failed: 2})
	var message string
	err := b.Pool.QueryRow(t.Context(), `SELECT error_message FROM work_result WHERE error_code IS NOT NULL LIMIT 1`).
		Scan(&message)
	if err != nil || !strings.Contains(message, "bidi") || strings.Contains(message, "\x00") {
		t.Errorf("stored %q, %v", message, err)
	}
	b.Check()
}

// Whoever records is told in how long there is something to claim again, and only then.
func TestRecordTellsWhenSlicesComeDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].RetryBackoff = 10 * time.Second
	run := b.Load(req, 12)
	claimed := b.Claim(run, storetest.Plenty)
	again := storetest.Faulty(claimed[0], workqueue.SlotError{Code: "flaky", Retry: true})
	for name, tc := range map[string]struct {
		answer settle.Answer
		want   int
	}{"retried": {again, 1}, "done": {storetest.Whole(claimed[1]), 0}} {
		due := b.Record(tc.answer).Due
		if len(due) != tc.want || tc.want > 0 && (due[0] > 10*time.Second || due[0] < 8*time.Second) {
			t.Errorf("%s: due in %v", name, due)
		}
	}
	broken := storetest.Answer(claimed[2])
	broken.Failure = &workqueue.SlotError{Code: "bad"} // halved immediately
	testenv.Same(t, len(b.Record(broken).Due), 0, "halves are due in")
}

// What commits is counted once, by endpoint: outcomes by replies, and what failed since its time was over.
func TestWhatIsSettledIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	req := storetest.Request()
	req.Steps[0].MaxAttempts = 1
	run := b.Load(req, 12)
	claimed := b.Claim(run, storetest.Plenty)
	testenv.MustSame(t, len(claimed), 3, "slices")
	b.Send(claimed...)
	total := settle.Settled{Endpoint: req.Steps[0].Endpoint}
	store := settle.New(b.Store).Counting(func(all []settle.Settled) {
		for _, s := range all {
			testenv.Same(t, s.Endpoint, total.Endpoint, "counted for")
			total.Done, total.Failed = total.Done+s.Done, total.Failed+s.Failed
			total.Answered, total.Refused = total.Answered+s.Answered, total.Refused+s.Refused
			total.Expired, total.Lost = total.Expired+s.Expired, total.Lost+s.Lost
		}
	})
	for range 2 { // the second time it is stale
		testenv.Must(store.Record(t.Context(), []settle.Answer{storetest.Whole(claimed[0])}))(t)
	}
	b.Exec(`UPDATE work_slice SET delivered_at = tranche_now() - interval '1 hour',
		deadline = tranche_now() - interval '1 min' WHERE state = 'sent'`)
	testenv.MustSame(t, testenv.Must(store.Expire(t.Context(), lease, ids(claimed[1])))(t), 1, "slices expired")
	refused := storetest.Answer(claimed[2])
	refused.Failure = &workqueue.SlotError{Code: "broken", Message: "no"}
	testenv.Must(store.Record(t.Context(), []settle.Answer{refused}))(t)
	if total.Done != 4 || total.Answered != 1 || total.Expired != 1 || total.Refused != 1 || total.Lost != 0 {
		t.Errorf("counted %+v", total)
	}
	testenv.Same(t, int64(b.Tally(run).Failed), total.Failed, "items that have failed")
}

// exhausted is the answer of a node, or of a service, that gave a slice up after too many deliveries.
func exhausted(s workqueue.Slice) settle.Answer {
	return settle.Answer{Slice: s.ID, Endpoint: storetest.Endpoint, Service: "test",
		Failure: &workqueue.SlotError{Code: workqueue.CodeDeliveries, Message: "m", Retry: true}}
}

// A chunk that kills its services is not tried whole again: it is cut in four, and its pieces are suspects until a
// service has answered them.
func TestExhaustedChunkIsCutAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Chunked(8), 8)
	first := b.One(run)
	if first.Suspect {
		t.Error("a fresh cut is a suspect")
	}
	b.Send(first)
	b.Record(exhausted(first))
	pieces := b.Claim(run, storetest.Plenty)
	if len(pieces) != 4 || b.Disjoint(pieces) != 8 {
		t.Fatalf("cut in %d: %s", len(pieces), b.Dump(run))
	}
	for _, p := range pieces {
		if !p.Suspect || p.Failures != 0 || p.Cause != workqueue.CauseExhausted || p.Attempt != 2 {
			t.Errorf("a piece is %+v", p)
		}
	}
	again := func(want bool, why string) workqueue.Slice {
		t.Helper()
		s := b.One(run)
		testenv.Same(t, s.Suspect, want, "after %s the slice is suspect", why)
		return s
	}
	b.Pass(pieces[0].ID)
	testenv.Must(settle.New(b.Store).Expire(t.Context(), lease, []workqueue.SliceID{pieces[0].ID}))(t)
	late := again(true, "a deadline")
	split, err := settle.New(b.Store).Split(t.Context(), b.Session, late.ID, late.Mask.Split(1), time.Minute, "cut")
	if err != nil || split == nil || !split.Suspect {
		t.Errorf("split off %+v, %v; want a suspect", split, err)
	}
	if rest := b.One(run); !rest.Suspect || rest.Cause != workqueue.CauseSplit {
		t.Errorf("the rest of the split is %+v; want a suspect", rest)
	}
	b.Record(storetest.Faulty(pieces[1], workqueue.SlotError{Code: "flaky", Message: "m", Retry: true}))
	again(false, "an answer")
	b.Record(exhausted(pieces[2]))
	single := b.Claim(run, storetest.Plenty)
	if len(single) != 2 || single[0].Failures != 0 {
		t.Fatalf("two items were cut in %+v", single)
	}
	b.Check()
}

// noteWays notes by which statement rows come into the tables that are written in two ways.
const noteWays = `
CREATE TABLE way (way text);
CREATE FUNCTION note_way() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN
    INSERT INTO public.way VALUES (TG_TABLE_NAME || ' ' || split_part(ltrim(current_query(), E'\n'), ' ', 1));
    RETURN NULL;
END $$;
CREATE TRIGGER note_way AFTER INSERT ON work_queue FOR EACH STATEMENT EXECUTE FUNCTION note_way();
CREATE TRIGGER note_way AFTER INSERT ON work_result FOR EACH STATEMENT EXECUTE FUNCTION note_way()`

// odd are texts that mean something to one of the formats on the way.
func odd() []string {
	return []string{`NULL`, `\N`, `{}`, `{a,b}`, `"`, `\`, `a,"b\"`, "tab\tand\nline", "'); --", "ключ 😀 e\u0301",
		"\u202eabc", strings.Repeat("long ", 200)}
}

// oddItem is the key and the payload of an item, one of which in each run has so many bytes.
func oddItem(i, large int) (key string, payload []byte) {
	texts := odd()
	key, text := fmt.Sprintf("C%d", i), texts[i%len(texts)]
	switch {
	case i < len(texts):
		key = text
	case i == len(texts):
		text = strings.Repeat("y", large)
	}
	return key, fmt.Appendf(nil, "{\"text\": %q,\n\t\"n\": %d}", text, i)
}

// oddSlot is an outcome of an item: with and without a type, empty, of any bytes, large, or an error.
func oddSlot(o workqueue.Ordinal, large int) settle.Slot {
	s := settle.Slot{Ordinal: o, Result: fmt.Appendf(nil, "%q", odd()[int(o)%len(odd())])}
	switch o % 5 {
	case 1:
		s.ContentType = "text/plain; charset=\"ü\""
	case 2:
		s.Result = []byte{}
	case 3:
		s.Result, s.ContentType = []byte{0, 1, 0xff, byte(o)}, "application/octet-stream"
	case 4:
		s.Result, s.Err = nil, &workqueue.SlotError{Code: "refused", Message: odd()[int(o)%len(odd())]}
	}
	if o == 0 {
		s.Result = bytes.Repeat([]byte("z"), large)
	}
	return s
}

// A few rows are written by INSERT, which need not travel alone, and more by COPY; final errors, one in five here, by
// INSERT, which makes something of them. No one sees by which.
func TestFewRowsAreWrittenLikeMany(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rows, large    int
		items, results string
	}{
		"255 items":     {255, 60 << 10, "INSERT", "INSERT"},
		"256 items":     {256, 60 << 10, "INSERT", "INSERT"},
		"257 items":     {257, 60 << 10, "COPY", "INSERT"},
		"256 results":   {320, 60 << 10, "COPY", "INSERT"},
		"257 results":   {321, 60 << 10, "COPY", "COPY"},
		"few and large": {20, 300 << 10, "COPY", "COPY"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Exec(noteWays)
			req := storetest.Chunked(tc.rows)
			req.Steps[0].MaxAttempts = 1
			i, want := 0, []string(nil)
			loaded := testenv.Must(b.TryLoad(req, func(item *start.LoadItem) error {
				if i == tc.rows {
					return io.EOF
				}
				item.Key, item.Payload = oddItem(i, tc.large)
				want = append(want, fmt.Sprintf("%d %q %q", i, item.Key, item.Payload))
				i++
				return nil
			}))(t)
			b.wantRows(want, `SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND key_ordinal = 0
				ORDER BY ordinal`, "%d %q %q", loaded.Run)
			b.wantParts(loaded.Run, tc.large)
			b.wantRows([]string{"work_queue " + tc.items, "work_result " + tc.results, "work_result INSERT"},
				`SELECT way FROM way ORDER BY way`, "%s")
			b.WantState(loaded.Run, "completed", 1)
			b.Check()
		})
	}
}

// wantParts answers the run's only slice, in all ways, and holds what is kept against that.
func (b *bench) wantParts(run workqueue.RunID, large int) {
	b.Helper()
	s := b.One(run)
	reply := storetest.Whole(s)
	var want []string
	for i := range reply.Slots {
		slot := oddSlot(reply.Slots[i].Ordinal, large)
		reply.Slots[i] = slot
		code, message := "<nil>", "<nil>"
		if slot.Err != nil {
			code, message = slot.Err.Code, slot.Err.Message
		}
		kind := slot.ContentType
		if kind == "" {
			kind = "<nil>"
		}
		want = append(want, fmt.Sprintf("%d %v %q %s %s %s", slot.Ordinal, slot.Result == nil, slot.Result, kind, code,
			message))
	}
	b.Record(reply)
	b.wantRows(want, `SELECT ordinal, result IS NULL, coalesce(result, ''), coalesce(content_type, '<nil>'),
		coalesce(error_code, '<nil>'), coalesce(error_message, '<nil>') FROM work_result
		WHERE run_id = $1 AND slice_id = $2 AND generation = 1 AND step = 0 ORDER BY ordinal`, "%d %v %q %s %s %s", run, s.ID)
}

// wantRows holds the rows of a query, each by a format, against what is wanted.
func (b *bench) wantRows(want []string, sql, format string, args ...any) {
	b.Helper()
	rows := testenv.Must(b.Pool.Query(b.Context(), sql, args...))(b)
	got := testenv.Must(pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprintf(format, values...), err
	}))(b)
	testenv.MustSame(b, len(got), len(want), "rows")
	for i := range got {
		testenv.Same(b, got[i], want[i], "row %d is", i)
	}
}
