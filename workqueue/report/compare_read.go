package report

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// keyedRun reads the items of a run in key order, one page ahead.
type keyedRun struct {
	store  *database.DB
	seal   *database.Seal
	run    workqueue.RunID
	took   workqueue.Outcome // of the run that it continues; empty: all that was not done
	before string            // the step before which results are compared; empty: the final ones
	state  string
	plan   ComparedPlan
	steps  plane.OutcomeSteps
	// compared are the steps whose results are compared, in the same order in all runs.
	compared []workqueue.Step
	blocks   []plane.BlockOutcomes // by number
	after    keyPlace              // the last key read
	pages    chan []keyedItem
	err      error       // why there are no further pages; set before pages is closed
	page     []keyedItem // the rest of the current page
}

type keyPlace struct {
	key  string
	twin int
}

// keyedItem is one item. Its results are represented by their digests, in the order of compared.
type keyedItem struct {
	key     []byte
	outcome workqueue.Outcome
	step    string // that failed it
	code    string
	result  []byte
}

func (i *keyedItem) standing() *Standing {
	if i == nil {
		return nil
	}
	return &Standing{Outcome: i.outcome, Step: i.step, ErrorCode: i.code}
}

const comparedPlanes = `
SELECT b.block, b.step, b.size, b.done, b.failed, coalesce(b.skipped, ` + plane.NoBits + `)
FROM work_block b WHERE b.run_id = $1 AND b.step = ANY ($2) ORDER BY b.block, b.step`

func (r *keyedRun) readPlanes(ctx context.Context) error {
	rows := pg.Rows(ctx, r.store.Pool, comparedPlanes, r.run, r.steps.All)
	var block workqueue.Block
	var p plane.StepPlanes
	_, err := pgx.ForEachRow(rows, append([]any{&block}, p.Into()...), func() error {
		for int(block) >= len(r.blocks) {
			r.blocks = append(r.blocks, plane.BlockOutcomes{})
		}
		r.blocks[block].Add(&r.steps, &p)
		return nil
	})
	return err
}

const comparePage = 4096

func (r *keyedRun) read(ctx context.Context) error {
	defer close(r.pages)
	for {
		var page []keyedItem
		if page, r.err = r.readPage(ctx); r.err != nil || len(page) == 0 {
			return r.err
		}
		select {
		case r.pages <- page:
		case <-ctx.Done():
			r.err = context.Cause(ctx)
			return r.err
		}
	}
}

// A range of work_queue_key.
const comparedKeys = `
SELECT item_key, key_ordinal, ordinal FROM work_queue
WHERE run_id = $1 AND (item_key, key_ordinal) > ($2, $3) ORDER BY item_key, key_ordinal LIMIT $4`

// Points of work_result's primary key, the newest generation of each. Results may be long, so only digests are sent,
// except of encrypted ones.
const comparedParts = `
SELECT w.nth - 1, w.step, w.ordinal, coalesce(p.error_code, ''), $4 AND p.large_id IS NULL AND p.result IS NOT NULL,
    coalesce(CASE WHEN $4 AND p.large_id IS NULL THEN p.result ELSE sha256(p.result) END, ''::bytea)
FROM unnest($2::smallint[], $3::int[]) WITH ORDINALITY AS w (step, ordinal, nth)
CROSS JOIN LATERAL (
    SELECT error_code, result, large_id FROM work_result
    WHERE run_id = $1 AND step = w.step AND ordinal = w.ordinal ORDER BY generation DESC LIMIT 1
) p
ORDER BY w.nth`

func (r *keyedRun) readPage(ctx context.Context) ([]keyedItem, error) {
	page := make([]keyedItem, 0, comparePage)
	var final []int // items with a part, by index in the page
	var steps []workqueue.Step
	var ordinals []workqueue.Ordinal
	var key []byte
	var ordinal workqueue.Ordinal
	err := pg.Each(pg.Rows(ctx, r.store.Pool, comparedKeys, r.run, r.after.key, r.after.twin, comparePage),
		[]any{&key, &r.after.twin, &ordinal}, func() {
			item := keyedItem{key: key}
			var from []workqueue.Step
			item.outcome, item.step, from = r.outcome(ordinal)
			for _, step := range from {
				final, steps, ordinals = append(final, len(page)), append(steps, step), append(ordinals, ordinal)
			}
			page = append(page, item)
			key = nil // the item owns it now
		})
	if err != nil || len(page) == 0 {
		return nil, err
	}
	r.after.key = string(page[len(page)-1].key)
	return page, r.readResults(ctx, page, final, steps, ordinals)
}

func (r *keyedRun) readResults(ctx context.Context, page []keyedItem, final []int, steps []workqueue.Step,
	ordinals []workqueue.Ordinal,
) error {
	if len(final) == 0 {
		return nil
	}
	var nth int
	var step workqueue.Step
	var ordinal workqueue.Ordinal
	var code string
	var sealed bool
	var result []byte
	_, err := pgx.ForEachRow(pg.Rows(ctx, r.store.Pool, comparedParts, r.run, steps, ordinals, r.seal != nil),
		[]any{&nth, &step, &ordinal, &code, &sealed, &result}, func() error {
			item := &page[final[nth]]
			if sealed {
				opened, err := r.seal.OpenBytes(database.ResultOf(step, ordinal), result)
				if err != nil {
					return err
				}
				sum := sha256.Sum256(opened)
				result = sum[:]
			}
			switch {
			case item.outcome == workqueue.OutcomeFailed:
				item.code = code
			case code != "": // of an optional step
				item.result = append(append(append(item.result, "error "...), code...), 0)
			default:
				item.result = append(item.result, result...)
			}
			return nil
		})
	return err
}

// outcome returns an item's outcome, the name of the step that failed it, and the steps whose parts are needed.
func (r *keyedRun) outcome(at workqueue.Ordinal) (outcome workqueue.Outcome, failed string, from []workqueue.Step) {
	block, bit := at.Block()
	if int(block) >= len(r.blocks) {
		return workqueue.OutcomeMissing, "", nil
	}
	outcome, step := r.blocks[block].Of(bit)
	switch outcome {
	case workqueue.OutcomeFailed:
		i := slices.Index(r.steps.All, step)
		if len(r.steps.All) > 1 {
			failed = r.steps.Names[i]
		}
		return outcome, failed, r.steps.All[i : i+1]
	case workqueue.OutcomeDone:
		return outcome, "", r.compared
	default:
		return outcome, "", nil
	}
}

// peek returns the next item, nil at the end.
func (r *keyedRun) peek() (*keyedItem, error) {
	for len(r.page) == 0 {
		page, more := <-r.pages
		if !more {
			return nil, r.err
		}
		r.page = page
	}
	return &r.page[0], nil
}

// drop removes the next item, which a later run took: of those with its key the first of an outcome, or that is not
// done, if any.
func (r *keyedRun) drop(took workqueue.Outcome) {
	for at := 0; bytes.Equal(r.page[at].key, r.page[0].key); at++ {
		if is := r.page[at].outcome; is == took || took == "" && is != workqueue.OutcomeDone {
			copy(r.page[1:], r.page[:at])
			break
		}
		if at+1 == len(r.page) {
			r.page = append(r.page, <-r.pages...)
		}
		if at+1 == len(r.page) {
			break
		}
	}
	r.page = r.page[1:]
}
