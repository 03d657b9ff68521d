package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	// readyBlocks picks unlocked blocks: enough of each step for $3 slices of full chunks, and one more in case the
	// first is partly used. A run with lanes has few items ready in each block. $4 is the initial size of an automatic
	// chunk.
	readyBlocks = `
SELECT u.n, b.block, b.ready, b.item_bytes
FROM unnest($1::uuid[], $2::smallint[], $3::int[]) WITH ORDINALITY AS u (run_id, step, most, n)
CROSS JOIN LATERAL (SELECT * FROM run_step o WHERE o.run_id = u.run_id AND o.step = u.step OFFSET 0) st
LEFT JOIN LATERAL (SELECT * FROM endpoint_pace o WHERE o.endpoint = st.endpoint COLLATE "C" OFFSET 0) p ON true
CROSS JOIN LATERAL (
    SELECT b.block, b.ready, ` + itemBytes + ` AS item_bytes FROM work_block b
    WHERE b.run_id = u.run_id AND b.step = u.step AND b.has_ready
    ORDER BY b.block
    LIMIT CASE WHEN EXISTS (SELECT FROM run_order o WHERE o.run_id = u.run_id) THEN u.most ELSE
        u.most * (CASE WHEN st.chunk_auto THEN least(st.chunk, coalesce(p.chunk, $4)) ELSE st.chunk END) / 8192 + 2 END
    FOR NO KEY UPDATE OF b SKIP LOCKED) b
ORDER BY u.n, b.block`

	// firstReady picks one block; firstReadyWait waits if it is locked.
	firstReady     = firstReadyWait + ` SKIP LOCKED`
	firstReadyWait = `
SELECT b.block, b.ready, ` + itemBytes + ` FROM work_block b JOIN run_step st USING (run_id, step)
WHERE b.run_id = $1 AND b.step = $2 AND b.has_ready
ORDER BY b.block LIMIT 1 FOR NO KEY UPDATE OF b`

	// itemBytes is an item's mean size in a request: its payload, if sent, and parts, whose blocks are only read.
	itemBytes = `
    CASE WHEN st.input_item THEN b.payload_bytes / b.size ELSE 0 END +
    CASE WHEN cardinality(st.inputs) = 0 THEN 0 ELSE coalesce((
        SELECT sum(i.result_bytes / greatest(bit_count(i.done), 1)) FROM work_block i
        WHERE i.run_id = b.run_id AND i.step = ANY (st.inputs) AND i.block = b.block)::bigint, 0) END`

	// cutBlocks removes bits from ready planes; the update repeats the condition that chose them.
	cutBlocks = `
UPDATE work_block b SET ready = b.ready & ~u.bits
FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bit(8192)[]) AS u (run_id, step, block, bits)
WHERE b.run_id = u.run_id AND b.step = u.step AND b.block = u.block AND (b.ready & u.bits) = u.bits`

	insertCuts = `
INSERT INTO work_slice
    (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, session_id, deadline, root, endpoint)
SELECT u.id, u.run_id, u.step, u.block, u.generation, u.mask, u.mask, 'claimed', 1, u.cause, $1,
       tranche_now() + u.ttl, u.id, u.endpoint
FROM unnest($2::uuid[], $3::uuid[], $4::smallint[], $5::int[], $6::int[], $7::bit(8192)[], $8::text[], $9::interval[],
            $10::text[]) AS u (id, run_id, step, block, generation, mask, cause, ttl, endpoint)`
)

// readyBlock is a block with ready items, locked.
type readyBlock struct {
	block     workqueue.Block
	ready     bitfield.Set
	itemBytes int64 // mean
}

func (c *claims) scanReady(rows pgx.Rows) error {
	for rows.Next() {
		var n int
		var b readyBlock
		if err := rows.Scan(&n, &b.block, pgbits.Into(&b.ready), &b.itemBytes); err != nil {
			return err
		}
		c.steps[n-1].ready = append(c.steps[n-1].ready, b)
	}
	return rows.Err()
}

func (c *claim) firstReady(ctx context.Context, statement string) ([]readyBlock, error) {
	rows := pg.Rows(ctx, c.tx, statement, c.Run, c.Step)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b readyBlock, err error) {
		return b, row.Scan(&b.block, pgbits.Into(&b.ready), &b.itemBytes)
	})
	if err != nil {
		return nil, fmt.Errorf("lock ready blocks: %w", err)
	}
	return found, nil
}

func (c *claim) cut(blocks []readyBlock, n int) []workqueue.Slice {
	var cuts []workqueue.Slice
	to := c.newCanaryClaim()
	for _, b := range blocks {
		var taken bitfield.Set
		for _, mask := range b.ready.Split(c.sizeIn(&b)) {
			if len(cuts) >= n || !c.flowing() {
				break
			}
			s := c.newSlice(b.block, mask, workqueue.CauseReady)
			to.take(&s)
			taken = taken.Or(s.Mask)
			cuts = append(cuts, s)
			c.spend(s.Mask.Count())
		}
		if taken.Empty() {
			break
		}
		c.cuts.take(plane.BlockID{Run: c.Run, Step: c.Step, Block: b.block}, taken)
	}
	to.end()
	c.cuts.add(cuts, c.ttl)
	return cuts
}

func (c *claim) newSlice(block workqueue.Block, mask bitfield.Set, cause workqueue.Cause) workqueue.Slice {
	id := workqueue.NewSliceID()
	return workqueue.Slice{ID: id, Run: c.Run, Step: c.Step, Block: block, Generation: c.load.generation, Mask: mask,
		Attempt: 1,
		Cause:   cause, Root: id, Endpoint: c.load.endpoint}
}

// lanesApart is in how many requests, at least, the lanes that are ready go. A lane in a shared request delays its
// successors until the slowest item is done; but one request per lane takes a run with very many lanes forty times as
// long.
const lanesApart = 64

// sizeIn is the number of a block's items in a slice. In a run with lanes each is from another lane.
func (c *claim) sizeIn(b *readyBlock) int {
	size := c.chunkOf(b.itemBytes)
	if c.load.stop != nil {
		size = min(size, max(1, c.load.lanes/lanesApart))
	}
	return size
}

// chunkOf is the chunk, or as many items as fit the wanted size of a request.
func (c *claim) chunkOf(itemBytes int64) int {
	const envelope = 64 // approximate bytes of an item in a request beyond its payload
	return int(max(1, min(int64(c.chunk), c.wantedBytes()/(itemBytes+envelope))))
}

// wantedBytes is the step's wanted size, within the limit, or else the node's.
func (c *claim) wantedBytes() int64 {
	switch wanted := c.load.chunkBytes; {
	case wanted == 0:
		return c.MaxBytes
	case c.LimitBytes > 0:
		return min(wanted, c.LimitBytes)
	default:
		return wanted
	}
}

// cutting is what a claim transaction cuts from blocks, written by two statements for any number of runs.
type cutting struct {
	blocks []plane.BlockID
	bits   []bitfield.Set
	slices []workqueue.Slice
	ttls   []time.Duration
}

func (w *cutting) take(block plane.BlockID, bits bitfield.Set) {
	w.blocks, w.bits = append(w.blocks, block), append(w.bits, bits)
}

func (w *cutting) add(cuts []workqueue.Slice, ttl time.Duration) {
	for i := range cuts {
		w.slices, w.ttls = append(w.slices, cuts[i]), append(w.ttls, ttl)
	}
}

func (w *cutting) write(c *claims) {
	if len(w.slices) == 0 {
		return
	}
	c.queue(len(w.blocks), cutBlocks, append(plane.Columns(w.blocks), pgbits.Slice(w.bits))...)
	n := len(w.slices)
	ids, cut, masks := make([]workqueue.SliceID, n), make([]plane.BlockID, n), make([]bitfield.Set, n)
	generations, causes, endpoints := make([]workqueue.Generation, n), make([]string, n), make([]string, n)
	for i := range w.slices {
		s := &w.slices[i]
		ids[i], cut[i], masks[i] = s.ID, plane.BlockID{Run: s.Run, Step: s.Step, Block: s.Block}, s.Mask
		generations[i], causes[i], endpoints[i] = s.Generation, string(s.Cause), s.Endpoint
	}
	c.queue(n, insertCuts, append(append([]any{c.session, ids}, plane.Columns(cut)...), generations,
		pgbits.Slice(masks),
		causes, w.ttls, endpoints)...)
}
