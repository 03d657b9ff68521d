package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	exportItems = 1024    // of one page
	exportBytes = 8 << 20 // of one page, except for the item that fills it
)

// A point read of work_block's primary key for each step.
const exportBlock = `
SELECT step, size, done, failed, coalesce(skipped, ` + plane.NoBits + `), coalesce(accepted, ` + plane.NoBits + `)
FROM work_block
WHERE run_id = $1 AND step = ANY ($2) AND block = $3 ORDER BY step`

// The newest parts in ranges of ordinals, each a scan of work_result's primary key: one range if all items are
// wanted, points if few are. LATERAL forces that plan, even without statistics. TOAST gives sizes without reading
// the data, so only as many bytes are fetched as a page may hold; upto tells whether that was all.
const exportParts = `
SELECT ordinal, result, coalesce(content_type, ''), coalesce(error_code, ''), coalesce(error_message,
	''), large_id, upto
FROM (
    SELECT p.*, sum(p.size) OVER (ORDER BY p.ordinal ROWS UNBOUNDED PRECEDING) AS upto
    FROM unnest($3::integer[], $4::integer[]) AS wanted (first, last)
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (ordinal) ordinal, result, content_type, error_code, error_message, large_id,
            coalesce(octet_length(result), 0) + coalesce(octet_length(error_message), 0) AS size
        FROM work_result
        WHERE run_id = $1 AND step = $2 AND ordinal BETWEEN wanted.first AND wanted.last
        ORDER BY ordinal, generation DESC
    ) AS p
) AS sized
WHERE upto - size < $5
ORDER BY ordinal`

// The keys, also by work_queue's primary key. They are short, bounded by their index.
const exportKeys = `
SELECT q.ordinal, q.item_key
FROM unnest($2::integer[], $3::integer[]) AS wanted (first, last)
CROSS JOIN LATERAL (
    SELECT ordinal, item_key FROM work_queue
    WHERE run_id = $1 AND ordinal BETWEEN wanted.first AND wanted.last
    OFFSET 0 -- keeps it a separate walk
) AS q
ORDER BY q.ordinal`

// The same with payloads, limited like parts to the bytes that the page may still take.
const exportCarried = `
SELECT ordinal, item_key, payload, upto
FROM (
    SELECT q.*, sum(octet_length(q.payload)) OVER (ORDER BY q.ordinal ROWS UNBOUNDED PRECEDING) AS upto
    FROM unnest($2::integer[], $3::integer[]) AS wanted (first, last)
    CROSS JOIN LATERAL (
        SELECT ordinal, item_key, payload FROM work_queue
        WHERE run_id = $1 AND ordinal BETWEEN wanted.first AND wanted.last
        OFFSET 0 -- keeps it a separate walk
    ) AS q
) AS sized
WHERE upto - octet_length(payload) < $4
ORDER BY ordinal`

type exportPages struct {
	*Export

	page     []Item
	ordinals []workqueue.Ordinal // of the page
	telling  []int               // for each item of the page: the step whose part is its outcome, or plane.NoStep
	valid    []bitfield.Set      // of the block: the items that have a part, by step
	results  pg.Arena
	room     int64 // bytes that the page may still take
}

// read returns a page of wanted items of one block, starting with an item, and where the next page starts.
func (p *exportPages) read(
	ctx context.Context, from workqueue.Ordinal,
) (page []Item, next workqueue.Ordinal, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	err = p.store.Snapshot(ctx, func(tx pgx.Tx) error {
		// A deleted run loses its row first: while the row exists, the page is complete.
		err := tx.QueryRow(ctx, exportRun, p.run).Scan(new(int64))
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("the run was deleted meanwhile: %w", workqueue.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if next, err = p.choose(ctx, tx, from); err != nil || len(p.page) == 0 {
			return err
		}
		for i := range p.steps {
			if err := p.readParts(ctx, tx, i, &next); err != nil {
				return err
			}
			if !p.parts {
				continue
			}
			if err := p.readAllParts(ctx, tx, i, &next); err != nil {
				return err
			}
		}
		if p.payload {
			return p.readCarried(ctx, tx, &next)
		}
		return p.readKeys(ctx, tx)
	})
	return p.page, next, err
}

func (p *exportPages) choose(
	ctx context.Context, tx pgx.Tx, from workqueue.Ordinal,
) (next workqueue.Ordinal, err error) {
	block, first := from.Block()
	var size int
	var failed, open bitfield.Set
	done := bitfield.Full(bitfield.Size)
	byStep, settled := make([]bitfield.Set, len(p.steps)), make([]bitfield.Set, len(p.steps))
	p.valid = make([]bitfield.Set, len(p.steps))
	var stepDone, stepFailed, skipped, accepted bitfield.Set
	var step workqueue.Step
	to := []any{&step, &size, pgbits.Into(&stepDone), pgbits.Into(&stepFailed), pgbits.Into(&skipped),
		pgbits.Into(&accepted)}
	err = pg.Each(pg.Rows(ctx, tx, exportBlock, p.run, p.steps, block), to, func() {
		i := slices.Index(p.steps, step)
		settled[i] = stepDone.Or(stepFailed).Or(skipped)
		if p.parts {
			for _, n := range p.before[i] {
				stepDone = stepDone.And(settled[n])
			}
			p.valid[i] = stepDone.Or(stepFailed)
		}
		switch {
		case p.leaf[i] && p.optional[i]:
			done = done.And(settled[i])
		case p.leaf[i]:
			done = done.And(stepDone)
		}
		if !p.optional[i] {
			byStep[i], failed = stepFailed, failed.Or(stepFailed)
			open = open.Or(stepFailed.AndNot(accepted))
		}
	})
	if err != nil {
		return 0, err
	}
	if size == 0 { // the newest items of an open run have no block
		size, done = int(min(p.items-int64(block.Ordinal(0)), bitfield.Size)), bitfield.Set{}
	}
	if p.result == plane.NoStep {
		done = done.AndNot(failed)
	}
	failed = failed.AndNot(done)
	p.page, p.ordinals, p.telling = p.page[:0], p.ordinals[:0], p.telling[:0]
	p.results.Empty()
	p.room = exportBytes
	chosen := p.wanted(done, failed, size).AndNot(bitfield.Full(first))
	if p.chosen != nil {
		chosen = chosen.And(*cmp.Or(p.chosen[block], &bitfield.Set{}))
	}
	for bit := range chosen.All() {
		if len(p.page) == exportItems {
			return block.Ordinal(bit), nil
		}
		p.begin(block.Ordinal(bit), standing(&done, &failed, bit), p.tells(bit, &done, byStep))
		p.page[len(p.page)-1].Accepted = failed.Has(bit) && !open.Has(bit)
	}
	return (block + 1).Ordinal(0), nil
}

func (p *exportPages) wanted(done, failed bitfield.Set, size int) (chosen bitfield.Set) {
	all := bitfield.Full(size)
	if len(p.states) == 0 {
		return all
	}
	for _, state := range p.states {
		switch state {
		case workqueue.OutcomeDone:
			chosen = chosen.Or(done)
		case workqueue.OutcomeFailed:
			chosen = chosen.Or(failed)
		case workqueue.OutcomeMissing:
			chosen = chosen.Or(all.AndNot(done.Or(failed)))
		}
	}
	return chosen.And(all)
}

func standing(done, failed *bitfield.Set, bit int) workqueue.Outcome {
	switch {
	case failed.Has(bit):
		return workqueue.OutcomeFailed
	case done.Has(bit):
		return workqueue.OutcomeDone
	default:
		return workqueue.OutcomeMissing
	}
}

func (p *exportPages) tells(bit int, done *bitfield.Set, failed []bitfield.Set) int {
	if done.Has(bit) {
		return p.result
	}
	for i := range failed {
		if failed[i].Has(bit) {
			return i
		}
	}
	return plane.NoStep
}

func (p *exportPages) begin(ordinal workqueue.Ordinal, state workqueue.Outcome, step int) {
	item := Item{Ordinal: ordinal, State: state}
	if p.parts {
		item.Parts = make([]Item, len(p.steps))
	}
	if step != plane.NoStep {
		item.Step = p.names[step]
	}
	p.page, p.ordinals, p.telling = append(p.page, item), append(p.ordinals, ordinal), append(p.telling, step)
}

// readParts reads the outcomes that are those of their items.
func (p *exportPages) readParts(ctx context.Context, tx pgx.Tx, step int, next *workqueue.Ordinal) error {
	var told []workqueue.Ordinal
	for i, s := range p.telling {
		if s == step {
			told = append(told, p.ordinals[i])
		}
	}
	return p.readOutcomes(ctx, tx, step, told, next, func(i int) *Item { return &p.page[i] })
}

// readAllParts reads all outcomes at one step that count.
func (p *exportPages) readAllParts(ctx context.Context, tx pgx.Tx, step int, next *workqueue.Ordinal) error {
	var told []workqueue.Ordinal
	for _, o := range p.ordinals {
		if _, bit := o.Block(); p.valid[step].Has(bit) {
			told = append(told, o)
		}
	}
	return p.readOutcomes(ctx, tx, step, told, next, func(i int) *Item {
		part := &p.page[i].Parts[step]
		part.Ordinal, part.Step, part.State = p.ordinals[i], p.names[step], workqueue.OutcomeDone
		return part
	})
}

// readOutcomes reads the outcomes of items at one step. If they exceed the page, it ends earlier.
func (p *exportPages) readOutcomes(ctx context.Context, tx pgx.Tx, step int, told []workqueue.Ordinal,
	next *workqueue.Ordinal, of func(i int) *Item) error {
	if len(told) == 0 {
		return nil
	}
	later := 0 // reads of the same items, which are to have room, too
	if p.parts {
		later = len(p.steps) - 1 - step
	}
	if p.payload {
		later++
	}
	room := max(p.room/int64(later+1), 1) // the first item always fits
	first, last := ranges(told)
	var part Item
	var large uuid.NullUUID
	var result pgtype.DriverBytes
	var upto int64
	i := 0
	to := []any{&part.Ordinal, &result, &part.ContentType, &part.ErrorCode, &part.ErrorMessage, &large, &upto}
	_, err := pgx.ForEachRow(pg.Rows(ctx, tx, exportParts, p.run, p.steps[step], first, last, room), to, func() error {
		for i < len(p.page) && p.ordinals[i] < part.Ordinal {
			i++
		}
		item := of(i)
		item.ContentType, item.ErrorCode, item.ErrorMessage = part.ContentType, part.ErrorCode, part.ErrorMessage
		if item.Large = nil; large.Valid {
			item.Large, item.ContentType = &LargeResult{large.UUID, part.ContentType}, ""
		}
		if result == nil {
			item.State = workqueue.OutcomeFailed
			return nil
		}
		opened := []byte(result)
		if p.seal != nil && !large.Valid {
			var err error
			if opened, err = p.seal.OpenBytes(database.ResultOf(p.steps[step], part.Ordinal), result); err != nil {
				return err
			}
		}
		item.Result = p.results.Keep(opened)
		return nil
	})
	if err == nil && upto >= room && part.Ordinal != told[len(told)-1] {
		p.cut(i+1, next)
	}
	p.room -= upto
	return err
}

func (p *exportPages) cut(n int, next *workqueue.Ordinal) {
	if n < len(p.page) {
		*next = p.ordinals[n]
		p.page, p.ordinals, p.telling = p.page[:n], p.ordinals[:n], p.telling[:n]
	}
}

func (p *exportPages) readKeys(ctx context.Context, tx pgx.Tx) error {
	first, last := ranges(p.ordinals)
	var ordinal workqueue.Ordinal
	var key string
	i := 0
	return pg.Each(pg.Rows(ctx, tx, exportKeys, p.run, first, last), []any{&ordinal, &key}, func() {
		for p.ordinals[i] < ordinal {
			i++
		}
		p.page[i].Key = key
	})
}

func (p *exportPages) readCarried(ctx context.Context, tx pgx.Tx, next *workqueue.Ordinal) error {
	first, last := ranges(p.ordinals)
	var ordinal workqueue.Ordinal
	var key string
	var payload pgtype.DriverBytes
	var upto int64
	i := 0
	_, err := pgx.ForEachRow(pg.Rows(ctx, tx, exportCarried, p.run, first, last, max(p.room, 1)),
		[]any{&ordinal, &key, &payload, &upto}, func() error {
			for p.ordinals[i] < ordinal {
				i++
			}
			opened := []byte(payload)
			if p.seal != nil {
				var err error
				if opened, err = p.seal.OpenText(database.PayloadOf(key), payload); err != nil {
					return err
				}
			}
			p.page[i].Key, p.page[i].Payload = key, p.results.Keep(opened)
			return nil
		})
	if err == nil && ordinal != p.ordinals[len(p.ordinals)-1] {
		p.cut(i+1, next)
	}
	return err
}

func ranges(ordinals []workqueue.Ordinal) (first, last []workqueue.Ordinal) {
	for i, o := range ordinals {
		if i > 0 && o == ordinals[i-1]+1 {
			last[len(last)-1] = o
			continue
		}
		first, last = append(first, o), append(last, o)
	}
	return first, last
}
