package inspect_test

import (
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func (b *bench) planes(run workqueue.RunID, step string, layer inspect.Layer) []byte {
	b.Helper()
	p, err := inspect.New(b.Store).Planes(b.Context(), inspect.PlanesRequest{
		Run: run, Step: step, Layer: layer, Blocks: inspect.MaxPlaneBlocks,
	})
	testenv.NoError(b, err)
	return p.Bytes
}

// An item of each sort, at each step and over all.
func TestPlanesShowWhereItemsAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(2)
	second := req.Steps[0]
	second.Name, second.Needs, second.Inputs = "second", []int{0}, []int{0}
	req.Steps = append(req.Steps, second)
	run := b.Load(req, 10)
	b.Record(storetest.Whole(b.One(run)))                                                   // 0, 1
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "bad", Message: "m"}))  // 2, 3 fail
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "later", Retry: true})) // 4, 5 wait
	b.Exec(`UPDATE work_slice SET not_before = not_before + interval '1 h' WHERE state = 'scheduled'`)
	b.One(run)                                                  // 6, 7 are out
	b.Record(storetest.Whole(b.ClaimStep(run, 1, 1).Slices[0])) // 0, 1 are done
	want := func(step string, want ...byte) {
		t.Helper()
		testenv.SameList(t, b.planes(run, step, ""), want, "step %q: %s", step, b.Dump(run))
	}
	want("only", 5, 5, 6, 6, 3, 3, 4, 4, 2, 2)
	want("second", 5, 5, 7, 7, 0, 0, 0, 0, 0, 0)
	want("", 5, 5, 6, 6, 3, 3, 4, 4, 2, 2)
	_, err := redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{
		Run: run, Actor: "test", Select: redo.Selection{Step: "only", Keys: []string{"C0"}},
	})
	testenv.NoError(t, err)
	want("only", 2, 5, 6, 6, 3, 3, 4, 4, 2, 2)
	want("second", 8, 5, 7, 7, 0, 0, 0, 0, 0, 0)
	want("", 8, 5, 6, 6, 3, 3, 4, 4, 2, 2)
	testenv.SameList(t, b.planes(run, "only", inspect.LayerAttempts), []byte{0, 1, 1, 1, 1, 1, 1, 1, 0, 0}, "attempts")
	if got := b.planes(run, "second", inspect.LayerLatency); got[0] == 0 || got[2] != 0 || got[9] != 0 {
		t.Errorf("latencies %v", got)
	}
	_, err = inspect.New(b.Store).Planes(t.Context(), inspect.PlanesRequest{Run: run, Step: "third"})
	testenv.Is(t, err, workqueue.ErrNotFound, "a step that does not exist")
}

func TestAgesAndTimesComeFromTheNewestSlice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "later", Retry: true}))
	again := b.One(run)
	b.Record(storetest.Whole(again))
	b.Exec(`UPDATE work_slice SET created_at = created_at - interval '2 h',
		sent_at = tranche_now() - interval '1 h' - interval '255 ms',
		ended_at = tranche_now() - interval '1 h' WHERE id = $1`, again.ID)
	b.Exec(`UPDATE work_slice SET created_at = created_at - interval '3 h', sent_at = tranche_now() - interval '3 h',
		ended_at = tranche_now() - interval '2 h' WHERE id <> $1`, again.ID)
	b.Exec(`UPDATE batchrun SET started_at = tranche_now() - interval '4 h'`)
	hour, four := inspect.TimeCode(3600), inspect.TimeCode(4*3600)
	if got := b.planes(run, "", inspect.LayerAge); got[0] != hour || got[7] != four {
		t.Errorf("ages %v; want %d of what was tried, and %d", got, hour, four)
	}
	want := []byte{97, 97, 97, 97, 0, 0, 0, 0} // 255 ms: 1 + 12·8
	testenv.SameList(t, b.planes(run, "", inspect.LayerLatency), want, "latencies")
	testenv.SameList(t, b.planes(run, "", inspect.LayerAttempts), []byte{2, 2, 2, 2, 0, 0, 0, 0}, "attempts")
	for n, code := range map[float64]byte{-1: 1, 0: 1, 1: 13, 255: 97, 1e9: 255} {
		testenv.Same(t, inspect.TimeCode(n), code, "code of %v", n)
	}
}

func TestTimelineCountsEveryItemOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "later", Retry: true}))
	b.Finish(run)
	_, err := redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{
		Run: run, Actor: "test", Select: redo.Selection{Keys: []string{"C1", "C2"}},
	})
	testenv.NoError(t, err)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "bad"}))
	again := redo.RerunRequest{Run: run, Actor: "test", Select: redo.Selection{Failed: true}}
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), again))(t)
	b.Finish(run)
	tell := func(all bool, done, failed, requests int64) {
		t.Helper()
		tl, err := report.New(b.Store).Timeline(t.Context(), report.TimelineRequest{Run: run, Buckets: 5, All: all})
		testenv.NoError(t, err)
		sum := func(of []int64) (n int64) {
			for _, v := range of {
				n += v
			}
			return n
		}
		s := &tl.Steps[0]
		if len(s.Done) != 5 || sum(s.Done) != done || sum(s.Failed) != failed || sum(s.Requests) != requests {
			t.Errorf("all=%v: %+v; want %d done, %d failed, %d requests", all, s, done, failed, requests)
		}
	}
	tell(false, 2, 0, 1)
	tell(true, 10, 2, 5) // 8, then 2 that failed, then the same 2
}

func TestLiveSlicesInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(2), 10)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "later", Retry: true}))
	b.Exec(`UPDATE work_slice SET not_before = not_before + interval '1 h' WHERE state = 'scheduled'`)
	out := b.One(run)
	b.Send(out)
	b.Record(settle.Answer{Slice: out.ID, Endpoint: out.Endpoint, Service: "slow", Answered: -1,
		Slots: []settle.Slot{{Ordinal: 2, Result: []byte("1")}}})
	b.Claim(run, 3)
	seen := map[string]int{}
	filter := inspect.LiveFilter{Run: run, Limit: 2}
	for {
		page := testenv.Must(inspect.New(b.Store).LiveSlices(t.Context(), filter))(t)
		testenv.MustSame(t, page.Counts, (inspect.LiveCounts{Scheduled: 1, Claimed: 3, Sent: 1}), "%+v", page)
		for _, s := range page.Slices {
			seen[s.State]++
			if s.ID == out.ID && (s.FirstKey != "C3" || s.Remaining != 1 || s.Items != 2 || s.Service != "slow" ||
				s.Node == nil || s.Node.Host != "test" || s.SentAt == nil) {
				t.Errorf("the one that is out: %+v", s)
			}
		}
		if page.Next == nil {
			break
		}
		filter.After = *page.Next
	}
	if seen["scheduled"] != 1 || seen["claimed"] != 3 || seen["sent"] != 1 {
		t.Errorf("the pages hold %v", seen)
	}
	page, err := inspect.New(b.Store).LiveSlices(t.Context(), inspect.LiveFilter{Run: run, States: []string{"scheduled"}})
	if err != nil || len(page.Slices) != 1 || page.Slices[0].NotBefore == nil || page.Slices[0].Cause != "retry" {
		t.Errorf("what is scheduled: %+v, %v", page, err)
	}
}

func TestItemsOfARangeInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4000), bitfield.Size+100)
	first := b.One(run)
	a := storetest.Whole(first)
	for i := range a.Slots {
		if i%100 == 0 {
			a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "bad", Message: "no"}
		}
	}
	b.Record(a)
	r := inspect.ItemRange{Run: run, From: 50, To: bitfield.Size + 50, States: []string{"failed"}, After: -1, Limit: 7}
	var all []workqueue.Ordinal
	for {
		page := testenv.Must(inspect.New(b.Store).ItemsIn(t.Context(), r))(t)
		for _, item := range page.Items {
			if item.Error == nil || item.Error.Code != "bad" || item.Attempts != 1 || item.State != "failed" ||
				item.Key != storetest.Names(int(item.Ordinal) + 1)[item.Ordinal] {
				t.Errorf("%+v", item)
			}
			all = append(all, item.Ordinal)
		}
		if page.Next == nil {
			break
		}
		r.After = *page.Next
	}
	var want []workqueue.Ordinal
	for i := range a.Slots {
		if o := a.Slots[i].Ordinal; i%100 == 0 && o >= 50 {
			want = append(want, o)
		}
	}
	testenv.SameList(t, all, want, "failed")
	end := inspect.ItemRange{Run: run, From: bitfield.Size + 95, To: 1 << 30, After: -1}
	page, err := inspect.New(b.Store).ItemsIn(t.Context(), end)
	if err != nil || len(page.Items) != 5 || page.Next != nil || page.Items[4].Key != "C8291" {
		t.Errorf("the last ones: %+v, %v", page, err)
	}
}
