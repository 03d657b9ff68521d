package redo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// liveSlice is a live slice, locked, of which items may be taken back.
type liveSlice struct {
	workqueue.Sent

	step      workqueue.Step
	block     workqueue.Block
	remaining bitfield.Set
}

const (
	// The live slices of some steps that hold some items and that are not locked yet, by work_slice_live.
	liveOf = `
FROM work_slice s JOIN unnest($3::int[], $4::bit(8192)[]) AS u (block, mask) ON u.block = s.block
WHERE s.run_id = $1 AND s.step = ANY($2::smallint[]) AND s.state IN ('scheduled', 'claimed', 'sent')
    AND (s.remaining & u.mask) <> B'0'::bit(8192) AND NOT s.id = ANY($5::uuid[])`

	lockLiveOf = `
SELECT s.id, coalesce(s.stream_seq, 0), coalesce(s.stream_epoch, 0), s.step, s.block, s.remaining` + liveOf + `
ORDER BY s.id FOR NO KEY UPDATE OF s`

	moreLiveOf = `SELECT EXISTS (SELECT` + liveOf + `)`

	// A late answer finds the items gone from what remains of its slice, or the slice closed: they count as answered. A
	// slice that waits for its time was sent nowhere, and will be claimed by its mask.
	withdrawSlices = `
UPDATE work_slice s
SET remaining = s.remaining & ~u.mask,
    mask = CASE WHEN s.state = 'scheduled' AND s.remaining <> u.mask THEN s.mask & ~u.mask ELSE s.mask END,
    state = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'cancelled' ELSE s.state END,
    ended_at = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN tranche_now() END,
    error_code = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'reset' ELSE s.error_code END,
    error_message = CASE WHEN (s.remaining & ~u.mask) = B'0'::bit(8192) THEN 'its items were reset'
                         ELSE s.error_message END
FROM unnest($1::uuid[], $2::bit(8192)[]) AS u (id, mask)
WHERE s.id = u.id AND s.state IN ('scheduled', 'claimed', 'sent') AND (s.remaining & u.mask) = u.mask`
)

// lockLive locks the live slices from which items may have to be taken. Whoever had one may make others of it before
// the lock is had, so it looks again until there are no more: nobody can claim meanwhile.
func (r *redo) lockLive(ctx context.Context) error {
	steps := r.mayBeLive()
	if len(steps) == 0 {
		return nil
	}
	r.live = map[workqueue.Block][]*liveSlice{}
	masks := make([]bitfield.Set, len(r.blocks))
	for i, b := range r.blocks {
		for _, s := range r.named {
			if mask := r.wanted[s][b]; mask != nil {
				masks[i] = masks[i].Or(*mask)
			}
		}
	}
	locked := []workqueue.SliceID{}
	for more := true; more; {
		args := []any{r.run, steps, r.blocks, pgbits.Slice(masks), locked}
		found, err := pg.Collect(ctx, r.tx, scanLive, lockLiveOf, args...)
		if err != nil {
			return fmt.Errorf("lock slices: %w", err)
		}
		for _, l := range found {
			locked = append(locked, l.ID)
			r.live[l.block] = append(r.live[l.block], l)
		}
		args[len(args)-1] = locked
		if err := r.tx.QueryRow(ctx, moreLiveOf, args...).Scan(&more); err != nil {
			return fmt.Errorf("look for slices: %w", err)
		}
	}
	return nil
}

func scanLive(row pgx.CollectableRow) (*liveSlice, error) {
	l := &liveSlice{}
	return l, row.Scan(&l.ID, &l.StreamSeq, &l.StreamsEpoch, &l.step, &l.block, pgbits.Into(&l.remaining))
}

// mayBeLive is the steps at which items that are taken back may be in slices.
func (r *redo) mayBeLive() []workqueue.Step {
	steps := map[workqueue.Step]bool{}
	for _, s := range r.named {
		if r.take.live {
			steps[s] = true
		}
		for _, later := range r.graph.After[s] {
			steps[later] = true
		}
	}
	return plane.Sorted(steps)
}
