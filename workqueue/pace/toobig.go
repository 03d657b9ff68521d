package pace

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// capWindow is how far back chunks that were too big are looked for, among the capNewest slices that ended last.
	capWindow = 10 * time.Minute
	capNewest = 5000
	// capFor is how long larger chunks are not tried.
	capFor = time.Hour
)

const (
	// familiesOfEndpoint reads the newest end of the index on endpoint and end, and the pieces by work_slice_block.
	familiesOfEndpoint = `
WITH newest AS MATERIALIZED (
    SELECT n.run_id, n.step, n.block, n.root, n.cause FROM work_slice n
    WHERE n.endpoint = $1 AND n.ended_at > (SELECT tranche_now() - $2::interval)
    ORDER BY n.ended_at DESC LIMIT $3
), halved AS MATERIALIZED (
    SELECT DISTINCT run_id, step, block, root FROM newest WHERE cause IN ('bisect', 'exhausted'))` + pieceColumns + `
JOIN halved h ON s.run_id = h.run_id AND s.step = h.step AND s.block = h.block AND s.root = h.root
ORDER BY s.root, s.created_at, s.id`

	workedAt = `
SELECT coalesce(max(bit_count(n.mask)), 0)::int FROM (
    SELECT mask, state, error_code FROM work_slice
    WHERE endpoint = $1 AND ended_at > (SELECT tranche_now() - $2::interval)
    ORDER BY ended_at DESC LIMIT $3) n
WHERE n.state = 'recorded' AND n.error_code IS NULL`

	presentCap = `
SELECT coalesce(chunk_cap, 0) FROM endpoint_pace
WHERE endpoint = $1 AND chunk_cap_until > tranche_now() FOR NO KEY UPDATE`

	setCap = `
UPDATE endpoint_pace
SET chunk_cap = $2, chunk_cap_until = tranche_now() + $3::interval, changed_at = tranche_now()
WHERE endpoint = $1`
)

// ChunkCap is what a look for chunks that are too big came to.
type ChunkCap struct {
	Endpoint string
	Changed  bool
	Items    int // the new cap
	Reason   string
}

// CheckTooBig looks whether chunks of an endpoint fail because they are too big: several failed as a whole at a size at
// which nothing worked lately, and all their pieces worked. Then chunks are held to the largest size that worked for an
// hour. Any node may call it at any time.
func (s Store) CheckTooBig(ctx context.Context, endpoint string) (ChunkCap, error) {
	out := ChunkCap{Endpoint: endpoint}
	families, err := readFamilies(ctx, s.db.Pool, familiesOfEndpoint, endpoint, capWindow, capNewest)
	if err == nil && len(families) >= tooBigRoots {
		var worked int
		err = s.db.Pool.QueryRow(ctx, workedAt, endpoint, capWindow, capNewest).Scan(&worked)
		if roots, failed, works := tooBig(families, endpoint, worked); err == nil && roots > 0 {
			out.Items = works
			out.Reason = fmt.Sprintf("%d chunks of %d items and more failed, and all their pieces of up to %d worked", roots,
				failed, works)
			out.Changed, err = s.capChunks(ctx, out)
		}
	}
	if err != nil {
		return ChunkCap{Endpoint: endpoint}, fmt.Errorf("look for chunks that are too big for endpoint %s: %w", endpoint, err)
	}
	return out, nil
}

// tooBig returns how many chunks were too big, the size of the smallest piece of them that failed and the size of the
// largest that worked; no chunks when size is not to blame.
func tooBig(families []family, endpoint string, worked int) (roots, failed, works int) {
	all := make([]Bisection, len(families))
	for i := range families {
		all[i] = families[i].summary()
	}
	tellSizes(all, map[string]int{endpoint: worked})
	for i := range all {
		if all[i].Kind != KindTooBig || all[i].WorkedAt == 0 {
			continue
		}
		roots++
		works = max(works, all[i].WorkedAt)
		if failed == 0 || all[i].FailedAt < failed {
			failed = all[i].FailedAt
		}
	}
	return roots, failed, works
}

// capChunks sets the cap unless one that is as low holds already.
func (s Store) capChunks(ctx context.Context, c ChunkCap) (changed bool, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		changed = false
		if _, err := tx.Exec(ctx, MakePace, c.Endpoint); err != nil {
			return err
		}
		present, err := pg.Collect(ctx, tx, pgx.RowTo[int], presentCap, c.Endpoint)
		if err != nil {
			return err
		}
		before := ""
		if len(present) > 0 {
			if present[0] <= c.Items {
				return nil
			}
			before = strconv.Itoa(present[0])
		}
		if _, err := tx.Exec(ctx, setCap, c.Endpoint, c.Items, capFor); err != nil {
			return err
		}
		changed = true
		return NoteChange(ctx, tx, c.Endpoint, Change{"chunk_cap", before, strconv.Itoa(c.Items), c.Reason})
	})
	return changed, err
}
