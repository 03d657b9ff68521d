package modeltest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// seenBy is what a step sees of its items: the newest parts of the steps that it needs, as text. A failed part, and one
// that is left out, are nothing.
const seenBy = `
SELECT o.ordinal, string_agg(coalesce(convert_from(p.result, 'UTF8'), '-'), '+' ORDER BY i.step)
FROM unnest($3::int[]) AS o (ordinal)
CROSS JOIN (SELECT unnest(inputs) AS step FROM run_step WHERE run_id = $1 AND step = $2) i
LEFT JOIN LATERAL (SELECT CASE WHEN get_bit(b.done, o.ordinal % 8192) = 1 THEN n.result END AS result
                   FROM work_result n JOIN work_block b
                     ON b.run_id = $1 AND b.step = i.step AND b.block = o.ordinal / 8192
                   WHERE n.run_id = $1 AND n.step = i.step AND n.ordinal = o.ordinal
                   ORDER BY n.generation DESC LIMIT 1) p ON true
GROUP BY o.ordinal`

func (s *storm) seen(ctx context.Context, run workqueue.RunID, step workqueue.Step, items []workqueue.Ordinal,
) (map[workqueue.Ordinal]string, error) {
	rows, err := s.Pool.Query(ctx, seenBy, run, step, items)
	if err != nil {
		return nil, err
	}
	all := map[workqueue.Ordinal]string{}
	var o workqueue.Ordinal
	var text string
	_, err = pgx.ForEachRow(rows, []any{&o, &text}, func() error { all[o] = text; return nil })
	return all, err
}

// reply is what a service answers: a step that fetches says one of two things, and one that composes says what it saw.
// faults is one in how many items fails; 0: none.
func (s *storm) reply(ctx context.Context, r *rand.Rand, slice workqueue.Slice, faults int) (settle.Answer, error) {
	a := storetest.Whole(slice)
	saw, err := s.seen(ctx, slice.Run, slice.Step, storetest.Ordinals(slice))
	if err != nil {
		return a, err
	}
	for i := range a.Slots {
		slot := &a.Slots[i]
		slot.Result = fmt.Appendf(nil, "%d", r.IntN(2))
		if slice.Step >= storetest.Statement {
			slot.Result = []byte("(" + saw[slot.Ordinal] + ")")
		}
		if faults > 0 && r.IntN(faults) == 0 {
			slot.Result, slot.Err = nil, &workqueue.SlotError{Code: "bad", Message: "m", Retry: r.IntN(2) == 0}
		}
	}
	return a, nil
}

// gathers is a node that does some work of any step and answers late, or never.
func (s *storm) gathers(ctx context.Context, r *rand.Rand, out *[]workqueue.Slice) error {
	claimed, err := dispatch.New(s.Store).Claim(ctx, dispatch.ClaimRequest{Session: s.Session, Run: s.one(r),
		Step: workqueue.Step(r.IntN(len(storetest.StepNames()))), MaxSlices: 1 + r.IntN(4), MaxBytes: 1 << 20,
		TTL: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	for _, slice := range claimed.Slices {
		if r.IntN(3) == 0 {
			s.markSent(ctx, slice)
		}
	}
	*out = append(*out, claimed.Slices...)
	r.Shuffle(len(*out), func(i, j int) { (*out)[i], (*out)[j] = (*out)[j], (*out)[i] })
	some := (*out)[:min(len(*out), 2)]
	*out = (*out)[len(some):]
	var answers []settle.Answer
	for _, slice := range some {
		a, err := s.reply(ctx, r, slice, 12)
		if err != nil {
			return err
		}
		if r.IntN(20) > 0 {
			answers = append(answers, a)
		}
	}
	_, err = settle.New(s.Store).Record(ctx, answers)
	return err
}

func (s *storm) markSent(ctx context.Context, slice workqueue.Slice) {
	// else it is claimed still
	_, _ = settle.New(s.Store).MarkSent(ctx, []workqueue.Sent{{ID: slice.ID, StreamSeq: 1, StreamsEpoch: 1}})
}

// resets takes back parts of any step, and runs again what failed.
func (s *storm) resets(withdrawn *atomic.Int64) {
	s.keep("reset", 41, func(ctx context.Context, r *rand.Rand) error {
		req := redo.ResetRequest{Run: s.one(r), Actor: "ann", Cascade: r.IntN(4) == 0, DryRun: r.IntN(6) == 0,
			Select: redo.Selection{Step: storetest.StepNames()[r.IntN(len(storetest.StepNames()))]}}
		switch r.IntN(8) {
		case 0:
			req.Select.All = true
		case 1:
			req.Select.Codes = []string{"bad"}
		default:
			req.Select.Keys = storetest.Names(40)[r.IntN(35):][:5]
		}
		out, err := redo.New(s.Store).Reset(ctx, req)
		for _, st := range out.Steps {
			withdrawn.Add(st.Withdrawn)
		}
		return err
	})
	s.keep("rerun", 42, func(ctx context.Context, r *rand.Rand) error {
		req := redo.RerunRequest{Run: s.one(r), Select: redo.Selection{Failed: true}, Actor: "ann"}
		if r.IntN(2) == 0 {
			req.Select.Step = storetest.StepNames()[r.IntN(len(storetest.StepNames()))]
		}
		_, err := redo.New(s.Store).Rerun(ctx, req)
		return errors.Join(err, pauseFor(ctx, 10*time.Millisecond))
	})
}

// settleAll lets the nodes go and finishes all runs without another fault.
func (s *storm) settleAll() {
	s.Exec(`UPDATE work_slice SET deadline = tranche_now() WHERE state IN ('claimed', 'sent')`)
	late, err := settle.New(s.Store).OverdueSlices(s.Context(), storetest.Plenty)
	if err != nil {
		s.Fatal(err)
	}
	var ids []workqueue.SliceID
	for _, o := range late {
		ids = append(ids, o.ID)
	}
	if _, err := settle.New(s.Store).Expire(s.Context(), s.lease, ids); err != nil {
		s.Fatal(err)
	}
	s.Check()
	s.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE state = 'scheduled'`)
	s.Exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL, probe_slice = NULL`)
	r := rand.New(rand.NewPCG(7, 7))
	for _, run := range s.runs {
		for did := true; did; {
			did = false
			for step := range storetest.StepNames() {
				req := s.ClaimRequest(run, storetest.Plenty)
				req.Step = workqueue.Step(step)
				claimed, err := dispatch.New(s.Store).Claim(s.Context(), req)
				if err != nil {
					s.Fatal(err)
				}
				for _, slice := range claimed.Slices {
					a, err := s.reply(s.Context(), r, slice, 0)
					if err != nil {
						s.Fatal(err)
					}
					s.Record(a)
					did = true
				}
			}
		}
	}
}

// wantFresh checks that nothing that is done was made of parts that have changed since.
func (s *storm) wantFresh(run workqueue.RunID) {
	s.Helper()
	composed := 0
	for step := storetest.Statement; step <= storetest.Posting; step++ {
		rows, err := s.Pool.Query(s.Context(), `SELECT DISTINCT ON (p.ordinal) p.ordinal,
			coalesce(convert_from(p.result, 'UTF8'), 'failed')
			FROM work_result p JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = p.ordinal / 8192
			WHERE p.run_id = $1 AND p.step = $2 AND get_bit(b.done, p.ordinal % 8192) = 1
			ORDER BY p.ordinal, p.generation DESC`, run, step)
		if err != nil {
			s.Fatal(err)
		}
		made := map[workqueue.Ordinal]string{}
		var items []workqueue.Ordinal
		var o workqueue.Ordinal
		var text string
		if _, err := pgx.ForEachRow(rows, []any{&o, &text}, func() error {
			made[o], items = text, append(items, o)
			return nil
		}); err != nil {
			s.Fatal(err)
		}
		saw, err := s.seen(s.Context(), run, step, items)
		if err != nil {
			s.Fatal(err)
		}
		for _, o := range items {
			if made[o] != "("+saw[o]+")" {
				s.Errorf("run %s: step %s made %s of item %d, whose parts are %s", run, storetest.StepNames()[step], made[o], o,
					saw[o])
			}
		}
		composed += len(items)
	}
	if composed == 0 {
		s.Errorf("run %s composed nothing", run)
	}
}

// Two nodes and operators at once, and connections that break: whatever is reset whenever, in the end everything that
// was composed was composed of the parts that count, and nothing is lost, doubled or stuck.
func TestResetsInAStorm(t *testing.T) {
	t.Parallel()
	s := newStorm(t)
	req := storetest.Collecting()
	for i := range req.Steps {
		req.Steps[i].MaxAttempts, req.Steps[i].Timeout = 3, 300*time.Millisecond
	}
	for range 2 {
		s.runs = append(s.runs, s.Load(req, 40))
	}
	var withdrawn atomic.Int64 // out of slices
	s.did.Store("withdrawal", &withdrawn)
	for i := range 4 {
		var out []workqueue.Slice
		s.keep(fmt.Sprintf("node %d", i), uint64(i), func(ctx context.Context, r *rand.Rand) error {
			return s.gathers(ctx, r, &out)
		})
	}
	s.resets(&withdrawn)
	s.keep("overdue", 22, s.expireOverdue)
	s.keep("kill", 32, s.breakOff)
	did := s.rage(2 * time.Second)
	t.Logf("%v, %d refused or interrupted", did, s.broken.Load())
	for name, n := range did {
		if n == 0 && !strings.HasPrefix(name, "kill") {
			t.Errorf("%s never worked", name)
		}
	}
	s.settleAll()
	for _, run := range s.runs {
		if state, _ := s.State(run); state != "completed" {
			t.Errorf("run %s is %s: %s", run, state, s.Dump(run))
		}
		s.wantFresh(run)
	}
	s.Check()
}
