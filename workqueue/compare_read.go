package workqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// keyedRun reads the items of a run in the order of their keys, a page ahead of whoever takes them.
type keyedRun struct {
	store  *Store
	run    RunID
	state  string
	steps  []Step
	blocks []blockPlanes // by number
	after  keyPlace      // the last key that was read
	pages  chan []keyedItem
	err    error       // why no more pages come; set before pages is closed
	page   []keyedItem // what is left of the page at hand
}

// blockPlanes is what has become of the items of a block.
type blockPlanes struct {
	done   bitfield.Set   // every step is done with them
	failed []bitfield.Set // by step
}

// keyPlace is a place in the order of the keys of a run.
type keyPlace struct {
	key  string
	twin int
}

// keyedItem is one item. Its result stands for itself by its digest.
type keyedItem struct {
	key     []byte
	outcome Outcome
	code    string
	result  []byte
}

func (i *keyedItem) standing() *Standing {
	if i == nil {
		return nil
	}
	return &Standing{Outcome: i.outcome, ErrorCode: i.code}
}

const comparedPlanes = `SELECT block, done, failed FROM work_block WHERE run_id = $1 ORDER BY block, step`

func (r *keyedRun) readPlanes(ctx context.Context) error {
	rows, err := r.store.pool.Query(ctx, comparedPlanes, r.run)
	if err != nil {
		return err
	}
	var block Block
	var done, failed bitfield.Set
	_, err = pgx.ForEachRow(rows, []any{&block, pgbits.Into(&done), pgbits.Into(&failed)}, func() error {
		for int(block) >= len(r.blocks) {
			r.blocks = append(r.blocks, blockPlanes{done: bitfield.Full(bitfield.Size)})
		}
		b := &r.blocks[block]
		b.done, b.failed = b.done.And(done), append(b.failed, failed)
		return nil
	})
	return err
}

// comparePage is how many keys one statement reads.
const comparePage = 4096

// read sends pages until the keys end.
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
SELECT item_key, twin, ordinal FROM work_queue
WHERE run_id = $1 AND (item_key, twin) > ($2, $3) ORDER BY item_key, twin LIMIT $4`

// Points of work_part's primary key, the newest generation of each. A result is too long to be sent here.
const comparedParts = `
SELECT w.nth - 1, coalesce(p.error_code, ''), sha256(p.result)
FROM unnest($2::smallint[], $3::int[]) WITH ORDINALITY AS w (step, ordinal, nth)
CROSS JOIN LATERAL (
    SELECT error_code, result FROM work_part
    WHERE run_id = $1 AND step = w.step AND ordinal = w.ordinal ORDER BY generation DESC LIMIT 1
) p`

func (r *keyedRun) readPage(ctx context.Context) ([]keyedItem, error) {
	rows, err := r.store.pool.Query(ctx, comparedKeys, r.run, r.after.key, r.after.twin, comparePage)
	if err != nil {
		return nil, err
	}
	page := make([]keyedItem, 0, comparePage)
	var final []int // items that have a part, by their place in the page
	var steps []Step
	var ordinals []Ordinal
	var key []byte
	var ordinal Ordinal
	_, err = pgx.ForEachRow(rows, []any{&key, &r.after.twin, &ordinal}, func() error {
		outcome, step := r.outcome(ordinal)
		if outcome != OutcomeMissing {
			final, steps, ordinals = append(final, len(page)), append(steps, step), append(ordinals, ordinal)
		}
		page = append(page, keyedItem{key: key, outcome: outcome})
		key = nil // it is the item's now
		return nil
	})
	if err != nil || len(page) == 0 {
		return nil, err
	}
	r.after.key = string(page[len(page)-1].key)
	return page, r.readResults(ctx, page, final, steps, ordinals)
}

func (r *keyedRun) readResults(ctx context.Context, page []keyedItem, final []int, steps []Step, ordinals []Ordinal,
) error {
	if len(final) == 0 {
		return nil
	}
	rows, err := r.store.pool.Query(ctx, comparedParts, r.run, steps, ordinals)
	if err != nil {
		return err
	}
	var nth int
	var code string
	var result []byte
	_, err = pgx.ForEachRow(rows, []any{&nth, &code, &result}, func() error {
		item := &page[final[nth]]
		item.code, item.result = code, result
		result = nil // it is the item's now
		return nil
	})
	return err
}

// outcome is where an item stands, and the step whose part says so.
func (r *keyedRun) outcome(at Ordinal) (Outcome, Step) {
	block, bit := at.Block()
	if int(block) >= len(r.blocks) {
		return OutcomeMissing, 0
	}
	b := &r.blocks[block]
	for i := range b.failed {
		if b.failed[i].Has(bit) {
			return OutcomeFailed, r.steps[i]
		}
	}
	if b.done.Has(bit) {
		return OutcomeDone, r.steps[len(r.steps)-1]
	}
	return OutcomeMissing, 0
}

// peek returns the item that is next, nil at the end.
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

func (r *keyedRun) next() { r.page = r.page[1:] }
