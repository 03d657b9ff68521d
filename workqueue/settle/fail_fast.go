package settle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// HoldGuard is the hold of a run whose first outcomes plainly failed.
const HoldGuard = "guard"

// guardedStep is a step whose first outcomes are looked at.
type guardedStep struct {
	run  workqueue.RunID
	step workqueue.Step
}

func (a guardedStep) compare(b guardedStep) int {
	return cmp.Or(slices.Compare(a.run[:], b.run[:]), cmp.Compare(a.step, b.step))
}

// outcomes are some outcomes of a step, and how many of them failed, by code, so that trying again would not help.
type outcomes struct {
	seen  int
	codes map[string]int
}

// watch counts an outcome for the guard of its step: the code of a failure that would not pass, or nothing. What the
// lock of the slice says of the guard may be old, and then it is over: that it never begins again makes it enough.
func (s *settlement) watch(h *plane.HeldSlice, code string) {
	if !h.Guarded {
		return
	}
	at := guardedStep{h.Run, h.Step}
	of := s.guarded[at]
	if of == nil {
		of = &outcomes{codes: map[string]int{}}
		s.guarded[at] = of
	}
	of.seen++
	if code != "" {
		of.codes[code]++
	}
}

const (
	// Recorders of a step take turns here for its first outcomes, so that these are counted exactly. Nothing is locked
	// after them but rows of batchrun.
	lockGuards = `
SELECT g.run_id, g.step, st.name, g.failures, g.within, g.seen, g.codes
FROM run_guard g JOIN run_step st USING (run_id, step)
JOIN unnest($1::uuid[], $2::smallint[]) AS u (run_id, step) USING (run_id, step)
WHERE g.tripped IS NULL ORDER BY g.run_id, g.step FOR NO KEY UPDATE OF g`

	keepGuard = `
UPDATE run_guard SET seen = $3, codes = $4, tripped = nullif($5, '') WHERE run_id = $1 AND step = $2`

	endGuard = `DELETE FROM run_guard WHERE run_id = $1 AND step = $2`

	endTripped = `DELETE FROM run_guard WHERE run_id = $1 AND tripped IS NOT NULL`

	// Whoever is faster holds a run: its row is locked, and a guard that comes too late waits in run_guard.
	holdForGuard = `
WITH due AS (SELECT run_id, string_agg(tripped, '; ' ORDER BY step) AS detail FROM run_guard
    WHERE run_id = $1 AND tripped IS NOT NULL GROUP BY run_id)
UPDATE batchrun r SET hold = 'guard', hold_detail = due.detail, held_by = $2, held_at = tranche_now()
FROM due WHERE r.id = $1 AND due.run_id = r.id AND r.state = 'running' AND r.hold IS NULL
RETURNING r.generation, r.hold_detail`
)

// guard is what is looked at of a step.
type guard struct {
	guardedStep

	outcomes

	name string
	rule workqueue.GuardRule
}

// take counts outcomes that are recorded together, and returns what is wrong with the step if they are enough to tell.
// Those with which the rule's number is passed count all of them, in proportion: which came first is not known.
func (g *guard) take(news *outcomes) (tripped string) {
	g.seen += news.seen
	for code, n := range news.codes {
		g.codes[code] += n
	}
	for _, code := range slices.Sorted(maps.Keys(g.codes)) {
		if n := g.codes[code]; g.rule.Trips(n, g.seen) {
			return fmt.Sprintf("%d of the first %d outcomes of step %s failed with %s, which would not pass (guard %s)",
				n, g.seen, g.name, code, g.rule)
		}
	}
	return ""
}

// guardSteps counts what this transaction settles of steps whose first outcomes are looked at, and holds their runs
// when these tell that it is no use to go on. A run that ends here has nothing to be held of.
func (s *settlement) guardSteps(ctx context.Context, tx pgx.Tx, ended []workqueue.RunID) error {
	if len(s.guarded) == 0 {
		return nil
	}
	guards, err := s.lockGuards(ctx, tx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	var due []workqueue.RunID
	for _, g := range guards {
		tripped := g.take(s.guarded[g.guardedStep])
		switch {
		case tripped != "" && !slices.Contains(ended, g.run):
			due = append(due, g.run)
			batch.Queue(keepGuard, g.run, g.step, g.seen, g.codes, pg.Plain(tripped))
		case tripped != "" || g.seen >= g.rule.Within:
			batch.Queue(endGuard, g.run, g.step)
		default:
			batch.Queue(keepGuard, g.run, g.step, g.seen, g.codes, "")
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("count the first outcomes of %d steps: %w", len(guards), err)
	}
	for _, run := range slices.Compact(due) {
		if _, err := HoldForGuard(ctx, tx, run); err != nil {
			return err
		}
	}
	return nil
}

func (s *settlement) lockGuards(ctx context.Context, tx pgx.Tx) ([]*guard, error) {
	var runs []workqueue.RunID
	var steps []workqueue.Step
	for _, at := range slices.SortedFunc(maps.Keys(s.guarded), guardedStep.compare) {
		runs, steps = append(runs, at.run), append(steps, at.step)
	}
	rows := pg.Rows(ctx, tx, lockGuards, runs, steps)
	guards, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*guard, error) {
		g := &guard{}
		return g, row.Scan(&g.run, &g.step, &g.name, &g.rule.Failures, &g.rule.Within, &g.seen, &g.codes)
	})
	if err != nil {
		return nil, fmt.Errorf("lock guards: %w", err)
	}
	return guards, nil
}

// HoldForGuard holds a run of which a guard has decided, unless it is held already: then the guard waits for its turn.
// A guard that has held its run asks no more. It reports whether the run is held now.
func HoldForGuard(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (held bool, err error) {
	var generation workqueue.Generation
	var why string
	err = tx.QueryRow(ctx, holdForGuard, run, workqueue.Engine).Scan(&generation, &why)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = AnswerGuard(ctx, tx, run)
	}
	if err != nil {
		return false, fmt.Errorf("hold run %s for its guard: %w", run, err)
	}
	detail := map[string]any{"reason": why, "hold": HoldGuard, "by": workqueue.Engine}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "pause", Run: run, Detail: detail,
		Before: map[string]any{"hold": nil},
		After:  map[string]any{"hold": HoldGuard, "detail": why, "by": workqueue.Engine}})
	if err != nil {
		return false, err
	}
	return true, ledger.AddEvent(ctx, tx, run, generation, workqueue.EventPaused, detail)
}

// AnswerGuard ends what guards have decided of a run: they have asked, or someone who runs its items again has seen
// how they failed.
func AnswerGuard(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	return pg.Later(ctx, tx, endTripped, run)
}
