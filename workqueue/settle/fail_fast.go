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

// HoldFailFast is the hold of a run whose first outcomes reached a fail-fast limit.
const HoldFailFast = "fail_fast"

type failFastStep struct {
	run  workqueue.RunID
	step workqueue.Step
}

func (a failFastStep) compare(b failFastStep) int {
	return cmp.Or(slices.Compare(a.run[:], b.run[:]), cmp.Compare(a.step, b.step))
}

type outcomes struct {
	seen  int
	codes map[string]int
}

// watch counts an outcome for the step's fail-fast limit; code is that of a permanent failure, or empty. The slice
// may still say that the limit is active after it ended; no limit starts again, so that is harmless.
func (s *settlement) watch(h *plane.HeldSlice, code string) {
	if !h.FailFast {
		return
	}
	at := failFastStep{h.Run, h.Step}
	of := s.firstOutcomes[at]
	if of == nil {
		of = &outcomes{codes: map[string]int{}}
		s.firstOutcomes[at] = of
	}
	of.seen++
	if code != "" {
		of.codes[code]++
	}
}

const (
	// Serializes recorders of a step, so that its first outcomes are counted exactly. Only batchrun is locked later.
	lockFailFast = `
SELECT g.run_id, g.step, st.name, g.failures, g.within, g.seen, g.codes
FROM run_fail_fast g JOIN run_step st USING (run_id, step)
JOIN unnest($1::uuid[], $2::smallint[]) AS u (run_id, step) USING (run_id, step)
WHERE g.tripped IS NULL ORDER BY g.run_id, g.step FOR NO KEY UPDATE OF g`

	keepFailFast = `
UPDATE run_fail_fast SET seen = $3, codes = $4, tripped = nullif($5, '') WHERE run_id = $1 AND step = $2`

	endFailFast = `DELETE FROM run_fail_fast WHERE run_id = $1 AND step = $2`

	endTripped = `DELETE FROM run_fail_fast WHERE run_id = $1 AND tripped IS NOT NULL`

	// The first limit to lock the run holds it; a later one waits in run_fail_fast.
	holdForFailFast = `
WITH due AS (SELECT run_id, string_agg(tripped, '; ' ORDER BY step) AS detail FROM run_fail_fast
    WHERE run_id = $1 AND tripped IS NOT NULL GROUP BY run_id)
UPDATE batchrun r SET hold = 'fail_fast', hold_detail = due.detail, held_by = $2, held_at = tranche_now()
FROM due WHERE r.id = $1 AND due.run_id = r.id AND r.state = 'running' AND r.hold IS NULL
RETURNING r.generation, r.hold_detail`
)

type failFastLimit struct {
	failFastStep

	outcomes

	name string
	rule workqueue.FailFast
}

// take counts outcomes recorded together and returns why the limit is reached, if it is. The outcomes that exceed
// the rule's number all count in proportion, since their order is unknown.
func (g *failFastLimit) take(news *outcomes) (tripped string) {
	g.seen += news.seen
	for code, n := range news.codes {
		g.codes[code] += n
	}
	for _, code := range slices.Sorted(maps.Keys(g.codes)) {
		if n := g.codes[code]; g.rule.Trips(n, g.seen) {
			return fmt.Sprintf("%d of the first %d outcomes of step %s failed with %s, which would not pass (fail_fast %s)",
				n, g.seen, g.name, code, g.rule)
		}
	}
	return ""
}

// checkFailFast counts outcomes for fail-fast limits and holds the runs that reached theirs, unless they end here.
func (s *settlement) checkFailFast(ctx context.Context, tx pgx.Tx, ended []workqueue.RunID) error {
	if len(s.firstOutcomes) == 0 {
		return nil
	}
	limits, err := s.lockFailFast(ctx, tx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	var due []workqueue.RunID
	for _, g := range limits {
		tripped := g.take(s.firstOutcomes[g.failFastStep])
		switch {
		case tripped != "" && !slices.Contains(ended, g.run):
			due = append(due, g.run)
			batch.Queue(keepFailFast, g.run, g.step, g.seen, g.codes, pg.Plain(tripped))
		case tripped != "" || g.seen >= g.rule.Within:
			batch.Queue(endFailFast, g.run, g.step)
		default:
			batch.Queue(keepFailFast, g.run, g.step, g.seen, g.codes, "")
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("count the first outcomes of %d steps: %w", len(limits), err)
	}
	for _, run := range slices.Compact(due) {
		if _, err := HoldForFailFast(ctx, tx, run); err != nil {
			return err
		}
	}
	return nil
}

func (s *settlement) lockFailFast(ctx context.Context, tx pgx.Tx) ([]*failFastLimit, error) {
	var runs []workqueue.RunID
	var steps []workqueue.Step
	for _, at := range slices.SortedFunc(maps.Keys(s.firstOutcomes), failFastStep.compare) {
		runs, steps = append(runs, at.run), append(steps, at.step)
	}
	rows := pg.Rows(ctx, tx, lockFailFast, runs, steps)
	limits, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*failFastLimit, error) {
		g := &failFastLimit{}
		return g, row.Scan(&g.run, &g.step, &g.name, &g.rule.Failures, &g.rule.Within, &g.seen, &g.codes)
	})
	if err != nil {
		return nil, fmt.Errorf("lock fail-fast limits: %w", err)
	}
	return limits, nil
}

// HoldForFailFast holds a run whose fail-fast limit was reached, unless it is already held: then the limit waits. A
// limit holds its run once. It reports whether the run is held now.
func HoldForFailFast(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (held bool, err error) {
	var generation workqueue.Generation
	var why string
	err = tx.QueryRow(ctx, holdForFailFast, run, workqueue.Engine).Scan(&generation, &why)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = AnswerFailFast(ctx, tx, run)
	}
	if err != nil {
		return false, fmt.Errorf("hold run %s for its fail-fast limit: %w", run, err)
	}
	detail := map[string]any{"reason": why, "hold": HoldFailFast, "by": workqueue.Engine}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "pause", Run: run, Detail: detail,
		Before: map[string]any{"hold": nil},
		After:  map[string]any{"hold": HoldFailFast, "detail": why, "by": workqueue.Engine}})
	if err != nil {
		return false, err
	}
	return true, ledger.AddEvent(ctx, tx, run, generation, workqueue.EventPaused, detail)
}

// AnswerFailFast ends a run's reached fail-fast limits: they have held it, or a rerun followed.
func AnswerFailFast(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	return pg.Later(ctx, tx, endTripped, run)
}
