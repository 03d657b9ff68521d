package workqueue

import (
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

const (
	scheduled = `
SELECT s.id, s.block, s.generation, s.mask, s.attempt, s.failures, s.cause, s.suspect, coalesce(s.root, s.id),
       b.payload_bytes / b.size
FROM work_slice s JOIN work_block b USING (run_id, step, block)
WHERE s.run_id = $1 AND s.step = $2 AND s.state = 'scheduled'`

	// dueSlices locks slices whose time has come, the longest due first; rows locked by others are left to them. The
	// blocks are only read.
	dueSlices = scheduled + ` AND s.not_before <= clock_timestamp()
ORDER BY s.not_before, s.id LIMIT $3 FOR NO KEY UPDATE OF s SKIP LOCKED`

	// takeScheduled claims slices for the endpoint that their step has now: they were never sent anywhere.
	takeScheduled = `
UPDATE work_slice s
SET state = 'claimed', session_id = $3, deadline = clock_timestamp() + $4, endpoint = $5, mask = u.mask,
    remaining = u.mask
FROM unnest($1::uuid[], $2::bit(8192)[]) AS u (id, mask)
WHERE s.id = u.id AND s.state = 'scheduled'`

	// dropMerged deletes slices whose bits another has taken over.
	dropMerged = `DELETE FROM work_slice WHERE id = ANY($1) AND state = 'scheduled'`
)

// mergeRoom is how many due slices are looked at for each that may be taken, to put small ones together, and mergeMost
// how many in all: each brings a mask of a kilobyte.
const (
	mergeRoom = 4
	mergeMost = 512
)

func (c *claim) dueLimit() int { return max(c.free, min(mergeRoom*c.free, mergeMost)) }

// dueSlice is a scheduled slice, locked.
type dueSlice struct {
	Slice
	itemBytes int64 // of its block's mean item
}

func (c *claim) scanDue(row pgx.CollectableRow) (dueSlice, error) {
	t := dueSlice{Slice: Slice{Run: c.Run, Step: c.Step, Endpoint: c.load.endpoint}}
	err := row.Scan(&t.ID, &t.Block, &t.Generation, pgbits.Into(&t.Mask), &t.Attempt, &t.Failures, &t.Cause,
		&t.Suspect, &t.Root, &t.itemBytes)
	return t, err
}

// kin is what slices have in common that may become one.
type kin struct {
	block      Block
	generation Generation
	attempt    int
	failures   int
}

// mergeable reports whether the items of a slice were singled out one by one, so that nothing is learned from how they
// were grouped.
func (s *Slice) mergeable() bool {
	return !s.Suspect && (s.Cause == CauseRetry || s.Cause == CauseUnanswered)
}

// again takes due slices. Retries of the same items' standing are put together up to a chunk: the first takes the bits
// of the others, which were never sent and vanish.
func (c *claim) again(due []dueSlice) []Slice {
	var taken []Slice
	var merged []SliceID
	begun := map[kin]int{}
	for _, s := range due {
		if !c.flowing() {
			break
		}
		n := s.Mask.Count()
		k := kin{s.Block, s.Generation, s.Attempt, s.Failures}
		if i, ok := begun[k]; ok && s.mergeable() && taken[i].Mask.Count()+n <= c.chunkOf(s.itemBytes) {
			taken[i].Mask = taken[i].Mask.Or(s.Mask)
			merged = append(merged, s.ID)
			c.spend(n)
			continue
		}
		if len(taken) == c.free {
			continue
		}
		if s.mergeable() {
			begun[k] = len(taken)
		}
		taken = append(taken, s.Slice)
		c.spend(n)
	}
	if len(taken) > 0 {
		ids, masks := make([]SliceID, len(taken)), make([]bitfield.Set, len(taken))
		for i := range taken {
			ids[i], masks[i] = taken[i].ID, taken[i].Mask
		}
		c.queue(int64(len(taken)), takeScheduled, ids, pgbits.Slice(masks), c.Session, c.TTL, c.load.endpoint)
	}
	if len(merged) > 0 {
		c.queue(int64(len(merged)), dropMerged, merged)
	}
	return taken
}
