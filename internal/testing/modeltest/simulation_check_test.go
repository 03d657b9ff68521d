package modeltest_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/session"
)

// snapshot is what the database has of the run.
type snapshot struct {
	state      string
	generation int
	hold       string
	steps      []planes
}

// planes are where the items of a step are.
type planes struct{ ready, done, failed, skipped, held, accepted, live bitfield.Set }

func (p *planes) settled() bitfield.Set { return p.done.Or(p.failed).Or(p.skipped) }

// ended reports whether an item has an outcome at every step.
func (n *snapshot) ended(item int) bool {
	return !slices.ContainsFunc(n.steps, func(p planes) bool {
		settled := p.settled()
		return !settled.Has(item)
	})
}

const readSimulated = `
SELECT r.state, r.generation, coalesce(r.hold, ''), b.ready, b.done, b.failed, coalesce(b.skipped, B'0'::bit(8192)),
    coalesce(b.held, B'0'::bit(8192)), coalesce(b.accepted, B'0'::bit(8192)),
    coalesce((SELECT bit_or(s.remaining) FROM work_slice s WHERE s.run_id = r.id
        AND s.step = b.step AND s.state IN ('scheduled', 'claimed', 'sent')), B'0'::bit(8192))
FROM batchrun r JOIN work_block b ON b.run_id = r.id WHERE r.id = $1 ORDER BY b.step`

func (s *simulation) read() (now snapshot) {
	rows, err := s.Pool.Query(s.Context(), readSimulated, s.run)
	s.must(err)
	var p planes
	columns := []any{&now.state, &now.generation, &now.hold, pgbits.Into(&p.ready), pgbits.Into(&p.done),
		pgbits.Into(&p.failed), pgbits.Into(&p.skipped), pgbits.Into(&p.held), pgbits.Into(&p.accepted),
		pgbits.Into(&p.live)}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		now.steps = append(now.steps, p)
		return nil
	})
	s.must(err)
	return now
}

// disjoint checks that each item is in one place, and in none that does not exist.
func (s *simulation) disjoint(step int, p *planes) {
	var seen bitfield.Set
	for _, in := range []bitfield.Set{p.ready, p.done, p.failed, p.skipped, p.held, p.live} {
		if twice := seen.And(in); !twice.Empty() {
			s.failf("%d items of step %d are in two places: %s", twice.Count(), step, s.tally())
		}
		seen = seen.Or(in)
	}
	if beyond := seen.AndNot(bitfield.Full(s.items)); !beyond.Empty() {
		s.failf("step %d has %d items too many: %s", step, beyond.Count(), s.tally())
	}
}

// check holds what the database has against what it had before the move, and against what was acknowledged.
func (s *simulation) check() {
	before := s.known
	s.known = s.read()
	s.checkOps()
	now := &s.known
	settled := true
	for step := range now.steps {
		p := &now.steps[step]
		s.disjoint(step, p)
		outcomes := p.settled()
		settled = settled && outcomes.Count() == s.items
		if step < len(before.steps) {
			s.checkStep(workqueue.Step(step), &before.steps[step], p)
		}
	}
	want := "running"
	switch {
	case s.cancelled:
		want = "cancelled"
	case settled:
		want = "completed"
	}
	if now.state != want || now.generation != s.generation || s.paused && now.hold == "" {
		s.failf("the run is %s in generation %d, held: %q; want %s in %d, held: %v", now.state, now.generation, now.hold,
			want, s.generation, s.paused)
	}
}

func (s *simulation) checkStep(step workqueue.Step, was, is *planes) {
	lost := was.settled()
	lost = lost.AndNot(is.settled())
	if !lost.Empty() && (!s.redone || len(s.steps[step].Needs) == 0 && !s.opened) {
		s.failf("outcomes of %d items at step %d are gone, and no one took them back", lost.Count(), step)
	}
	for o := range lost.All() {
		clear(s.at(step, workqueue.Ordinal(o)).faults)
	}
	if fresh := is.failed.AndNot(was.failed); !fresh.Empty() {
		if already := fresh.And(is.accepted); !already.Empty() {
			s.failf("%d items at step %d have failed just now, and are accepted", already.Count(), step)
		}
		s.checkFailed(step, fresh)
	}
}

const readCode = `
SELECT coalesce(error_code, '') FROM work_result WHERE run_id = $1 AND step = $2 AND ordinal = $3
ORDER BY generation DESC LIMIT 1`

// checkFailed wants a reason for every failure: a service said so, or the item had all its attempts.
func (s *simulation) checkFailed(step workqueue.Step, fresh bitfield.Set) {
	for bit := range fresh.All() {
		o := workqueue.Ordinal(bit)
		var code string
		s.must(s.Pool.QueryRow(s.Context(), readCode, s.run, step, o).Scan(&code))
		if s.stops && code == workqueue.CodeStopped {
			continue
		}
		if t := s.at(step, o); !t.fatal[code] && len(t.faults) < s.attempts {
			s.failf("item %d failed at step %d (%s) after %d faults; it has %d attempts", o, step, code, len(t.faults),
				s.attempts)
		}
	}
}

func (s *simulation) examine() {
	report, err := doctor.New(s.Store).Recount(s.Context())
	s.must(err)
	for _, v := range report.Violations {
		s.failf("invariant: %v", v)
	}
	s.views()
}

// views checks that what people are told of a run adds up.
func (s *simulation) views() {
	view, err := inspect.New(s.Store).Run(s.Context(), s.run)
	s.must(err)
	for i := range view.Steps {
		st, p := &view.Steps[i], &s.known.steps[i]
		if st.Ready != int64(p.ready.Count()) || st.Done != int64(p.done.Count()) || st.Failed != int64(p.failed.Count()) ||
			st.Skipped != int64(p.skipped.Count()) || st.InFlight+st.Scheduled != int64(p.live.Count()) ||
			st.Held != int64(p.held.Count()) || st.Waiting < st.Held {
			s.failf("step %s is reported as %+v: %s", st.Name, *st, s.tally())
		}
	}
	e, err := health.New(s.Store).Explain(s.Context(), s.run)
	s.must(err)
	var counted, common int64
	byStep := map[string]int64{}
	for i := range e.Groups {
		g := &e.Groups[i]
		counted += g.Counted
		if byStep[g.Step] += g.Items; g.Step == "" {
			common += g.Items
		}
		if g.Reason == health.ReasonStray || g.Who == "" || g.Why == "" || g.Next == "" || g.Owner == "" || g.Since == nil {
			s.failf("the explanation leaves a question open: %+v", *g)
		}
	}
	for i, st := range e.Steps {
		v, left := &view.Steps[i], int64(0)
		for _, l := range st.LeftOut {
			left += l.Items
		}
		if byStep[st.Name]+common != st.Missing || st.Missing != v.Items-v.Settled() || left != v.Skipped ||
			st.Done != v.Done || st.Failed != v.Failed || st.Skipped != v.Skipped {
			s.failf("step %s is explained as %+v, with %d items in groups and %d left out, and seen as %+v", st.Name, st,
				byStep[st.Name]+common, left, *v)
		}
	}
	if counted != e.Unsettled || e.Missing+view.Settling != e.Unsettled || e.Missing != view.Missing() {
		s.failf("%d items are explained, %d not settled, %d missing; the view has %d missing and %d settling", counted,
			e.Unsettled, e.Missing, view.Missing(), view.Settling)
	}
}

// end heals everything, waits for the run's end, compares all parts, and deletes the run.
func (s *simulation) end() {
	s.healing = true
	for _, endpoint := range []string{storetest.Endpoint, elsewhere} {
		s.setBudget(endpoint, 0)
	}
	s.story = append(s.story, "heal")
	if s.cancelled && s.r.IntN(2) == 0 {
		s.resume()
		s.check()
	}
	for round := 0; s.known.state == "running" || s.ops != nil && len(s.ops.are(opWaits)) > 0; round++ {
		if round == healRounds {
			s.failf("the run is %s, held: %q, and %v wait, long after all faults are over: %s; steps %+v", s.known.state,
				s.known.hold, s.ops, s.Dump(s.run), s.tally())
		}
		s.heal(1 + round/4)
	}
	s.examine()
	if s.known.state == "completed" {
		s.compare()
	}
	if s.ops != nil {
		s.endOps()
	}
	s.delete()
}

// heal is a round in which everybody does what they have to, after some beats.
func (s *simulation) heal(beats int) {
	s.story = append(s.story, fmt.Sprintf("heal, held %q:", s.known.hold))
	s.redone, s.opened = false, false
	for range beats {
		s.pass(4*time.Second, 1)
	}
	s.round()
	for i := range s.nodes {
		if s.ops != nil {
			s.flushFor(&s.nodes[i])
		}
		s.sweepBy(&s.nodes[i])
	}
	for len(s.flushes) > 0 {
		s.settle()
		s.checkOps()
	}
	if !s.cancelled {
		s.resume()
		s.approve()
	}
	s.check()
}

func (s *simulation) tally() (text string) {
	for i := range s.known.steps {
		p := &s.known.steps[i]
		text += fmt.Sprintf("%d: ready %d done %d failed %d skipped %d held %d live %d; ", i, p.ready.Count(), p.done.Count(),
			p.failed.Count(), p.skipped.Count(), p.held.Count(), p.live.Count())
	}
	return text
}

const readParts = `
SELECT DISTINCT ON (step, ordinal) step, ordinal, coalesce(convert_from(result, 'UTF8'), ''), coalesce(error_code, '')
FROM work_result WHERE run_id = $1 ORDER BY step, ordinal, generation DESC`

// compare holds every outcome against what it must be, given those before it.
func (s *simulation) compare() {
	parts, codes := map[at]string{}, map[at]string{}
	rows, err := s.Pool.Query(s.Context(), readParts, s.run)
	s.must(err)
	var a at
	var result, code string
	_, err = pgx.ForEachRow(rows, []any{&a.step, &a.item, &result, &code}, func() error {
		parts[a], codes[a] = result, code
		return nil
	})
	s.must(err)
	var failed bitfield.Set
	for step := range s.steps {
		if !s.steps[step].Optional {
			failed = failed.Or(s.known.steps[step].failed)
		}
		for o := range workqueue.Ordinal(s.items) {
			if !s.erased[o] {
				s.compareOne(workqueue.Step(step), o, parts, codes)
			}
		}
	}
	if n := s.Number(`SELECT failed FROM batchrun WHERE id = $1 AND done = items - failed`, s.run); n != failed.Count() {
		s.failf("%d items have failed by the run's row; want %d", n, failed.Count())
	}
}

func (s *simulation) compareOne(step workqueue.Step, o workqueue.Ordinal, parts, codes map[at]string) {
	spec, is := &s.steps[step], &s.known.steps[step]
	sees, leftOut := seen{}, false
	for _, n := range spec.Needs {
		done := s.known.steps[n].done.Has(int(o))
		sees.parts = append(sees.parts, part(parts[at{workqueue.Step(n), o}], done))
		leftOut = leftOut || !done && !s.steps[n].Optional
	}
	if !spec.NoItem {
		sees.payload = s.payload(int(o))
	}
	result, fails := s.makes(step, o, sees)
	a := at{step, o}
	switch {
	case leftOut != is.skipped.Has(int(o)):
	case leftOut, s.doubted[o]:
		return
	case is.failed.Has(int(o)):
		if fails || codes[a] != "bad" { // checkFailed has seen that there is a reason
			return
		}
	case !fails && parts[a] == result:
		if n := s.at(step, o).executions; s.calm && n != 1 {
			s.failf("item %d was executed %d times at step %d, without any fault", o, n, step)
		}
		return
	}
	s.failf("item %d at step %d: done %v %q, failed %v %s, left out %v; want %q, fails %v, left out %v, of %+v", o, step,
		is.done.Has(int(o)), parts[a], is.failed.Has(int(o)), codes[a], is.skipped.Has(int(o)), result, fails, leftOut, sees)
}

// countLeft makes a statement of the tables with rows of runs.
const countLeft = `
SELECT string_agg(format('SELECT %L AS name, count(*) AS n FROM %I WHERE run_id = $1', c.table_name, c.table_name),
    ' UNION ALL ' ORDER BY c.table_name)
FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.column_name = 'run_id' AND table_schema = 'public' AND t.table_type = 'BASE TABLE'
    AND table_name NOT IN ('audit_log', 'deleted_run')`

// delete deletes the run, and wants nothing of it to be left.
func (s *simulation) delete() {
	s.story = append(s.story, "delete")
	s.pass(2*time.Hour, 1)
	events, err := inspect.New(s.Store).UnpublishedEvents(s.Context(), inspect.EventPlace{}, nil, 1000)
	s.must(err)
	var ids []uuid.UUID
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	s.must(inspect.New(s.Store).EventsPublished(s.Context(), ids))
	_, err = retention.New(s.Store).DeleteByHand(s.Context(), retention.DeleteRequest{Run: s.run, Actor: "ann"})
	s.must(err)
	s.restart(&s.nodes[0])
	lease, err := session.New(s.Store).Lead(s.Context(), s.nodes[0].session, time.Hour)
	s.must(err)
	for gone := false; !gone; {
		_, gone, err = retention.New(s.Store).DeletePiece(s.Context(), lease, s.run, 10_000)
		s.must(err)
	}
	if s.countLeft == "" {
		s.must(s.Pool.QueryRow(s.Context(), countLeft).Scan(&s.countLeft))
	}
	rows, err := s.Pool.Query(s.Context(), s.countLeft, s.run)
	s.must(err)
	var name string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		if n > 0 {
			s.failf("%d rows of a deleted run are in %s", n, name)
		}
		return nil
	})
	s.must(err)
}
