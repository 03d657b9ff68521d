package pace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Bisection is a chunk that failed as a whole, and what came of it.
type Bisection struct {
	Root     workqueue.SliceID   `json:"root" doc:"the slice that failed first"`
	Run      workqueue.RunID     `json:"run"`
	Step     workqueue.Step      `json:"step"`
	Block    workqueue.Block     `json:"block"`
	Endpoint string              `json:"endpoint"`
	Kind     RootKind            `json:"kind" enum:"bad_entity,too_big,bad_combination,service_down,undecided"`
	Items    int                 `json:"items" doc:"in the chunk"`
	Culprits int                 `json:"culprits" doc:"items that failed alone, for good"`
	Ordinals []workqueue.Ordinal `json:"ordinals,omitempty" doc:"of the first ten culprits"`
	Slices   int                 `json:"slices" doc:"that it took beside the first"`
	FailedAt int                 `json:"failed_at" doc:"items in the smallest piece that failed"`
	WorkedAt int                 `json:"worked_at" doc:"items in the largest piece that worked; 0: none did"`
	Code     string              `json:"code" doc:"of the failure of the smallest piece"`
	Message  string              `json:"message"`
	Began    time.Time           `json:"began_at"`
	Ended    time.Time           `json:"ended_at" doc:"of the last piece so far"`
}

// Bisections is what became of the chunks of a run that failed as a whole.
type Bisections struct {
	Kinds    map[RootKind]int `json:"kinds" doc:"how many chunks of each kind"`
	Culprits int              `json:"culprits" doc:"items that failed alone, for good"`
	Slices   int              `json:"slices" doc:"that it took to find out"`
	Roots    []Bisection      `json:"roots" doc:"the chunks, those with culprits first, then the costliest"`
	More     int              `json:"more" doc:"chunks that are not listed"`
}

const (
	// pieceColumns goes with scanPieces. A slice of one item says which.
	pieceColumns = `
SELECT coalesce(s.root, s.id), s.run_id, s.step, s.block, coalesce(s.endpoint, ''), s.id,
       coalesce(s.parent, '00000000-0000-0000-0000-000000000000'), bit_count(s.mask)::int, s.cause,
       s.state IN ('scheduled', 'claimed', 'sent'),
       s.error_code IS NOT NULL AND NOT (bit_count(s.mask) = 1 AND NOT coalesce(s.error_retry, false)),
       coalesce(s.answered, 0) >= bit_count(s.mask),
       s.state = 'recorded' OR s.state = 'expired' AND s.error_code = 'deadline',
       s.block * 8192 + CASE WHEN bit_count(s.mask) = 1 THEN position(B'1' IN s.mask) - 1 ELSE 0 END,
       coalesce(s.error_code, ''), coalesce(s.error_message, ''), s.created_at, s.ended_at
FROM work_slice s `

	// The slices of a run are read once, by work_slice_block, and those of such families once more by their ids: how
	// many there are is not known while the run is young, and a join might go over all of them for each. An item that
	// the service itself asked to be tried again is in pieces of its own too, and is no failure of its chunk.
	familiesOfRun = pieceColumns + `
WHERE s.id = ANY (ARRAY(
    SELECT unnest(f.ids) FROM (
        SELECT array_agg(id) AS ids FROM work_slice WHERE run_id = $1 AND root IS NOT NULL GROUP BY root
        HAVING bool_or(cause IN ('bisect', 'exhausted', 'unreadable', 'breaker'))) f))
ORDER BY s.root, s.created_at, s.id`
)

// ReadBisections tells what became of the chunks of a run that failed as a whole, in all its generations, and lists at
// most limit of them. It reads every slice of the run.
func ReadBisections(ctx context.Context, db tracker.Querier, run workqueue.RunID, limit int) (Bisections, error) {
	out := Bisections{Kinds: map[RootKind]int{}, Roots: []Bisection{}}
	families, err := readFamilies(ctx, db, familiesOfRun, run)
	if err != nil {
		return out, fmt.Errorf("read the halved chunks of run %s: %w", run, err)
	}
	for i := range families {
		out.Roots = append(out.Roots, families[i].summary())
	}
	tellSizes(out.Roots, map[string]int{})
	for i := range out.Roots {
		b := &out.Roots[i]
		out.Kinds[b.Kind]++
		out.Culprits += b.Culprits
		out.Slices += b.Slices
	}
	slices.SortStableFunc(out.Roots, func(a, b Bisection) int {
		return cmp.Or(cmp.Compare(b.Culprits, a.Culprits), cmp.Compare(b.Slices, a.Slices))
	})
	if limit = max(limit, 0); len(out.Roots) > limit {
		out.More = len(out.Roots) - limit
		out.Roots = out.Roots[:limit]
	}
	return out, nil
}

// readFamilies runs a statement made of pieceColumns whose rows come root by root.
func readFamilies(ctx context.Context, db tracker.Querier, statement string, args ...any) ([]family, error) {
	rows := pg.Rows(ctx, db, statement, args...)
	var all []family
	var f family
	var p member
	failed, answered := false, false
	to := []any{&f.root, &f.run, &f.step, &f.block, &f.endpoint, &p.id, &p.parent, &p.items, &p.cause, &p.live, &failed,
		&answered, &p.counts, &p.at, &p.code, &p.message, &p.created, &p.ended}
	_, err := pgx.ForEachRow(rows, to, func() error {
		p.counts = p.counts && !workqueue.Throttled(p.code)
		p.how = endedWell
		switch {
		case p.code != "" && answered:
			p.how = EndedRefused
		case failed:
			p.how = EndedFailed
		}
		if len(all) == 0 || all[len(all)-1].root != f.root {
			all = append(all, family{f.root, f.run, f.step, f.block, f.endpoint, nil})
		}
		last := &all[len(all)-1]
		last.pieces = append(last.pieces, p)
		return nil
	})
	return all, err
}
