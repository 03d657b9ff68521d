package workqueue_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

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
			loaded, err := b.TryLoad(req, func(item *start.LoadItem) error {
				if i == tc.rows {
					return io.EOF
				}
				item.Key, item.Payload = oddItem(i, tc.large)
				want = append(want, fmt.Sprintf("%d %q %q", i, item.Key, item.Payload))
				i++
				return nil
			})
			testenv.NoError(t, err)
			b.wantRows(want, `SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND key_ordinal = 0
				ORDER BY ordinal`, "%d %q %q", loaded.Run)
			b.wantParts(loaded.Run, tc.large)
			b.wantWays("work_queue "+tc.items, "work_result "+tc.results, "work_result INSERT")
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
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprintf(format, values...), err
	})
	testenv.NoError(b, err)
	if len(got) != len(want) {
		b.Fatalf("%d rows; want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			b.Errorf("row %d is %.200s; want %.200s", i, got[i], want[i])
		}
	}
}

func (b *bench) wantWays(want ...string) {
	b.Helper()
	var got []string
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT array_agg(way ORDER BY way) FROM way`).Scan(&got))
	if !slices.Equal(got, want) {
		b.Errorf("rows came by %q; want %q", got, want)
	}
}
