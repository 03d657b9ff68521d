package redo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// seen is what the evidence of a selection was found to be true of before anything of the run was locked: looking into
// payloads and results takes as long as the run is large, and claims would wait for it. It counts under the locks while
// the run has the same generation, in which payloads stay as they are and parts are only added: what was recorded
// meanwhile is looked at once more.
type seen struct {
	generation workqueue.Generation
	items      blockMasks                    // of which the payload fits; nil: not looked at
	parts      map[workqueue.Step]blockMasks // that fit; nil: not looked at
	recorded   map[workqueue.Step]blockMasks // in this generation by then
}

const (
	generationOf = `SELECT generation FROM batchrun WHERE id = $1`

	stepsToSee = `SELECT step FROM run_step WHERE run_id = $1 AND ($2 = '' OR name = $2) ORDER BY step`

	// recordedParts is a walk along work_part's primary key, beside its table.
	recordedParts = `
SELECT step, ordinal FROM work_part WHERE run_id = $1 AND step = ANY ($2) AND generation = $3`
)

// see looks for what the evidence of a selection is true of, without a lock.
func (s Store) see(ctx context.Context, run workqueue.RunID, sel *Selection) error {
	if sel.empty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, database.OperatorTimeout)
	defer cancel()
	return s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		found := &seen{}
		err := tx.QueryRow(ctx, generationOf, run).Scan(&found.generation)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // whoever locks it says so
		}
		if err != nil {
			return fmt.Errorf("read run %s: %w", run, err)
		}
		steps, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Step], stepsToSee, run, sel.Step)
		if err != nil {
			return fmt.Errorf("read the steps of run %s: %w", run, err)
		}
		if err := found.read(ctx, tx, run, steps, &sel.Evidence); err != nil {
			return err
		}
		sel.seen = found
		return nil
	})
}

func (f *seen) read(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, e *Evidence,
) (err error) {
	if err := e.checkPaths(ctx, tx); err != nil {
		return err
	}
	if e.ofItems() {
		if f.items, err = e.itemsThatFit(ctx, tx, run); err != nil {
			return err
		}
	}
	if !e.ofParts() {
		return nil
	}
	if f.parts, err = e.partsThatFit(ctx, tx, run, steps, nil); err != nil {
		return err
	}
	f.recorded, err = recordedIn(ctx, tx, run, steps, f.generation)
	return err
}

func recordedIn(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	generation workqueue.Generation,
) (map[workqueue.Step]blockMasks, error) {
	rows := pg.Rows(ctx, tx, recordedParts, run, steps, generation)
	all := map[workqueue.Step]blockMasks{}
	var s workqueue.Step
	var o workqueue.Ordinal
	if _, err := pgx.ForEachRow(rows, []any{&s, &o}, func() error { masksOf(all, s).add(o); return nil }); err != nil {
		return nil, fmt.Errorf("find what was recorded: %w", err)
	}
	return all, nil
}

// catchUp has the parts be those of now, under the locks.
func (f *seen) catchUp(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, e *Evidence) error {
	now, err := recordedIn(ctx, tx, run, steps, f.generation)
	if err != nil {
		return err
	}
	var ordinals []workqueue.Ordinal
	for s, blocks := range now {
		for b, items := range blocks {
			fresh := *items
			if before := f.recorded[s][b]; before != nil {
				fresh = fresh.AndNot(*before)
			}
			for bit := range fresh.All() {
				ordinals = append(ordinals, b.Ordinal(bit))
			}
			if fits := f.parts[s][b]; fits != nil {
				*fits = fits.AndNot(fresh)
			}
		}
	}
	f.recorded = now
	if len(ordinals) == 0 {
		return nil
	}
	fresh, err := e.partsThatFit(ctx, tx, run, steps, ordinals)
	if err != nil {
		return err
	}
	for s, blocks := range fresh {
		for b, items := range blocks {
			for bit := range items.All() {
				masksOf(f.parts, s).add(b.Ordinal(bit))
			}
		}
	}
	return nil
}
