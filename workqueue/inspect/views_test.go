package inspect_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	b := setup(t)
	named := func(name string) workqueue.RunID {
		req := storetest.Request()
		req.Name = name
		return b.Load(req, 1)
	}
	first, second, third := named("year-end"), named("twice"), named("twice")
	b.Exec(`UPDATE batchrun SET created_at = created_at`) // ids alone tell the order

	resolves := func(ref string, want workqueue.RunID) {
		t.Helper()
		if got, err := inspect.New(b.Store).Resolve(t.Context(), ref); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", ref, got, err, want)
		}
	}
	resolves("last", third)
	resolves("year-end", first)
	resolves(first.String(), first)
	resolves(strings.ToUpper(second.String()), second)
	resolves(strings.ReplaceAll(second.String(), "-", ""), second)
	resolves(third.String()[:30], third)
	resolves(second.String()[len(second.String())-8:], second) // as the dashboard shows it
	resolves(first.String()[20:], first)

	var ambiguous *workqueue.AmbiguousError
	for _, ref := range []string{"twice", first.String()[:4]} {
		if _, err := inspect.New(b.Store).Resolve(t.Context(), ref); !errors.As(err, &ambiguous) ||
			len(ambiguous.Matches) < 2 {
			t.Errorf("%q: got %v; want an AmbiguousError", ref, err)
		}
	}
	zeros := strings.Repeat("0", 99)
	for _, ref := range []string{"", "nope", first.String()[:3], "ffffffff", "a\x00b", "\xff\xfe", zeros} {
		if _, err := inspect.New(b.Store).Resolve(t.Context(), ref); !errors.Is(err, workqueue.ErrNotFound) {
			t.Errorf("%q: got %v; want ErrNotFound", ref, err)
		}
	}
}

func TestItemTellsEveryAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(2), 2)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "BUSY", Message: "later", Retry: true}))
	b.Record(storetest.Whole(b.One(run)))
	items, err := inspect.New(b.Store).Items(t.Context(), run, "C1")
	if err != nil || len(items) != 1 {
		t.Fatalf("got %+v, %v; want one item", items, err)
	}
	step := items[0].Steps[0]
	if items[0].State != workqueue.OutcomeDone || step.State != "done" || string(step.Result) != `{"of":1}` {
		t.Errorf("the item is %+v", items[0])
	}
	if len(step.Attempts) != 2 {
		t.Fatalf("there are %d attempts; want 2: %+v", len(step.Attempts), step.Attempts)
	}
	first, second := step.Attempts[0], step.Attempts[1]
	if first.Outcome != "retried" || first.Error == nil || first.Error.Code != "BUSY" || first.Service != "test" {
		t.Errorf("the first attempt is %+v", first)
	}
	if second.Outcome != "done" || second.Cause != "retry" || second.Attempt != 2 || second.Error != nil {
		t.Errorf("the second attempt is %+v", second)
	}
	for _, key := range []string{"C9", "", "a\x00b"} {
		if _, err := inspect.New(b.Store).Items(t.Context(), run, key); !errors.Is(err, workqueue.ErrNotFound) {
			t.Errorf("key %q: %v; want ErrNotFound", key, err)
		}
	}
}
