package workqueue_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/groups"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// corrections gives each key a payload.
func corrections(payload string, keys ...string) func() (func(*redo.Correction) error, error) {
	return func() (func(*redo.Correction) error, error) {
		i := 0
		return func(c *redo.Correction) error {
			if i == len(keys) {
				return io.EOF
			}
			c.Key, c.Payload, c.Line = keys[i], []byte(payload), i+2
			i++
			return nil
		}, nil
	}
}

func (b *bench) correct(run workqueue.RunID, payload string, keys ...string) redo.Corrected {
	b.Helper()
	out, err := redo.New(b.store).Correct(b.Context(), redo.CorrectRequest{Run: run, Actor: "ann", Reason: "it was wrong",
		Items: corrections(payload, keys...)})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// wantSaid fails the test unless an error says all of this.
func (b *bench) wantSaid(err error, parts ...string) {
	b.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			b.Errorf("got %v; want it to say %s", err, part)
		}
	}
}

// payloadsOf is what the request for a slice would carry.
func (b *bench) payloadsOf(s workqueue.Slice) (all []string) {
	b.Helper()
	err := dispatch.New(b.store).EachInput(b.Context(), dispatch.InputRequest{Run: s.Run, Block: s.Block, Mask: &s.Mask},
		func(in dispatch.Input) bool {
			all = append(all, string(in.Key)+string(in.Payload))
			return true
		})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// A run that has completed opens again with the items that are corrected, and completes a second time. What they were
// before stays known.
func TestCorrectedItemsAreDoneAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(5), 20)
	b.finish(run)
	out := b.correct(run, `{"balance":"7"}`, "C3", "C11")
	if out.Items != 2 || out.Begun != 2 || out.Generation != 2 || !slices.Equal(out.Examples, []string{"C3", "C11"}) {
		t.Fatalf("corrected %+v", out)
	}
	b.wantState(run, "running", 2)
	b.wantTally(run, tally{ready: 2, done: 18})
	s := b.one(run)
	if got := fmt.Sprint(b.payloadsOf(s)); got != `[C3{"balance":"7"} C11{"balance":"7"}]` {
		t.Errorf("the request carries %s", got)
	}
	b.record(whole(s))
	b.wantState(run, "completed", 2)
	b.wantCompletions(run, 1, 2)
	b.check()
	items, err := inspect.New(b.store).Items(t.Context(), run, "C3")
	if err != nil || len(items[0].EarlierPayloads) != 1 {
		t.Fatalf("the item: %+v, %v", items, err)
	}
	if e := items[0].EarlierPayloads[0]; e.Generation != 2 || string(e.Payload) != "{}" || e.Actor != "ann" ||
		e.Reason != "it was wrong" || string(items[0].Payload) != `{"balance":"7"}` {
		t.Errorf("the item: %+v, payload %s", e, items[0].Payload)
	}
	if got := b.report(run).Corrected; got == nil || got.Items != 2 || got.Made != 2 ||
		len(got.Times) != 1 || got.Times[0].Actor != "ann" {
		t.Errorf("the report: %+v", got)
	}
	if got := b.number(`SELECT payload_bytes FROM work_block WHERE run_id = $1`, run); got != 18*2+2*15 {
		t.Errorf("the block has %d bytes of payloads", got)
	}
	if got := b.actions(run); !slices.Contains(got, "correct by ann") {
		t.Errorf("the audit log has %v", got)
	}
}

// A service that has the former payload in hand answers about it in vain: late, and item by item.
func TestAnAnswerAboutTheFormerPayloadIsNotTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 4)
	old := b.one(run)
	b.send(old)
	if out := b.correct(run, `{"new":1}`, "C2"); out.Begun != 1 || out.Steps[0].Withdrawn != 1 {
		t.Fatalf("corrected %+v", out)
	}
	if v := b.record(whole(old)).Verdicts[0]; v.Taken != 3 || v.Duplicates != 1 {
		t.Errorf("the late answer: %+v; want 3 slots taken", v)
	}
	b.wantState(run, "running", 2)
	again := b.one(run)
	if got := fmt.Sprint(b.payloadsOf(again)); got != `[C2{"new":1}]` {
		t.Errorf("the next request carries %s", got)
	}
	b.record(whole(again))
	b.wantState(run, "completed", 2)
	b.check()
}

// What nobody has begun with only gets its payload.
func TestItemsThatNobodyHasBegunWithAreCorrected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 4)
	if out := b.correct(run, `{"new":1}`, "C2"); out.Items != 1 || out.Begun != 0 || out.Generation != 2 {
		t.Fatalf("corrected %+v", out)
	}
	b.wantTally(run, tally{ready: 4})
	b.finish(run)
	b.wantState(run, "completed", 2)
	b.wantCompletions(run, 2)
	b.check()
}

func TestACorrectionThatIsWrongChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(100), 10_000)
	b.finish(run)
	correct := func(req redo.CorrectRequest) error {
		req.Run, req.Actor = run, "ann"
		_, err := redo.New(b.store).Correct(t.Context(), req)
		return err
	}
	many := append(names(9000), "C7")
	unknown := []string{"C1"}
	for i := range 25 {
		unknown = append(unknown, fmt.Sprintf("X%d", i))
	}
	b.wantSaid(correct(redo.CorrectRequest{Items: corrections(`{"a":1}`, many...)}), "line 9002", `"C7"`, "given before")
	b.wantSaid(correct(redo.CorrectRequest{Items: corrections(`{"a":1}`, unknown...)}), `"X0"`, `"X19" and 5 more`)
	b.wantSaid(correct(redo.CorrectRequest{Items: corrections(`{}`, "C1", "C2")}), "just as given")
	b.wantSaid(correct(redo.CorrectRequest{Items: corrections(`{}`)}), "no item was given")
	if err := correct(redo.CorrectRequest{DryRun: true, Items: corrections(`{"a":1}`, "C1")}); err != nil {
		t.Fatal(err)
	}
	b.wantState(run, "completed", 1)
	if n := b.number(`SELECT count(*) FROM work_queue WHERE run_id = $1 AND payload <> '{}'`, run); n != 0 {
		t.Errorf("%d payloads were changed", n)
	}
	if n := b.number(`SELECT (SELECT count(*) FROM work_correction) + (SELECT count(*) FROM run_correction)`); n != 0 {
		t.Errorf("%d rows tell of corrections", n)
	}
	var not *redo.UnknownKeysError
	if err := correct(redo.CorrectRequest{Items: corrections(`{"a":1}`, "no")}); !errors.As(err, &not) {
		t.Errorf("an unknown key: %v", err)
	}
}

// Steps that see payloads do corrected items again; those after them only where a part changes, or with a cascade.
func TestStepsAfterFollowACorrection(t *testing.T) {
	t.Parallel()
	for _, cascade := range []bool{false, true} {
		t.Run(fmt.Sprint("cascade ", cascade), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			req := collecting()
			for i := range req.Steps {
				req.Steps[i].NoItem = i != int(accounts) // the others see parts, or only the key
			}
			g := &gatherer{bench: b, run: b.load(req, 3)}
			g.fresh()
			g.fail(transactions, 1)
			g.work()
			b.wantState(g.run, "completed", 1)
			g.fresh()
			out, err := redo.New(b.store).Correct(t.Context(), redo.CorrectRequest{Run: g.run, Actor: "ann", Cascade: cascade,
				Items: corrections(`{"fixed":true}`, "C0", "C1")})
			if err != nil || out.Begun != 2 {
				t.Fatalf("corrected %+v, %v", out, err)
			}
			g.work()
			b.wantState(g.run, "completed", 2)
			want := map[workqueue.Step]string{accounts: "[0 1]", transactions: "[1]", branches: "[]", statement: "[1]",
				posting: "[1]"}
			if cascade {
				want[statement], want[posting] = "[0 1]", "[0 1]"
			}
			for s, items := range want {
				slices.Sort(g.did[s])
				if got := fmt.Sprint(g.did[s]); got != items {
					t.Errorf("step %s was done for %s; want %s", stepNames[s], got, items)
				}
			}
			kept := b.report(g.run).Corrected
			if made := map[bool]int64{false: 1, true: 2}[cascade]; kept.Made != made || kept.Kept != 2-made {
				t.Errorf("the report: %+v", kept)
			}
			b.check()
		})
	}
}

// Groups by a field are kept in memory, and follow corrections.
func TestGroupsFollowCorrections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 10)
	b.correct(run, `{"branch":"north"}`, names(10)...)
	store := groups.New(b.store)
	look := func() (all []string) {
		found, err := store.GroupsBy(t.Context(), run, "branch")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range found.Groups {
			all = append(all, fmt.Sprint(text(g.Value), g.Items))
		}
		return all
	}
	if got := fmt.Sprint(look()); got != "[=north10]" {
		t.Fatalf("groups %s", got)
	}
	b.correct(run, `{"branch":"south"}`, "C1", "C2")
	if got := fmt.Sprint(look()); got != "[=north8 =south2]" {
		t.Errorf("groups %s after a correction", got)
	}
}

// An item stays in the line that it stands in.
func TestACorrectionLeavesItemsInTheirLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.loadLines(chunked(10), "a", "b", "a")
	key := func(i int) (key, payload string) {
		err := b.pool.QueryRow(t.Context(), `SELECT item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal = $2`,
			run, i).Scan(&key, &payload)
		if err != nil {
			t.Fatal(err)
		}
		return key, payload
	}
	first, payload := key(0)
	_, other := key(1)
	_, err := redo.New(b.store).Correct(t.Context(), redo.CorrectRequest{Run: run, Actor: "ann",
		Items: corrections(other, first)})
	b.wantSaid(err, "order_by", "elsewhere")
	b.finish(run)
	b.correct(run, strings.TrimSuffix(payload, "}")+`,"x":1}`, first)
	b.finish(run)
	b.wantState(run, "completed", 2)
	b.check()
}

// What was invalid at intake is asked about once its data is right, at each step.
func TestInvalidItemsAreMended(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.loadInvalid(planned(need("a"), need("b"), need("c", 0, 1)), everyThird(keys(names(6)...))).Run
	for step := range workqueue.Step(3) {
		b.recordStep(run, step)
	}
	b.wantState(run, "completed", 1)
	b.wantCounts(run, 4, 2)
	if out := b.correct(run, `{"balance":"1"}`, "C3"); out.Begun != 1 {
		t.Fatalf("corrected %+v", out)
	}
	b.check()
	for step := range workqueue.Step(3) {
		if got := b.recordStep(run, step); got != 1 {
			t.Errorf("step %d was asked about %d items; want 1", step, got)
		}
	}
	b.wantState(run, "completed", 2)
	b.wantCounts(run, 5, 1)
	b.check()
}
