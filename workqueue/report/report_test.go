package report_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Items in every state together, and what a report says of each.
func TestReportAddsUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].RetryBackoff = time.Hour
	run := b.Load(req, 20)
	claimed := b.Claim(run, 3) // 3 × 4; 8 stay ready
	b.Send(claimed...)
	mixed := storetest.Whole(claimed[0])
	mixed.Took = 0.5
	mixed.Slots[0].Result, mixed.Slots[0].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no 1"}
	mixed.Slots[1].Result, mixed.Slots[1].Err = nil, &workqueue.SlotError{Code: "BUSY", Message: "later", Retry: true}
	b.Record(mixed)
	held := claimed[1]
	b.Exec(`UPDATE work_slice SET state = 'cancelled', remaining = B'0'::bit(8192), ended_at = tranche_now()
		WHERE id = $1`, held.ID)
	b.Exec(`UPDATE work_block SET held = (SELECT mask FROM work_slice WHERE id = $1) WHERE run_id = $2`, held.ID, run)

	r := b.Report(run)
	want := map[string]int64{"ready": 8, "held": 4, "in_flight": 4, "scheduled": 1}
	for _, u := range r.Unprocessed {
		testenv.Same(t, want[u.State], u.Items, "%d items are %s", u.Items, u.State)
		delete(want, u.State)
	}
	if len(want) > 0 || r.Complete || r.Done != 2 || r.Failed != 1 {
		t.Errorf("%v are missing in %+v", want, r)
	}
	if q := r.Requests; q.Count != 3 || q.Items != 12 || q.MeanItems != 4 || q.P50Seconds != 0.5 || q.TriedAgain != 0 ||
		len(q.ByCause) != 1 || q.ByCause[0] != (report.CauseReport{Cause: "ready", Requests: 3, Items: 12}) {
		t.Errorf("the requests are %+v", q)
	}
	if len(r.Services) != 1 || r.Services[0].Name != "test" || r.Services[0].SecondsPerItem != 0.125 ||
		len(r.Endpoints) != 1 || r.Endpoints[0].Name != storetest.Endpoint {
		t.Errorf("the workers are %+v and %+v", r.Services, r.Endpoints)
	}
	if g := r.Generations; len(g) != 1 || g[0].EndedAt != nil || g[0].Done != 2 || g[0].Failed != 1 || g[0].Seconds <= 0 {
		t.Errorf("the generations are %+v", g)
	}
}

// What a rerun asks for was asked for before; an item counts once, at however many steps and how often.
func TestReportCountsWhatAReRunAsksForAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	claimed := b.Claim(run, 2)
	b.Send(claimed...)
	b.Record(storetest.Whole(claimed[0]))
	b.Record(storetest.Faulty(claimed[1], workqueue.SlotError{Code: "BAD", Message: "no"}))
	if q := b.Report(run).Requests; q.Items != 8 || q.TriedAgain != 0 {
		t.Errorf("at first the requests are %+v", q)
	}
	for again := range int64(2) {
		_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}})
		testenv.NoError(t, err)
		for _, s := range b.Claim(run, storetest.Plenty) {
			b.Send(s)
			b.Record(storetest.Faulty(s, workqueue.SlotError{Code: "BAD", Message: "no"}))
		}
		if q := b.Report(run).Requests; q.Items != 8+4*(again+1) || q.TriedAgain != 4 {
			t.Errorf("after rerun %d the requests are %+v; want 4 items requested again", again+1, q)
		}
	}
}

// Retries, a halving, a lost node and a rerun, as the report counts them.
func TestReportCountsWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(4)
	req.Steps[0].MaxAttempts = 2
	run := b.Load(req, 8)
	lost := b.Open()
	claim := b.ClaimRequest(run, 1)
	claim.Session = lost
	testenv.Must(dispatch.New(b.Store).Claim(t.Context(), claim))(t)
	b.Expire(lost)
	testenv.MustSame(t, testenv.Must(settle.New(b.Store).ReleaseDeadSessions(t.Context(), b.Lead()))(t), 1,
		"sessions released")
	var longest time.Duration // that recording took: a run ends with the recording of its last answer
	timed := func(work func()) {
		began := time.Now()
		work()
		longest = max(longest, time.Since(began))
	}
	// Item 2 fails every chunk that it is in; the last one answers for itself.
	for range 20 {
		for _, s := range b.Claim(run, storetest.Plenty) {
			b.Send(s)
			a := storetest.Whole(s)
			if s.Mask.Has(2) {
				a = settle.Answer{Slice: s.ID, Endpoint: storetest.Endpoint, Service: "test", Answered: 0,
					Failure: &workqueue.SlotError{Code: "handler_error", Message: "broke", Retry: true}}
			}
			timed(func() { b.Record(a) })
		}
	}
	b.WantState(run, "completed", 1)
	r := b.Report(run)
	if !r.Complete || r.Done != 7 || r.Failed != 1 || r.Requests.LostToNodes != 1 || r.Requests.TriedAgain != 4 {
		t.Errorf("the report is %+v", r)
	}
	if f := r.Bisections; f.Kinds["bad_entity"] != 1 || f.Culprits != 1 || f.Slices < 4 || len(f.Roots) != 1 {
		t.Errorf("the bisections are %+v: %s", f, b.Dump(run))
	}
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}})
	testenv.NoError(t, err)
	timed(func() { b.Finish(run) })
	r = b.Report(run)
	if len(r.Generations) != 2 || r.Generations[0].Failed != 1 || r.Generations[1].Done != 1 || r.Failed != 0 {
		t.Errorf("after the rerun: %+v", r.Generations)
	}
	if r.Rate <= 0 || r.BestRate < r.Rate {
		t.Errorf("%v items/s, best %v", r.Rate, r.BestRate)
	}
	for _, g := range r.Generations {
		if g.Ended != "completed" || g.ClosingSeconds > longest.Seconds() {
			t.Errorf("a generation is %+v; recording took up to %s", g, longest)
		}
	}
}

// digestsBySQL is the definition in another language.
const digestsBySQL = `
SELECT encode(sha256(string_agg(netstring(convert_to(q.item_key, 'UTF8')) || netstring(convert_to(q.payload, 'UTF8')),
        ''::bytea ORDER BY q.ordinal)), 'hex'),
    encode(sha256(string_agg(netstring(convert_to(q.item_key, 'UTF8')) || netstring(convert_to(o.outcome, 'UTF8')) ||
        netstring(CASE o.outcome WHEN 'done' THEN p.result WHEN 'failed' THEN convert_to(p.error_code, 'UTF8')
            ELSE '' END), ''::bytea ORDER BY q.ordinal)), 'hex')
FROM work_queue q
LEFT JOIN work_block b ON b.run_id = q.run_id AND b.block = q.ordinal / 8192
CROSS JOIN LATERAL (SELECT CASE WHEN get_bit(b.done, q.ordinal % 8192) = 1 THEN 'done'
    WHEN get_bit(b.failed, q.ordinal % 8192) = 1 THEN 'failed' ELSE 'missing' END AS outcome) o
LEFT JOIN LATERAL (SELECT * FROM work_result p WHERE p.run_id = q.run_id AND p.step = 0 AND p.ordinal = q.ordinal
    ORDER BY p.generation DESC LIMIT 1) p ON true
WHERE q.run_id = $1`

func (b *bench) digests(run workqueue.RunID) report.Digests {
	b.Helper()
	d := testenv.Must(report.New(b.Store).Digests(b.Context(), run))(b)
	var items, results string
	b.Exec(`CREATE OR REPLACE FUNCTION netstring(b bytea) RETURNS bytea LANGUAGE sql AS
		$$SELECT convert_to(octet_length(b) || ':', 'UTF8') || b || ','::bytea$$`)
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), digestsBySQL, run).Scan(&items, &results))
	if d.Items != items || d.Results != "" && d.Results != results {
		b.Errorf("the digests are %+v; by the definition they are %s and %s", d, items, results)
	}
	return d
}

func TestDigests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items = 8192 + 1500 // two blocks, pages of both lengths
	finish := func(bad workqueue.Ordinal) workqueue.RunID {
		run := b.Load(storetest.Chunked(3000), items)
		for _, s := range b.Claim(run, storetest.Plenty) {
			b.Record(storetest.Failing(s, "", func(o workqueue.Ordinal) *workqueue.SlotError {
				if o != bad {
					return nil
				}
				return &workqueue.SlotError{Code: "BAD", Message: fmt.Sprint(time.Now())}
			}))
		}
		b.WantState(run, "completed", 1)
		return run
	}
	first, same, other := finish(17), finish(17), finish(9000)
	one, two, three := b.digests(first), b.digests(same), b.digests(other)
	if one != two || one.Results == "" || one.Note != "" {
		t.Errorf("the same items and outcomes: %+v and %+v", one, two)
	}
	if three.Items != one.Items || three.Results == one.Results {
		t.Errorf("another outcome: %+v and %+v", one, three)
	}

	// The newest generation counts, and while it runs there is nothing to rely on.
	sel := redo.Selection{Keys: []string{"C17", "C18"}}
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: first, Select: sel}))(t)
	if d := b.digests(first); d.Items != one.Items || d.Results != "" || d.Note == "" {
		t.Errorf("during a rerun: %+v", d)
	}
	b.Finish(first)
	if d := b.digests(first); d.Results == one.Results || d.Results == "" {
		t.Errorf("after the rerun: %+v", d)
	}

	// What a cancelled run has not done is missing, whatever it had been before.
	sel = redo.Selection{Keys: []string{"C1", "C9000"}}
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: same, Select: sel}))(t)
	testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: same, Actor: "ann"}))(t)
	if d := b.digests(same); d.Results == two.Results || d.Results == "" {
		t.Errorf("of a cancelled run: %+v", d)
	}
}

// carry reads what a run has to continue until it ends, and returns the keys and why it ended.
func carry(b *bench, run workqueue.RunID, meanwhile func()) (keys []string, err error) {
	b.Helper()
	c := testenv.Must(report.New(b.Store).NewCarried(b.Context(), run,
		[]workqueue.Outcome{workqueue.OutcomeFailed, workqueue.OutcomeMissing}))(b)
	meanwhile()
	for {
		key, _, err := c.Next(b.Context())
		if err != nil {
			return keys, err
		}
		keys = append(keys, key)
	}
}

// A key that appears twice counts twice, and a run takes those of its items that are not done, or only
// those that failed, or are missing.
func TestCarriedTwinsCountOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(10)
	req.OnDuplicate = start.DuplicateAllow
	first := b.LoadKeys(req, "a", "a", "a", "b", "b", "k", "k")
	slice := b.One(first)
	answer := storetest.Faulty(slice, workqueue.SlotError{Code: "bad_payload", Message: "no"})
	for _, missing := range []int{0, 4} {
		answer.Slots[missing].Err = &workqueue.SlotError{Code: "busy", Message: "later", Retry: true}
	}
	answer.Slots[5] = storetest.Whole(slice).Slots[5]
	b.Record(answer)
	testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: first, Actor: "ann"}))(t)
	for took, want := range map[workqueue.Outcome]struct {
		keys                                []string
		done, failed, missing, fixed, still int64
	}{
		"":                       {[]string{"a", "a", "b", "k"}, 5, 1, 1, 3, 1},
		workqueue.OutcomeFailed:  {[]string{"a", "a", "b", "k"}, 5, 0, 2, 3, 0},
		workqueue.OutcomeMissing: {[]string{"a", "b"}, 3, 4, 0, 1, 3},
	} {
		req.FromRun, req.FromOutcome = first, took
		second := b.LoadKeys(req, want.keys...)
		b.Finish(second)
		got := b.Report(second).Together
		if got == nil || got.Items != 7 || got.Done != want.done || got.Failed != want.failed || got.Missing != want.missing {
			t.Errorf("together, after %q: %+v; want %+v", took, got, want)
		}
		_, counts := b.compare(second, first)
		if counts[report.ChangeNewlyFixed] != want.fixed || counts[report.ChangeStillFailing] != want.still {
			t.Errorf("changes since the first run, after %q: %v; want %+v", took, counts, want)
		}
	}
}

// The newest items of an open run have no block; cancelled, it still has them all, and its time counts.
func TestACancelledOpenRunHasAllItsItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, items := range []int{2, 8192, 9000} {
		run := b.OpenRun(nil)
		b.Add(run, storetest.Names(items))
		testenv.Advance(t, b.Pool, time.Hour)
		testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "ann"}))(t)
		keys, err := carry(b, run, func() {})
		testenv.Same(t, len(keys), items, "carried items; %v", err)
		b.digests(run)
		tl := testenv.Must(report.New(b.Store).Timeline(t.Context(), report.TimelineRequest{Run: run, All: true}))(t)
		if r := b.Report(run); r.Seconds < 3600 || r.LoadingSeconds != 0 || !tl.From.Equal(r.CreatedAt) {
			t.Errorf("%v s, after %v s; its timeline is from %v", r.Seconds, r.LoadingSeconds, tl.From)
		}
	}
}

// Items of a run reopened or deleted while they are read could be done twice, or have former data.
func TestAReopenedRunIsNotContinued(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 4)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "bad_payload", Message: "no"}))
	if keys, err := carry(b, run, func() {}); len(keys) != 4 || err.Error() != "EOF" {
		t.Errorf("%q, %v", keys, err)
	}
	_, err := carry(b, run, func() { b.Rerun(run, redo.Selection{Failed: true}) })
	b.WantSaid(err, "reopened meanwhile", "start again")
}
