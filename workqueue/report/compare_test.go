package report_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// outcomes makes a run of the items named and answers them: a value is a result, one that begins with ! the code of an
// error, and an empty one no answer at all.
func (b *bench) outcomes(items ...[2]string) workqueue.RunID {
	b.Helper()
	req := storetest.Chunked(8192)
	req.OnDuplicate, req.Session = start.DuplicateAllow, b.Session
	var names []string
	for _, i := range items {
		names = append(names, i[0])
	}
	loaded := testenv.Must(start.New(b.Store).Load(b.Context(), req, storetest.Keys(names...)))(b)
	s := b.One(loaded.Run)
	a := settle.Answer{Slice: s.ID, Endpoint: storetest.Endpoint, Service: "test", Answered: -1}
	for o, i := range items {
		slot := settle.Slot{Ordinal: workqueue.Ordinal(o), Result: []byte(i[1])}
		switch {
		case i[1] == "":
			continue
		case i[1][0] == '!':
			slot.Result, slot.Err = nil, &workqueue.SlotError{Code: i[1][1:], Message: "m"}
		}
		a.Slots = append(a.Slots, slot)
	}
	b.Record(a)
	return loaded.Run
}

func (b *bench) compare(here, there workqueue.RunID) (all []string, counts map[report.Change]int64) {
	b.Helper()
	c := testenv.Must(report.New(b.Store).Compare(b.Context(), here, there, func(d *report.Difference) error {
		line := d.Key + " " + string(d.Change)
		for _, s := range []*report.Standing{d.There, d.Here} {
			if s == nil {
				line += " -"
			} else {
				line += " " + string(s.Outcome) + s.ErrorCode
			}
		}
		all = append(all, line)
		return nil
	}))(b)
	counts = map[report.Change]int64{}
	for _, n := range c.Changes {
		counts[n.Change] = n.Items
		told := n.Change != report.ChangeNone && n.Change != report.ChangeNotCompared
		if want := min(n.Items, 5); told && int64(len(n.Examples)) != want {
			b.Errorf("%d examples of %s; want %d", len(n.Examples), n.Change, want)
		}
	}
	return all, counts
}

func TestCompare(t *testing.T) {
	t.Parallel()
	b := setup(t)
	earlier := b.outcomes([2]string{"fixed", "!OLD"}, [2]string{"same", "1"}, [2]string{"other", "1"},
		[2]string{"broke", "1"}, [2]string{"still", "!A"}, [2]string{"gone", "1"}, [2]string{"open", ""},
		[2]string{"twin", "1"}, [2]string{"twin", "2"}, [2]string{"", "0"})
	later := b.outcomes([2]string{"twin", "1"}, [2]string{"new", "1"}, [2]string{"open", "1"}, [2]string{"broke", "!X"},
		[2]string{"fixed", "1"}, [2]string{"other", "2"}, [2]string{"still", "!B"}, [2]string{"same", "1"},
		[2]string{"twin", "3"}, [2]string{"twin", "4"}, [2]string{"", "0"})
	all, counts := b.compare(later, earlier)
	want := []string{
		" unchanged done done",
		"broke newly_failing done failedX",
		"fixed newly_fixed failedOLD done",
		"gone only_there done -",
		"new only_here - done",
		"open unfinished missing done",
		"other changed done done",
		"same unchanged done done",
		"still still_failing failedA failedB",
		"twin unchanged done done",
		"twin changed done done",
		"twin only_here - done",
	}
	testenv.SameList(t, all, want, "the differences")
	if counts[report.ChangeNone] != 3 || counts[report.ChangeOnlyHere] != 2 || len(counts) != 9 {
		t.Errorf("the counts are %v", counts)
	}
	if _, counts := b.compare(earlier, earlier); counts[report.ChangeNone] != 7 ||
		counts[report.ChangeStillFailing] != 2 || counts[report.ChangeUnfinished] != 1 {
		t.Errorf("against itself: %v", counts)
	}
}

// Runs of several pages, in another order, of which one was rerun.
func TestCompareManyKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items = 10_000
	finish := func(list []string, bad string) workqueue.RunID {
		req := storetest.Chunked(4000)
		req.Session = b.Session
		loaded := testenv.Must(start.New(b.Store).Load(t.Context(), req, storetest.Keys(list...)))(t)
		for _, s := range b.Claim(loaded.Run, storetest.Plenty) {
			a := storetest.Whole(s)
			for i := range a.Slots {
				key := list[a.Slots[i].Ordinal]
				a.Slots[i].Result = []byte(`"` + key + `"`)
				if key == bad {
					a.Slots[i].Result, a.Slots[i].Err = nil, &workqueue.SlotError{Code: "BAD"}
				}
			}
			b.Record(a)
		}
		return loaded.Run
	}
	forth, back := storetest.Names(items), storetest.Names(items)
	slices.Reverse(back)
	here, there := finish(forth[5:], "C77"), finish(back, "C9999")
	all, counts := b.compare(here, there)
	if len(all) != items || counts[report.ChangeOnlyThere] != 5 || counts[report.ChangeNewlyFailing] != 1 ||
		counts[report.ChangeNewlyFixed] != 1 || counts[report.ChangeNone] != items-7 {
		t.Errorf("%d keys: %v", len(all), counts)
	}
	sel := redo.Selection{Failed: true}
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: here, Select: sel}))(t)
	b.Finish(here) // with another result
	_, counts = b.compare(here, there)
	if counts[report.ChangeResult] != 1 || counts[report.ChangeNewlyFailing] != 0 {
		t.Errorf("after a rerun: %v", counts)
	}

	// Whoever reads the differences may stop.
	enough := errors.New("enough")
	n := 0
	_, err := report.New(b.Store).Compare(t.Context(), here, there, func(*report.Difference) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || n != 3 {
		t.Errorf("%d keys, then %v; want 3, then %v", n, err, enough)
	}
}

// stepsOf makes a run of steps that need nothing, in which each item's result is the step's name.
func (b *bench) stepsOf(plan string, steps ...string) workqueue.RunID {
	b.Helper()
	var specs []workqueue.StepSpec
	for _, name := range steps {
		specs = append(specs, storetest.Need(name))
	}
	req := storetest.Planned(specs...)
	req.Plan, req.Session = plan, b.Session
	loaded := testenv.Must(start.New(b.Store).Load(b.Context(), req, storetest.Keys("a", "b", "c")))(b)
	for step, name := range steps {
		for _, s := range b.ClaimStep(loaded.Run, workqueue.Step(step), storetest.Plenty).Slices {
			a := storetest.Whole(s)
			for i := range a.Slots {
				a.Slots[i].Result = []byte(name)
			}
			b.Record(storetest.Except(a, 2)) // c fails
		}
	}
	return loaded.Run
}

// Runs of other plans are compared by what they have in common, and nothing counts as changed for the plan's sake.
func TestCompareRunsOfOtherPlans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, other := b.stepsOf("year-end", "statement"), b.stepsOf("quarter", "letter")
	two, swapped := b.stepsOf("both", "letter", "statement"), b.stepsOf("both", "statement", "letter")
	for _, test := range []struct {
		here, there                workqueue.RunID
		unchanged, apart           int64
		compared, onlyHere, onlyTo []string
		note                       string
	}{
		{one, one, 2, 0, nil, nil, nil, ""},
		{one, other, 0, 2, []string{}, []string{"statement"}, []string{"letter"},
			"the plans differ: this run is of year-end (statement), the other of quarter (letter); only outcomes are " +
				"compared, not results"},
		{one, two, 2, 0, []string{"statement"}, nil, []string{"letter"}, "the results of statement, not those of letter"},
		{two, swapped, 2, 0, []string{"letter", "statement"}, nil, nil, "the results of letter, statement, by the names"},
	} {
		found := testenv.Must(report.New(b.Store).Compare(t.Context(), test.here, test.there, nil))(t)
		counts := map[report.Change]int64{}
		for _, n := range found.Changes {
			counts[n.Change] = n.Items
		}
		if counts[report.ChangeNone] != test.unchanged || counts[report.ChangeNotCompared] != test.apart ||
			counts[report.ChangeResult] != 0 || counts[report.ChangeStillFailing] != 1 {
			t.Errorf("%q: %v", test.note, counts)
		}
		if found.Plans == nil {
			if test.compared != nil || found.Note != "" {
				t.Errorf("nothing is said of the plans: %q", found.Note)
			}
			continue
		}
		p := found.Plans
		if !slices.Equal(p.Compared, test.compared) || !slices.Equal(p.OnlyHere, test.onlyHere) ||
			!slices.Equal(p.OnlyThere, test.onlyTo) || !strings.Contains(found.Note, test.note) {
			t.Errorf("%+v: %s", p, found.Note)
		}
	}
}

// large makes a run of one item for each text, which is its result and came in pieces of some size.
func (b *bench) large(size int, texts ...string) workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Chunked(1), len(texts))
	for _, s := range b.Claim(run, len(texts)) {
		o := s.Block.Ordinal(firstBit(s.Mask))
		pieces := storetest.InPieces(s, o, []byte(texts[o]), size)
		taken := b.TakePieces(pieces...)
		b.Record(storetest.LargeAnswer(s, pieces[0], taken[len(taken)-1]))
	}
	b.WantState(run, "completed", 1)
	return run
}

func firstBit(mask bitfield.Set) int {
	for bit := range mask.All() {
		return bit
	}
	return -1
}

// Results that came in pieces are compared by size and hash, however they were cut, and are what a report's digest
// says.
func TestLargeResultsAreComparedByHash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.large(2, "statement of C0", "statement of C1")
	same := b.large(7, "statement of C0", "statement of C1")
	other := b.large(2, "statement of C0", "statement of C9")
	if all, counts := b.compare(same, first); counts[report.ChangeNone] != 2 {
		t.Errorf("the same in other pieces: %v, %v", all, counts)
	}
	if all, counts := b.compare(other, first); counts[report.ChangeNone] != 1 || counts[report.ChangeResult] != 1 {
		t.Errorf("one of two is other: %v, %v", all, counts)
	}
	digest := func(run workqueue.RunID) string {
		d := testenv.Must(report.New(b.Store).Digests(t.Context(), run))(t)
		return fmt.Sprint(d.Results)
	}
	if a, c := digest(first), digest(same); a == "" || a != c {
		t.Errorf("digests of the same: %s, %s", a, c)
	}
	if a, c := digest(first), digest(other); a == c {
		t.Errorf("digests of others: %s, %s", a, c)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := b.Load(storetest.Request(), 1)
	run := b.Load(storetest.Request(), 3)
	ctl := control.New(b.Store)
	testenv.Must(ctl.Pause(t.Context(), control.Control{Run: run, Actor: "ann", Reason: "lunch"}))(t)
	testenv.NoError(t, ctl.Note(t.Context(), run, "the bank\x00 called", "bob"))
	testenv.Must(ctl.Resume(t.Context(), control.Control{Run: run, Actor: "ann"}, nil))(t)
	b.Exec(`INSERT INTO endpoint_change (endpoint, what, before, after, reason)
		VALUES ($1, 'breaker', 'closed', 'open', '9 of 10 failed'), ($1, 'rate', '1', '2', 'no matter'),
			('elsewhere', 'breaker', 'closed', 'open', 'no matter')`, storetest.Endpoint)
	b.Exec(`INSERT INTO endpoint_change (at, endpoint, what, before, after, reason)
		SELECT created_at - interval '1 hour', $1, 'breaker', 'open', 'closed', 'before its time' FROM batchrun`,
		storetest.Endpoint)
	b.Exec(`INSERT INTO alert (name, version, state, spec, source, created_by, changed_by, since)
		VALUES ('ops', 1, 'active', '{}', '', 'ann', 'ann', tranche_now())`)
	b.Exec(`INSERT INTO alert_message (id, alert, what, grp, severity, body)
		VALUES ($1, 'ops', 'alert', 'g', 'warning', jsonb_build_object('title', 'held', 'begun', $2::text)),
			($3, 'ops', 'alert', 'h', 'warning', '{"title": "of another"}')`, uuid.New(), run, uuid.New())
	b.Exec(`INSERT INTO run_event (id, run_id, generation, kind, payload) VALUES
		($2, $1, 1, 'deadline_at_risk', '{"at_risk": true, "ends": "06:40", "bound_by": "bills is slow"}'),
		($3, $1, 1, 'deadline_at_risk', '{"at_risk": false}')`, run, uuid.New(), uuid.New())
	b.Finish(run)
	b.Exec(`WITH run AS (SELECT created_at AS at FROM batchrun WHERE id = $1), old AS (
			UPDATE node_session SET started_at = at - interval '1 h', ended_at = at - interval '1 s' FROM run)
		INSERT INTO node_session (id, host, pid, version, started_at, expires_at)
		SELECT $2, 'vm', 1, '1.2', at + interval '1 ms', tranche_now() + interval '1 h' FROM run`, run, uuid.New())
	b.Exec(`UPDATE work_slice SET service = 'bills@1.2.0 ' || id WHERE run_id = $1`, run)

	entries := testenv.Must(report.New(b.Store).History(t.Context(), run))(t)
	var got []string
	for i := range entries {
		e := &entries[i]
		got = append(got, fmt.Sprint(e.Kind, " ", e.What, " ", e.Who, " ", e.Text))
		if i > 0 && e.At.After(entries[i-1].At) {
			t.Errorf("%v stands after %v", e, entries[i-1])
		}
	}
	slices.Sort(got)
	want := []string{
		"action pause ann lunch", "action resume ann ", "action start test ", "alert ops waiting held",
		"breaker open " + storetest.Endpoint + " 9 of 10 failed", "event completed tranche generation 1",
		"event deadline_at_risk tranche it would end at 06:40; bills is slow", "event deadline_at_risk tranche withdrawn",
		"node started vm 1.2", "note note bob the bank\ufffd called", "outage closed tranche ", "outage open tranche ",
		"service bills@1.2.0 " + storetest.Endpoint + " ",
	}
	testenv.SameList(t, got, want, "the differences")
	if entries, err := report.New(b.Store).History(t.Context(), before); err != nil || len(entries) < 1 {
		t.Errorf("of another: %v, %v", entries, err)
	}
	for _, err := range []error{
		ctl.Note(t.Context(), workqueue.RunID(uuid.New()), "of nothing", "bob"),
		func() error {
			_, err := report.New(b.Store).History(t.Context(), workqueue.RunID(uuid.New()))
			return err
		}(),
	} {
		testenv.Is(t, err, workqueue.ErrNotFound, "of no run")
	}
}
