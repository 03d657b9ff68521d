package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

const (
	// readyBlocks picks blocks that nobody else holds; readyBlocksWait is for when all of them are held.
	readyBlocks     = readyBlocksWait + ` SKIP LOCKED`
	readyBlocksWait = `
SELECT b.block, b.ready, ` + itemBytes + ` FROM work_block b
WHERE b.run_id = $1 AND b.step = $2 AND b.has_ready
ORDER BY b.block LIMIT $5 FOR NO KEY UPDATE OF b`

	// itemBytes is how much of a request an item of block b takes in the mean: its payload, when $3 says that it is
	// sent, and the parts of the steps $4. The blocks of those are only read.
	itemBytes = `
    CASE WHEN $3::boolean THEN b.payload_bytes / b.size ELSE 0 END +
    CASE WHEN cardinality($4::smallint[]) = 0 THEN 0 ELSE coalesce((
        SELECT sum(i.result_bytes / greatest(bit_count(i.done), 1)) FROM work_block i
        WHERE i.run_id = b.run_id AND i.step = ANY ($4::smallint[]) AND i.block = b.block)::bigint, 0) END`

	// cutBlock takes bits out of the ready plane; the condition that chose them stands again in the update.
	cutBlock = `
UPDATE work_block SET ready = ready & ~$4::bit(8192)
WHERE run_id = $1 AND step = $2 AND block = $3 AND (ready & $4::bit(8192)) = $4::bit(8192)`

	insertCuts = `
INSERT INTO work_slice
    (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, session_id, deadline, root, endpoint)
SELECT u.id, $1, $2, u.block, $3, u.mask, u.mask, 'claimed', 1, $10, $4, clock_timestamp() + $5, u.id, $9
FROM unnest($6::uuid[], $7::int[], $8::bit(8192)[]) AS u (id, block, mask)`
)

const bitsOfBlock = bitfield.Size

// readyBlock is a block with ready items, locked.
type readyBlock struct {
	block     Block
	ready     bitfield.Set
	itemBytes int64 // of its mean item
}

func scanReady(row pgx.CollectableRow) (readyBlock, error) {
	var b readyBlock
	err := row.Scan(&b.block, pgbits.Into(&b.ready), &b.itemBytes)
	return b, err
}

func (c *claim) blocks(ctx context.Context, statement string, limit int) ([]readyBlock, error) {
	rows, err := c.tx.Query(ctx, statement, c.Run, c.Step, c.load.item, c.load.inputs, limit)
	if err != nil {
		return nil, fmt.Errorf("lock ready blocks: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanReady)
	if err != nil {
		return nil, fmt.Errorf("lock ready blocks: %w", err)
	}
	return found, nil
}

// cut takes up to n slices from ready items.
func (c *claim) cut(blocks []readyBlock, n int) []Slice {
	var cuts []Slice
	for _, b := range blocks {
		var taken bitfield.Set
		for _, mask := range b.ready.Split(c.chunkOf(b.itemBytes)) {
			if len(cuts) >= n || !c.flowing() {
				break
			}
			taken = taken.Or(mask)
			cuts = append(cuts, c.newSlice(b.block, mask, CauseCut))
			c.spend(mask.Count())
		}
		if taken.Empty() {
			break
		}
		c.queue(1, cutBlock, c.Run, c.Step, b.block, pgbits.Of(taken))
	}
	c.insert(cuts, CauseCut)
	return cuts
}

func (c *claim) newSlice(block Block, mask bitfield.Set, cause Cause) Slice {
	id := NewSliceID()
	return Slice{ID: id, Run: c.Run, Step: c.Step, Block: block, Generation: c.load.generation, Mask: mask, Attempt: 1,
		Cause: cause, Root: id, Endpoint: c.load.endpoint}
}

// chunkOf is the chunk, or as many items of a size as the wanted size of a request takes.
func (c *claim) chunkOf(itemBytes int64) int {
	const envelope = 64 // bytes of an item in a request beside its payload, roughly
	return int(max(1, min(int64(c.chunk), c.wantedBytes()/(itemBytes+envelope))))
}

// wantedBytes is what the step says, as far as it can be sent, or else what the node says.
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

func (c *claim) insert(cuts []Slice, cause Cause) {
	if len(cuts) == 0 {
		return
	}
	ids, blocks := make([]SliceID, len(cuts)), make([]Block, len(cuts))
	masks := make([]bitfield.Set, len(cuts))
	for i := range cuts {
		ids[i], blocks[i], masks[i] = cuts[i].ID, cuts[i].Block, cuts[i].Mask
	}
	c.queue(int64(len(cuts)), insertCuts, c.Run, c.Step, c.load.generation, c.Session, c.ttl, ids, blocks,
		pgbits.Slice(masks), c.load.endpoint, string(cause))
}
