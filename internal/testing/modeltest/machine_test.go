package modeltest_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const maxAttempts = 3 // of the machine's runs

// machine drives a run on the real store and an oracle of it through the same operations: claims, sends, replies of all
// sorts, lost nodes and streams, deadlines, holds, thresholds, canaries, breakers, new settings, re-runs, elsewhere and
// here, corrections, a cancel, and what goes on after it. Whatever was claimed once may be answered at any time later.
type machine struct {
	*bench
	oracle
	run     workqueue.RunID
	small   bool
	chunk   int
	limit   int
	budgets map[string]int // of endpoints; 0: none
	lease   workqueue.Lease
	epoch   int64
	steps   int
}

func newMachine(t *rapid.T, b *bench) *machine {
	small := rapid.Bool().Draw(t, "small")
	size, chunk := rapid.IntRange(1, 40).Draw(t, "items"), rapid.IntRange(1, 9).Draw(t, "chunk")
	if !small {
		size, chunk = bitfield.Size-8+size, 500*chunk
	}
	m := &machine{bench: b, small: small, chunk: chunk, limit: rapid.IntRange(2, 12).Draw(t, "in flight"),
		budgets: map[string]int{}}
	req := storetest.Chunked(chunk)
	req.Steps[0].InFlight, req.Steps[0].MaxAttempts = m.limit, maxAttempts
	req.Canary, req.CanaryAuto = rapid.SampledFrom([]int{0, 0, 1, size/3 + 1, size}).Draw(t, "canary"), true
	req.CanaryAuto = req.Canary > 0 && rapid.Bool().Draw(t, "goes on by itself")
	req.MaxFailed = rapid.SampledFrom([]string{"", "0", "2", "20%"}).Draw(t, "max failed")
	req.Guard = rapid.SampledFrom([]workqueue.GuardRule{{}, {Failures: 1, Within: 3}, {Failures: 5, Within: 10},
		{Failures: 500, Within: 2000}}).Draw(t, "guard")
	m.calm(t)
	b.Session = b.Open()
	m.run = b.Load(req, size)
	m.lease = m.leadAnew(t)
	m.epoch = m.nextEpoch(t)
	m.oracle = newOracle(size)
	m.setLimit(req.MaxFailed)
	if size >= req.Guard.Failures {
		m.guard = req.Guard
	}
	if req.Canary > 0 && req.Canary < size {
		m.sample(req.Canary, req.CanaryAuto)
	}
	return m
}

// leadAnew takes the lease from whoever has it.
func (m *machine) leadAnew(t *rapid.T) workqueue.Lease {
	m.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	lease, err := session.New(m.Store).Lead(m.Context(), m.Session, storetest.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func (m *machine) nextEpoch(t *rapid.T) int64 {
	now := time.Now()
	current, _, err := session.New(m.Store).ObserveStreams(m.Context(), session.Created{Work: now, Reply: now, Stage: now,
		Flow: now})
	if err != nil {
		t.Fatal(err)
	}
	return current.Epoch
}

func (m *machine) Claim(t *rapid.T) {
	most := rapid.IntRange(1, 8).Draw(t, "most")
	pace := m.pace()
	free := m.free(most, pace)
	out, err := dispatch.New(m.Store).Claim(m.Context(), m.ClaimRequest(m.run, most))
	if err != nil {
		t.Fatal(err)
	}
	claimed := out.Slices
	if len(claimed) > free {
		t.Fatalf("%d slices were claimed; %d were free", len(claimed), free)
	}
	if len(claimed) == 0 && free > 0 && m.claimable() {
		t.Fatal("the claim is empty although work is ready")
	}
	for _, s := range claimed {
		if err := m.claimed(s); err != "" {
			t.Fatal(err)
		}
		n := s.Mask.Count()
		if pace.down && (n > 1 || s.Cause != workqueue.CauseProbe) || n > m.chunk || pace.limit > 0 && n > pace.limit {
			t.Fatalf("claimed %d items (%s) with a chunk of %d and %+v", n, s.Cause, m.chunk, pace)
		}
		if s.Endpoint != m.at {
			t.Fatalf("claimed for %s; the step's is %s", s.Endpoint, m.at)
		}
	}
}

// pick draws some of the slices that were ever claimed, the newest the likeliest. Each comes once: which of two answers
// to a slice counts when they come in one commit is not defined.
func (m *machine) pick(t *rapid.T, most int) []*held {
	var some []*held
	if len(m.all) == 0 {
		return nil
	}
	for range rapid.IntRange(1, most).Draw(t, "how many") {
		back := rapid.OneOf(rapid.IntRange(0, min(len(m.all), 6)-1), rapid.IntRange(0, len(m.all)-1)).Draw(t, "back")
		if h := m.all[len(m.all)-1-back]; !slices.Contains(some, h) {
			some = append(some, h)
		}
	}
	return some
}

func (m *machine) Send(t *rapid.T) {
	var sent []workqueue.Sent
	for _, h := range m.pick(t, 6) {
		sent = append(sent, workqueue.Sent{ID: h.ID, StreamSeq: 1, StreamsEpoch: m.epoch})
		if h.state == "claimed" {
			h.state = "sent"
		}
	}
	m.sync()
	if _, err := settle.New(m.Store).MarkSent(m.Context(), sent); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) Record(t *rapid.T) {
	var answers []settle.Answer
	for _, h := range m.pick(t, 5) {
		a := drawAnswer(t, h)
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 10}).Draw(t, "times") {
			answers = append(answers, a)
		}
	}
	if len(answers) == 0 {
		return
	}
	order := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)) // a drawn permutation would print every slot
	order.Shuffle(len(answers), func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
	recorded, err := settle.New(m.Store).Record(m.Context(), answers)
	if err != nil {
		t.Fatal(err)
	}
	wanted := m.take(answers, m.spared())
	for i, v := range recorded.Verdicts {
		w := wanted[i]
		if v.Taken != w.Taken || v.Duplicates != w.Duplicates || v.Stale != w.Stale || v.Endpoint != w.Endpoint ||
			!slices.Equal(v.Foreign, w.Foreign) {
			t.Fatalf("answer %d: %+v; want %+v", i, v, w)
		}
	}
	if completed := m.complete(); completed != (len(recorded.Completed) == 1) {
		t.Fatalf("completed %v; want %v", recorded.Completed, completed)
	}
}

// spared returns the slices that failed in what looked like an outage, which depends on what the other runs of the test
// went through, and has what follows them wait for nothing.
func (m *machine) spared() []workqueue.SliceID {
	m.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE run_id = $1 AND state = 'scheduled'`, m.run)
	var all []workqueue.SliceID
	err := m.Pool.QueryRow(m.Context(), `SELECT coalesce(array_agg(parent), '{}') FROM work_slice
		WHERE run_id = $1 AND cause = 'breaker'`, m.run).Scan(&all)
	if err != nil {
		m.Fatal(err)
	}
	return all
}

// drawAnswer makes a reply with some of the slots, of all kinds, and now and then one that does not belong.
func drawAnswer(t *rapid.T, h *held) settle.Answer {
	items := storetest.Ordinals(h.Slice)
	from := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, len(items))).Draw(t, "from")
	to := rapid.OneOf(rapid.Just(len(items)), rapid.IntRange(from, len(items))).Draw(t, "to")
	a := storetest.Answer(h.Slice, items[from:max(from, to)]...)
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "kinds"), 0))
	faults := rapid.SampledFrom([]int{0, 0, 0, 10, 100}).Draw(t, "percent of errors")
	for i := range a.Slots {
		if random.IntN(100) < faults {
			a.Slots[i].Result = nil
			a.Slots[i].Err = &workqueue.SlotError{Code: "bad", Message: "m", Retry: random.IntN(2) == 0}
		}
	}
	random.Shuffle(len(a.Slots), func(i, j int) { a.Slots[i], a.Slots[j] = a.Slots[j], a.Slots[i] })
	switch rapid.IntRange(0, 11).Draw(t, "sort") {
	case 0:
		a.Slots = append(a.Slots, settle.Slot{Ordinal: workqueue.Ordinal(random.Int32N(20_000) - 10), Result: []byte("1")})
	case 1:
		a.Slots = append(a.Slots, a.Slots...)
	case 2:
		a.Endpoint = "nowhere"
	case 3:
		code := rapid.SampledFrom([]string{"crash", workqueue.CodeDeliveries}).Draw(t, "code")
		a.Failure = &workqueue.SlotError{Code: code, Message: "m", Retry: rapid.Bool().Draw(t, "retry")}
	case 4, 5:
		a.Answered = -1
	}
	return a
}

func (m *machine) Expire(t *rapid.T) {
	overdue := m.pick(t, 4)
	if len(overdue) == 0 {
		return
	}
	var all []workqueue.SliceID
	for _, h := range overdue {
		all = append(all, h.ID)
	}
	m.Exec(`UPDATE work_slice SET deadline = tranche_now() WHERE id = ANY($1) AND state IN ('claimed', 'sent')`, all)
	n, err := settle.New(m.Store).Expire(m.Context(), m.lease, all)
	if err != nil {
		t.Fatal(err)
	}
	want, spared := 0, m.spared()
	for _, h := range overdue {
		if h.live() {
			want++
			if slices.Contains(spared, h.ID) {
				m.schedule(h, h.remaining, h.Failures)
			} else {
				m.fault(h, h.remaining, false, false, false)
			}
			h.state = "expired"
		}
	}
	m.judgeGuard()
	if n != want {
		t.Fatalf("%d slices expired; want %d", n, want)
	}
	m.complete()
}

// Die ends the session, well or badly; what it had claimed and not sent is scheduled again.
func (m *machine) Die(t *rapid.T) {
	dying := m.Session
	m.Session = m.Open()
	if rapid.Bool().Draw(t, "in good order") {
		if _, err := settle.New(m.Store).EndSession(m.Context(), dying); err != nil {
			t.Fatal(err)
		}
	} else {
		m.bench.Expire(dying)
	}
	m.lease = m.leadAnew(t)
	if _, err := settle.New(m.Store).ReleaseDeadSessions(m.Context(), m.lease); err != nil {
		t.Fatal(err)
	}
	for _, h := range m.all {
		if h.state == "claimed" {
			m.schedule(h, h.remaining, h.Failures)
			h.state = "expired"
		}
	}
}

func (m *machine) LoseStreams(t *rapid.T) {
	m.epoch = m.nextEpoch(t)
	if _, err := settle.New(m.Store).ReleaseLostStreams(m.Context(), m.lease); err != nil {
		t.Fatal(err)
	}
	for _, h := range m.all {
		if h.state == "sent" {
			m.schedule(h, h.remaining, h.Failures)
			h.state = "expired"
		}
	}
}

func (m *machine) Split(t *rapid.T) {
	for _, h := range m.pick(t, 1) {
		pieces := min(h.Mask.Count(), rapid.IntRange(1, 4).Draw(t, "pieces"))
		size := (h.Mask.Count() + pieces - 1) / pieces
		if h.remaining != h.Mask {
			continue // a node splits what it has not sent, and nobody has answered that
		}
		made, err := settle.New(m.Store).Split(m.Context(), m.Session, h.ID, h.Mask.Split(size), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if (h.state == "claimed") != (made != nil) {
			t.Fatalf("a split of a slice that is %s made %+v", h.state, made)
		}
		if made != nil {
			h.state = "split"
			m.schedule(h, h.Mask, h.Failures)
			m.hold(*made)
		}
	}
}

func (m *machine) Rerun(t *rapid.T) {
	sel := redo.Selection{Failed: true}
	if rapid.Bool().Draw(t, "by key") {
		sel = redo.Selection{Keys: storetest.Names(len(m.items))[:rapid.IntRange(1, len(m.items)).Draw(t, "keys")]}
	}
	req := redo.RerunRequest{Run: m.run, Select: sel, Actor: "test", DryRun: rapid.IntRange(0, 4).Draw(t, "dry") == 0}
	req.Canary = rapid.SampledFrom([]int{0, 0, 0, 1, 4}).Draw(t, "canary")
	req.CanaryAuto = req.Canary > 0 && rapid.Bool().Draw(t, "goes on by itself")
	req.Settings.Endpoint = rapid.SampledFrom([]string{"", "", "", storetest.Endpoint, elsewhere}).Draw(t, "where")
	out, err := redo.New(m.Store).Rerun(m.Context(), req)
	var nothing *redo.NothingToRerunError
	var state *workqueue.StateError
	again := m.final(sel)
	switch {
	case errors.As(err, &state) && m.cancelled, errors.As(err, &nothing) && len(again) == 0 && !m.cancelled:
		return
	case err != nil:
		t.Fatal(err)
	case req.DryRun && out.Items == int64(len(again)):
		return
	}
	heldBack := m.reset(again, &req)
	if out.Items != int64(len(again)) || int(out.Generation) != m.generation || out.Held != int64(heldBack) ||
		out.Hold != m.pausedBy {
		t.Fatalf("rerun %+v; want %d items, %d of them held back, in generation %d", out, len(again), heldBack, m.generation)
	}
}

// Correct gives items other payloads, wherever they are.
func (m *machine) Correct(t *rapid.T) {
	from := rapid.IntRange(0, len(m.items)-1).Draw(t, "from")
	to := rapid.IntRange(from, len(m.items)-1).Draw(t, "to")
	all := storetest.Names(len(m.items))[from : to+1]
	payload := fmt.Sprintf(`{"g":%d}`, m.generation+1)
	out, err := redo.New(m.Store).Correct(m.Context(), redo.CorrectRequest{Run: m.run, Actor: "test",
		DryRun: rapid.IntRange(0, 4).Draw(t, "dry") == 0, Items: storetest.Corrections(payload, all...)})
	if m.cancelled {
		if _, refused := errors.AsType[*workqueue.StateError](err); !refused {
			t.Fatalf("correct: %v", err)
		}
		return
	}
	if err != nil || int(out.Generation) != m.generation+1 || out.Items != int64(len(all)) {
		t.Fatalf("correct %d items: %+v, %v", len(all), out, err)
	}
	if _, generation := m.State(m.run); generation == m.generation {
		return // it was a dry run
	}
	items := make([]int, len(all))
	for i := range items {
		items[i] = from + i
	}
	if begun := m.amend(items); out.Begun != int64(begun) || out.Hold != m.pausedBy {
		t.Fatalf("correct: %+v; want %d items that somebody had begun with, and hold %q", out, begun, m.pausedBy)
	}
}

// wantData holds payloads against the oracle, and checks that every outcome that counts was made of the newest.
func (m *machine) wantData(t *rapid.T) {
	want := make([]string, len(m.items))
	for i, g := range m.data {
		want[i] = "{}"
		if g > 0 {
			want[i] = fmt.Sprintf(`{"g":%d}`, g)
		}
	}
	var got []string
	err := m.Pool.QueryRow(m.Context(), `SELECT array_agg(payload ORDER BY ordinal) FROM work_queue WHERE run_id = $1`,
		m.run).Scan(&got)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("the payloads are %v, %v; want %v", got, err, want)
	}
	stale := m.Number(`SELECT count(*) FROM work_block b
		JOIN work_correction c ON c.run_id = b.run_id AND c.ordinal >> 13 = b.block
		JOIN work_part p ON p.run_id = b.run_id AND p.step = b.step AND p.ordinal = c.ordinal
		JOIN work_slice s ON s.id = p.slice_id
		WHERE b.run_id = $1 AND get_bit(b.done | b.failed, c.ordinal & 8191) = 1 AND s.generation < c.generation
			AND p.generation = (SELECT max(n.generation) FROM work_part n
				WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)`, m.run)
	if stale != 0 {
		t.Fatalf("%d outcomes were made of data that was corrected since", stale)
	}
}

// Accept accepts failures, of this run in any state, or withdraws that.
func (m *machine) Accept(t *rapid.T) {
	sel := redo.Selection{Failed: true}
	if rapid.Bool().Draw(t, "by key") {
		sel = redo.Selection{Keys: storetest.Names(len(m.items))[:rapid.IntRange(1, len(m.items)).Draw(t, "keys")]}
	}
	req := redo.AcceptRequest{Run: m.run, Select: sel, Actor: "test", Reason: "r",
		Withdraw: rapid.IntRange(0, 3).Draw(t, "withdraw") == 0, DryRun: rapid.IntRange(0, 4).Draw(t, "dry") == 0}
	var changing []int
	for i := range m.items {
		chosen := sel.Failed || i < len(sel.Keys)
		if chosen && m.items[i].place == isFailed && m.items[i].accepted == req.Withdraw {
			changing = append(changing, i)
		}
	}
	out, err := redo.New(m.Store).Accept(m.Context(), req)
	if _, nothing := errors.AsType[*redo.NothingToAcceptError](err); nothing && len(changing) == 0 {
		return
	}
	if err != nil || out.Items != int64(len(changing)) || out.Failed != int64(m.count(isFailed)) {
		t.Fatalf("accept %+v: %+v, %v; want %d items of %d", req, out, err, len(changing), m.count(isFailed))
	}
	if req.DryRun {
		return
	}
	for _, i := range changing {
		m.items[i].accepted = !req.Withdraw
	}
}

func (m *machine) Cancel(t *rapid.T) {
	if rapid.IntRange(0, 15).Draw(t, "seldom") != 0 {
		return // hardly anything happens until it goes on
	}
	_, err := control.New(m.Store).Cancel(m.Context(), control.Control{Run: m.run, Actor: "test"})
	var state *workqueue.StateError
	if refused := m.over(); refused != errors.As(err, &state) || !refused && err != nil {
		t.Fatalf("cancel: %v", err)
	}
	if err == nil {
		m.cancel()
	}
}

// Check compares what the database holds with the oracle, and now and then asks the doctor.
func (m *machine) Check(t *rapid.T) {
	got := m.read(t)
	for i, want := range m.items {
		if got[i] != want {
			t.Fatalf("item %d is %+v; want %+v: %s", i, got[i], want, m.Dump(m.run))
		}
	}
	want := "running"
	if m.cancelled {
		want = "cancelled"
	} else if m.completed() {
		want = "completed"
	}
	if state, generation := m.State(m.run); state != want || generation != m.generation {
		t.Fatalf("the run is %s in generation %d; want %s in %d", state, generation, want, m.generation)
	}
	m.wantHolds(t)
	m.wantData(t)
	if events := m.Completions(m.run); !slices.Equal(events, m.finished) {
		t.Fatalf("completion events of generations %v; want %v", events, m.finished)
	}
	if m.steps++; m.steps%6 == 0 {
		m.examine(t)
	}
}

// examine asks the doctor about the machine's run.
func (m *machine) examine(t *rapid.T) {
	report, err := doctor.New(m.Store).Doctor(m.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Fatalf("invariant: %v", v)
	}
}

// read returns where the database says that every item is.
func (m *machine) read(t *rapid.T) []item {
	items := make([]item, len(m.items))
	put := func(block workqueue.Block, set bitfield.Set, to item) {
		for bit := range set.All() {
			items[block.Ordinal(bit)] = to
		}
	}
	rows, err := m.Pool.Query(m.Context(), `SELECT block, ready, done, failed,
		coalesce(held, B'0'::bit(8192)), coalesce(accepted, B'0'::bit(8192)) FROM work_block WHERE run_id = $1`, m.run)
	if err != nil {
		t.Fatal(err)
	}
	var block workqueue.Block
	var ready, done, failed, held, accepted bitfield.Set
	planes := []any{&block, pgbits.Into(&ready), pgbits.Into(&done), pgbits.Into(&failed), pgbits.Into(&held),
		pgbits.Into(&accepted)}
	_, err = pgx.ForEachRow(rows, planes, func() error {
		put(block, ready, item{place: isReady})
		put(block, done, item{place: isDone})
		put(block, failed, item{place: isFailed})
		put(block, accepted, item{place: isFailed, accepted: true})
		put(block, held, item{place: isHeldBack})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err = m.Pool.Query(m.Context(), `SELECT id, block, remaining, state, failures FROM work_slice
		WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent')`, m.run)
	if err != nil {
		t.Fatal(err)
	}
	var id workqueue.SliceID
	var state string
	var failures int
	columns := []any{&id, &block, pgbits.Into(&ready), &state, &failures}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if state == "scheduled" {
			put(block, ready, item{place: isScheduled, failures: failures})
		} else {
			put(block, ready, item{place: isHeld, failures: failures, slice: id, sent: state == "sent"})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// end brings the run to its end and looks at everything once more.
func (m *machine) end(t *rapid.T) {
	if !m.cancelled {
		m.letGo(t)
		m.Die(t)
		m.LoseStreams(t)
		for m.finishAll(); m.count(isHeldBack) > 0; m.finishAll() {
			m.letSampleGo(t)
		}
		m.complete()
	}
	m.Check(t)
	m.examine(t)
}

// TRANCHE_SOAK=1 goes through as many stories as -rapid.checks says; without it a few must do.
func TestStoreAgainstAnOracle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	passed, failing, enough := 0, false, 12
	if os.Getenv("TRANCHE_SOAK") != "" {
		enough = math.MaxInt
	}
	rapid.Check(t, func(t *rapid.T) {
		if passed >= enough && !failing {
			return
		}
		defer func() { failing = failing || t.Failed() }() // then the story is made shorter, however long that takes
		m := newMachine(t, b)
		t.Repeat(rapid.StateMachineActions(m))
		m.end(t)
		passed++
	})
}
