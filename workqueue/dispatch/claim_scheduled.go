package dispatch

import (
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// For a step u. A reset may have removed items from a slice: only the remaining ones count.
	scheduled = `
SELECT s.id, s.block, s.generation, s.remaining, s.attempt, s.failures, s.cause, s.suspect,
       coalesce(s.root, s.id) AS root,
       ` + itemBytes + ` AS item_bytes, s.not_before
FROM work_slice s JOIN work_block b USING (run_id, step, block) JOIN run_step st USING (run_id, step)
WHERE s.run_id = u.run_id AND s.step = u.step AND s.state = 'scheduled'`

	// dueSlices locks each step's due slices, longest due first, up to $3, skipping locked ones. Blocks are only read.
	dueSlices = `
SELECT u.n, s.id, s.block, s.generation, s.remaining, s.attempt, s.failures, s.cause, s.suspect, s.root, s.item_bytes
FROM unnest($1::uuid[], $2::smallint[], $3::int[]) WITH ORDINALITY AS u (run_id, step, most, n)
CROSS JOIN LATERAL (` + scheduled + ` AND s.not_before <= (SELECT tranche_now())
    ORDER BY s.not_before, s.id LIMIT u.most FOR NO KEY UPDATE OF s SKIP LOCKED) s
ORDER BY u.n, s.not_before, s.id`

	// takeScheduled claims slices for their step's current endpoint: they were never sent.
	takeScheduled = `
UPDATE work_slice s
SET state = 'claimed', session_id = $3, deadline = tranche_now() + $4, endpoint = $5, mask = u.mask,
    remaining = u.mask, error_code = NULL, error_message = NULL
FROM unnest($1::uuid[], $2::bit(8192)[]) AS u (id, mask)
WHERE s.id = u.id AND s.state = 'scheduled'`

	// insertPieces inserts the rest of slices larger than the current chunks, copying its columns.
	insertPieces = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, failures, cause, parent,
                        suspect, session_id, not_before, deadline, root, endpoint)
SELECT u.id, s.run_id, s.step, s.block, s.generation, u.mask, u.mask, u.state, s.attempt, s.failures, s.cause, s.parent,
       s.suspect, CASE WHEN u.state = 'claimed' THEN $5::uuid END, s.not_before,
       CASE WHEN u.state = 'claimed' THEN tranche_now() + $6::interval END, coalesce(s.root, s.id), $7
FROM unnest($1::uuid[], $2::uuid[], $3::bit(8192)[], $4::text[]) AS u (id, whole, mask, state)
JOIN work_slice s ON s.id = u.whole`

	// dropMerged deletes slices merged into another.
	dropMerged = `DELETE FROM work_slice WHERE id = ANY($1) AND state = 'scheduled'`
)

// mergeRoom is how many due slices are read per claimable one, to merge small ones, and mergeMost in total: 1 KB each.
const (
	mergeRoom = 4
	mergeMost = 512
)

// dueSlice is a scheduled slice, locked.
type dueSlice struct {
	workqueue.Slice
	itemBytes int64 // mean of its block
}

func (t *dueSlice) into() []any {
	return []any{&t.ID, &t.Block, &t.Generation, pgbits.Into(&t.Mask), &t.Attempt, &t.Failures, &t.Cause, &t.Suspect,
		&t.Root, &t.itemBytes}
}

func (c *claims) scanDue(rows pgx.Rows) error {
	for rows.Next() {
		var n int
		var t dueSlice
		if err := rows.Scan(append([]any{&n}, t.into()...)...); err != nil {
			return err
		}
		step := c.steps[n-1]
		step.due = append(step.due, t)
	}
	return rows.Err()
}

func (c *claim) owned(t dueSlice) dueSlice {
	t.Run, t.Step, t.Endpoint = c.Run, c.Step, c.load.endpoint
	return t
}

// kin is what mergeable slices must share.
type kin struct {
	block      workqueue.Block
	generation workqueue.Generation
	attempt    int
	failures   int
}

// mergeable reports whether the items of a slice were singled out individually: their grouping means nothing.
func mergeable(s *workqueue.Slice) bool {
	return !s.Suspect && (s.Cause == workqueue.CauseRetry || s.Cause == workqueue.CauseUnanswered ||
		s.Cause == workqueue.CauseThrottled)
}

type retaking struct {
	claim  *claim
	taken  []workqueue.Slice
	begun  map[kin]int // index in taken of a slice that others may join
	merged []workqueue.SliceID
	pieces []chunkPiece
}

// chunkPiece is part of a due slice larger than the current chunks.
type chunkPiece struct {
	workqueue.Slice
	whole workqueue.SliceID
	state string
}

// again claims due slices. Retries of items in the same state are merged up to a chunk: the first takes the items of
// the rest, which are deleted. Slices larger than the current chunks are cut, so that a refused size is not retried.
func (c *claim) again(due []dueSlice) []workqueue.Slice {
	r := retaking{claim: c, begun: map[kin]int{}}
	for _, s := range due {
		if !c.flowing() {
			break
		}
		s = c.owned(s)
		if chunk := c.chunkOf(s.itemBytes); !r.join(s.Slice, chunk) && len(r.taken) < c.free {
			r.take(s.Slice, chunk)
		}
	}
	r.write()
	return r.taken
}

// join merges a slice into one of its kin with enough capacity.
func (r *retaking) join(s workqueue.Slice, chunk int) bool {
	i, ok := r.begun[kinOf(&s)]
	if !ok || !mergeable(&s) || r.taken[i].Mask.Count()+s.Mask.Count() > chunk {
		return false
	}
	r.taken[i].Mask = r.taken[i].Mask.Or(s.Mask)
	r.merged = append(r.merged, s.ID)
	r.claim.spend(s.Mask.Count())
	return true
}

// take claims a slice, or as many pieces of it as permitted; the rest wait for the next claim.
func (r *retaking) take(s workqueue.Slice, chunk int) {
	whole := s.ID
	for i, mask := range s.Mask.Split(chunk) {
		s.Mask = mask
		if i > 0 {
			s.ID = workqueue.NewSliceID()
		}
		if i > 0 && (len(r.taken) == r.claim.free || !r.claim.flowing()) {
			r.pieces = append(r.pieces, chunkPiece{s, whole, "scheduled"})
			continue
		}
		if i > 0 {
			r.pieces = append(r.pieces, chunkPiece{s, whole, "claimed"})
		} else if mergeable(&s) && s.Mask.Count() < chunk {
			r.begun[kinOf(&s)] = len(r.taken)
		}
		r.taken = append(r.taken, s)
		r.claim.spend(mask.Count())
	}
}

func kinOf(s *workqueue.Slice) kin { return kin{s.Block, s.Generation, s.Attempt, s.Failures} }

func (r *retaking) write() {
	c := r.claim
	if len(r.pieces) > 0 {
		n := len(r.pieces)
		made, wholes := make([]workqueue.SliceID, n), make([]workqueue.SliceID, n)
		masks, states := make([]bitfield.Set, n), make([]string, n)
		for i := range r.pieces {
			made[i], wholes[i] = r.pieces[i].ID, r.pieces[i].whole
			masks[i], states[i] = r.pieces[i].Mask, r.pieces[i].state
		}
		c.queue(n, insertPieces, made, wholes, pgbits.Slice(masks), states, c.Session, c.ttl, c.load.endpoint)
	}
	var ids []workqueue.SliceID
	var masks []bitfield.Set
	for i := range r.taken {
		if !slices.ContainsFunc(r.pieces, func(p chunkPiece) bool { return p.ID == r.taken[i].ID }) {
			ids, masks = append(ids, r.taken[i].ID), append(masks, r.taken[i].Mask)
		}
	}
	if len(ids) > 0 {
		c.queue(len(ids), takeScheduled, ids, pgbits.Slice(masks), c.Session, c.ttl, c.load.endpoint)
	}
	if len(r.merged) > 0 {
		c.queue(len(r.merged), dropMerged, r.merged)
	}
}
