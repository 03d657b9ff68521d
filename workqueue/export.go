package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Outcome is where an item stands as its owner sees it.
type Outcome string

// The outcomes. An item is done when every step is done with it, failed when one step is, and missing otherwise.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeMissing Outcome = "missing"
)

// ExportedItem is one item with its outcome. Result, of the last step, is set when it is done; Step, ErrorCode and
// ErrorMessage, of the first step that failed, when it failed.
type ExportedItem struct {
	Ordinal      Ordinal
	Key          string
	State        Outcome
	Step         string
	Result       []byte // valid until the next item
	ContentType  string // empty means JSON
	ErrorCode    string
	ErrorMessage string
}

const exportRun = `
SELECT r.items, array_agg(s.step ORDER BY s.step), array_agg(s.name ORDER BY s.step)
FROM batchrun r JOIN run_step s ON s.run_id = r.id WHERE r.id = $1 GROUP BY r.id`

// A point read of work_block's primary key for each step.
const exportBlock = `
SELECT size, done, failed FROM work_block WHERE run_id = $1 AND step = ANY ($2) AND block = $3 ORDER BY step`

// For each wanted item, two point reads of primary keys; the newest part comes first. A missing item has the step -1,
// which has no parts.
const exportItems = `
SELECT q.ordinal, q.item_key, w.step, p.result, coalesce(p.content_type, ''), p.error_code IS NOT NULL,
    coalesce(p.error_code, ''), coalesce(p.error_message, '')
FROM unnest($2::integer[], $3::smallint[]) WITH ORDINALITY AS w (ordinal, step, nth)
JOIN work_queue q ON q.run_id = $1 AND q.ordinal = w.ordinal
LEFT JOIN LATERAL (
    SELECT result, content_type, error_code, error_message FROM work_part
    WHERE run_id = $1 AND step = w.step AND ordinal = w.ordinal
    ORDER BY generation DESC LIMIT 1
) p ON true
ORDER BY w.nth`

// exportPage bounds the items of one statement, so that no snapshot is held for longer than a reader needs for these.
const exportPage = 1024

// Export yields the items of a run in the order of their ordinals, only those in one of the given states (none: all).
// Memory is constant: pages of a block, each read at one moment of its own, so that a reader that is slow holds no old
// snapshot for long. An error from yield ends the export and is wrapped. The error wraps ErrNotFound when there is no
// such run.
func (s *Store) Export(ctx context.Context, id RunID, states []Outcome, yield func(*ExportedItem) error) error {
	e := exporter{store: s, run: id, states: states, yield: yield}
	var items int64
	err := s.pool.QueryRow(ctx, exportRun, id).Scan(&items, &e.steps, &e.names)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("export run %s: %w", id, err)
	}
	for block := Block(0); int64(block.Ordinal(0)) < items; block++ {
		if err := e.block(ctx, block); err != nil {
			return fmt.Errorf("export run %s, block %d: %w", id, block, err)
		}
	}
	return nil
}

type exporter struct {
	store  *Store
	run    RunID
	steps  []Step
	names  []string
	states []Outcome
	yield  func(*ExportedItem) error
}

// selection is the items of one block that are wanted, by the step whose part tells their outcome.
type selection struct {
	ordinals []Ordinal
	steps    []Step
}

func (e *exporter) block(ctx context.Context, block Block) error {
	for bit := 0; bit < bitfield.Size; bit += exportPage {
		more := false
		err := e.store.snapshot(ctx, func(tx pgx.Tx) error {
			wanted, size, err := e.choose(ctx, tx, block, bitfield.Range(bit, bit+exportPage))
			more = size > bit+exportPage
			if err != nil || len(wanted.ordinals) == 0 {
				return err
			}
			return e.items(ctx, tx, wanted)
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (e *exporter) choose(
	ctx context.Context, tx pgx.Tx, block Block, page bitfield.Set,
) (wanted selection, size int, err error) {
	rows, err := tx.Query(ctx, exportBlock, e.run, e.steps, block)
	if err != nil {
		return wanted, 0, err
	}
	var done, failed bitfield.Set
	var byStep []bitfield.Set
	var stepDone, stepFailed bitfield.Set
	_, err = pgx.ForEachRow(rows, []any{&size, pgbits.Into(&stepDone), pgbits.Into(&stepFailed)}, func() error {
		if len(byStep) == 0 {
			done = stepDone
		}
		done, failed = done.And(stepDone), failed.Or(stepFailed)
		byStep = append(byStep, stepFailed)
		return nil
	})
	if err != nil {
		return wanted, 0, err
	}
	all := bitfield.Full(size).And(page)
	final := done.Or(failed)
	missing := all.AndNot(final)
	var chosen bitfield.Set
	for state, set := range map[Outcome]bitfield.Set{
		OutcomeDone: done, OutcomeFailed: failed, OutcomeMissing: missing,
	} {
		if len(e.states) == 0 || slices.Contains(e.states, state) {
			chosen = chosen.Or(set)
		}
	}
	chosen = chosen.And(all)
	for bit := range chosen.All() {
		wanted.ordinals = append(wanted.ordinals, block.Ordinal(bit))
		wanted.steps = append(wanted.steps, e.telling(bit, &done, byStep))
	}
	return wanted, size, nil
}

// noStep stands for the step of a missing item.
const noStep = Step(-1)

// telling returns the step whose part is the item's outcome.
func (e *exporter) telling(bit int, done *bitfield.Set, failed []bitfield.Set) Step {
	for i := range failed {
		if failed[i].Has(bit) {
			return e.steps[i]
		}
	}
	if done.Has(bit) {
		return e.steps[len(e.steps)-1]
	}
	return noStep
}

func (e *exporter) items(ctx context.Context, tx pgx.Tx, wanted selection) error {
	rows, err := tx.Query(ctx, exportItems, e.run, wanted.ordinals, wanted.steps)
	if err != nil {
		return err
	}
	var item ExportedItem
	var step Step
	var failed bool
	to := []any{&item.Ordinal, &item.Key, &step, &item.Result, &item.ContentType, &failed, &item.ErrorCode,
		&item.ErrorMessage}
	_, err = pgx.ForEachRow(rows, to, func() error {
		item.State, item.Step = OutcomeMissing, ""
		if step != noStep {
			item.State = OutcomeDone
			if failed {
				item.State = OutcomeFailed
			}
			item.Step = e.stepName(step)
		}
		return e.yield(&item)
	})
	return err
}

func (e *exporter) stepName(step Step) string {
	if i := slices.Index(e.steps, step); i >= 0 {
		return e.names[i]
	}
	return ""
}
