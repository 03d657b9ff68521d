package modeltest_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/internal/storetest"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// composing drives a run of several steps through claims, late and partial replies, retries, dead nodes, barriers and
// resets in a drawn order. What a step makes of an item is a function of the item, of a version that resets change, and
// of the parts that the request carried. So at the end it is known what every part has to be, however it came about: a
// step that was not done again although a part changed shows, and so does an item that was unlocked too early.
type composing struct {
	*bench
	run      workqueue.RunID
	steps    []workqueue.StepSpec
	items    int
	versions [][]int // of each step, by item
	flying   []flight
	lease    workqueue.Lease
	moves    int
}

// flight is a slice with what its request carried.
type flight struct {
	workqueue.Slice
	results map[workqueue.Ordinal][]byte
}

func newComposing(t *rapid.T, b *bench) *composing {
	g := &composing{bench: b, items: rapid.IntRange(1, 30).Draw(t, "items")}
	for s := range rapid.IntRange(2, 6).Draw(t, "steps") {
		var needs []int
		for n := range s {
			if rapid.IntRange(0, 2).Draw(t, "needs") > 0 {
				needs = append(needs, n)
			}
		}
		spec := storetest.Need(fmt.Sprint("step", s), needs...)
		spec.Chunk, spec.MaxAttempts = rapid.IntRange(1, 9).Draw(t, "chunk"), 100
		spec.Optional = rapid.IntRange(0, 2).Draw(t, "optional") == 0
		spec.Barrier = len(spec.Needs) > 0 && rapid.IntRange(0, 4).Draw(t, "barrier") == 0
		if spec.Barrier && rapid.Bool().Draw(t, "gate") {
			spec.Approval = rapid.SampledFrom([]string{workqueue.ApproveAnyone, workqueue.ApproveOther}).Draw(t, "by")
		}
		spec.NoItem = rapid.Bool().Draw(t, "no item")
		g.steps, g.versions = append(g.steps, spec), append(g.versions, make([]int, g.items))
	}
	b.Session = b.Open()
	g.run = b.Load(storetest.Planned(g.steps...), g.items)
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	g.lease = b.Lead()
	return g
}

func digest(of ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, of...)
	return h.Sum64()
}

// fails reports whether an item has no part at a step, in its version.
func (g *composing) fails(step workqueue.Step, o workqueue.Ordinal) bool {
	return digest("fails", step, o, g.versions[step][o]/2)%6 == 0
}

// result is the part of an item at a step, from what its request carried. Every other version changes nothing.
func (g *composing) result(step workqueue.Step, o workqueue.Ordinal, parts []string) string {
	return fmt.Sprintf("%x", digest(step, o, g.versions[step][o]/2, parts))
}

func (g *composing) Claim(t *rapid.T) {
	step := workqueue.Step(rapid.IntRange(0, len(g.steps)-1).Draw(t, "step"))
	g.take(t, step, rapid.IntRange(1, 5).Draw(t, "most"))
}

func (g *composing) take(t *rapid.T, step workqueue.Step, most int) (slices int) {
	claimed := g.ClaimStep(g.run, step, most)
	for _, s := range claimed.Slices {
		f := flight{Slice: s, results: map[workqueue.Ordinal][]byte{}}
		err := dispatch.New(g.Store).EachInput(g.Context(), dispatch.InputRequest{Run: g.run, Block: s.Block, Mask: &s.Mask,
			Inputs: claimed.Work.Inputs, NoItem: claimed.Work.NoItem}, func(in dispatch.Input) bool {
			var parts []string
			for _, p := range in.Parts {
				parts = append(parts, part(string(p.Data), !p.Missing))
			}
			f.results[in.Ordinal] = []byte(g.result(step, in.Ordinal, parts))
			return true
		})
		if err != nil || len(f.results) != s.Mask.Count() {
			t.Fatalf("read the inputs of %d items at step %d: %d, %v", s.Mask.Count(), step, len(f.results), err)
		}
		g.flying = append(g.flying, f)
	}
	return len(claimed.Slices)
}

func part(data string, there bool) string {
	if !there {
		return "missing"
	}
	return data
}

// Answer records replies to some slices in one commit, whole ones or only some of their slots, with errors that pass.
func (g *composing) Answer(t *rapid.T) {
	if len(g.flying) == 0 {
		return
	}
	seed := rapid.Uint64().Draw(t, "order")
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(g.flying), func(i, j int) { g.flying[i], g.flying[j] = g.flying[j], g.flying[i] })
	n := rapid.IntRange(1, min(4, len(g.flying))).Draw(t, "replies")
	var answers []settle.Answer
	for _, f := range g.flying[:n] {
		answers = append(answers, g.answer(f, random, 15))
	}
	if rapid.IntRange(0, 3).Draw(t, "forget") > 0 { // else they come once more, later
		g.flying = slices.Delete(g.flying, 0, n)
	}
	g.send(t, answers)
}

// answer is a reply, of which some slots in a hundred are to be tried again.
func (g *composing) answer(f flight, random *rand.Rand, passing int) settle.Answer {
	a := settle.Answer{Slice: f.ID, Endpoint: f.Endpoint, Service: "test", Answered: f.Mask.Count()}
	for o, result := range f.results {
		slot := settle.Slot{Ordinal: o, Result: result}
		switch {
		case random.IntN(100) < passing:
			slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "busy", Message: "later", Retry: true}
		case g.fails(f.Step, o):
			slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "bad", Message: fmt.Sprint(random.Uint32())}
		}
		a.Slots = append(a.Slots, slot)
	}
	return a
}

// send records, and lets barriers pass only where the recording says that there is reason to look.
func (g *composing) send(t *rapid.T, answers []settle.Answer) {
	recorded, err := settle.New(g.Store).Record(g.Context(), answers)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range recorded.Look.Barriers {
		if _, err := dispatch.New(g.Store).CheckBarriers(g.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	g.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE run_id = $1 AND state = 'scheduled'`, g.run)
}

// Die ends the session; what it had claimed is claimed again, and its replies come too late.
func (g *composing) Die(t *rapid.T) {
	dying := g.Session
	g.Session = g.Open()
	g.Expire(dying)
	g.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	g.lease = g.Lead()
	if _, err := settle.New(g.Store).ReleaseDeadSessions(g.Context(), g.lease); err != nil {
		t.Fatal(err)
	}
}

// Reset takes parts of a step back. The version of their items is another from now on, which may change them or not.
func (g *composing) Reset(t *rapid.T) {
	step := rapid.IntRange(0, len(g.steps)-1).Draw(t, "step")
	sel := redo.Selection{Step: g.steps[step].Name}
	from := rapid.IntRange(0, g.items-1).Draw(t, "from")
	to := rapid.IntRange(from+1, g.items).Draw(t, "to")
	sel.Keys = storetest.Names(g.items)[from:to]
	for o := from; o < to; o++ {
		g.versions[step][o]++
	}
	_, err := redo.New(g.Store).Reset(g.Context(), redo.ResetRequest{Run: g.run, Select: sel, Actor: "test",
		Cascade: rapid.IntRange(0, 3).Draw(t, "cascade") == 0})
	var none *redo.NothingToResetError
	if err != nil && !errors.As(err, &none) {
		t.Fatal(err)
	}
}

// Approve lets the steps begin that wait for somebody, and no other.
func (g *composing) Approve(t *rapid.T) {
	for _, spec := range g.steps {
		waits := g.Number(`SELECT count(*) FROM run_step WHERE run_id = $1 AND name = $2 AND gate_since IS NOT NULL`,
			g.run, spec.Name) == 1
		state, _ := g.State(g.run)
		c := control.Control{Run: g.run, Actor: "ann", Step: spec.Name}
		_, err := control.New(g.Store).Approve(g.Context(), c)
		if (err == nil) != (waits && state == "running") {
			t.Fatalf("approve %+v: %v; it waits: %v", spec, err, waits)
		}
	}
}

// Check asks the doctor now and then.
func (g *composing) Check(t *rapid.T) {
	if g.moves++; g.moves%5 == 0 {
		g.examine(t)
	}
}

func (g *composing) examine(t *rapid.T) {
	report, err := doctor.New(g.Store).Doctor(g.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Fatalf("invariant: %v; steps %+v", v, g.steps)
	}
}

// end lets everything come to its end, and holds all parts against what they have to be.
func (g *composing) end(t *rapid.T) {
	g.Die(t)
	g.flying = nil
	random := rand.New(rand.NewPCG(1, 1))
	for taken := 1; taken > 0; {
		taken = 0
		for step := range g.steps {
			taken += g.take(t, workqueue.Step(step), storetest.Plenty)
			for _, f := range g.flying {
				g.send(t, []settle.Answer{g.answer(f, random, 0)})
			}
			g.flying = nil
		}
		taken += g.Number(`SELECT count(*) FROM run_step WHERE run_id = $1 AND gate_since IS NOT NULL
			AND EXISTS (SELECT FROM batchrun WHERE id = $1 AND state = 'running')`, g.run)
		g.Approve(t)
	}
	g.examine(t)
	if state, _ := g.State(g.run); state != "completed" {
		t.Fatalf("the run is %s when there is nothing left to do: %s; steps %+v", state, g.Dump(g.run), g.steps)
	}
	for step := range g.steps {
		g.compare(t, workqueue.Step(step))
	}
}

// expect says what has to come of an item at a step: a part, or why there is none.
func (g *composing) expect(step workqueue.Step, o workqueue.Ordinal) (result string, done bool) {
	var parts []string
	for _, n := range g.steps[step].Needs {
		data, ok := g.expect(workqueue.Step(n), o)
		if !ok && !g.steps[n].Optional {
			return "left out", false
		}
		parts = append(parts, part(data, ok))
	}
	if g.fails(step, o) {
		return "failed", false
	}
	return g.result(step, o, parts), true
}

func (g *composing) compare(t *rapid.T, step workqueue.Step) {
	var done, failed, skipped bitfield.Set
	err := g.Pool.QueryRow(g.Context(), `SELECT done, failed, coalesce(skipped, B'0'::bit(8192)) FROM work_block
		WHERE run_id = $1 AND step = $2`, g.run, step).Scan(pgbits.Into(&done), pgbits.Into(&failed), pgbits.Into(&skipped))
	if err != nil {
		t.Fatal(err)
	}
	for o := range workqueue.Ordinal(g.items) {
		want, ok := g.expect(step, o)
		got := "nothing"
		switch {
		case failed.Has(int(o)):
			got = "failed"
		case skipped.Has(int(o)):
			got = "left out"
		case done.Has(int(o)):
			err := g.Pool.QueryRow(g.Context(), `SELECT convert_from(result, 'UTF8') FROM work_part
				WHERE run_id = $1 AND step = $2 AND ordinal = $3 ORDER BY generation DESC LIMIT 1`, g.run, step, o).Scan(&got)
			if err != nil {
				t.Fatal(err)
			}
		}
		if got != want || ok != done.Has(int(o)) {
			t.Fatalf("item %d has %s at step %d; want %s: steps %+v", o, got, step, want, g.steps)
		}
	}
}

func TestComposingAgainstAnOracle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	passed, broken, enough := 0, false, 8
	if os.Getenv("TRANCHE_SOAK") != "" {
		enough = math.MaxInt
	}
	rapid.Check(t, func(t *rapid.T) {
		if passed >= enough && !broken {
			return
		}
		defer func() { broken = broken || t.Failed() }()
		g := newComposing(t, b)
		t.Repeat(rapid.StateMachineActions(g))
		g.end(t)
		passed++
	})
}
