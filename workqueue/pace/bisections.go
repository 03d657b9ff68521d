package pace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Bisection is a chunk that failed entirely, and its outcome.
type Bisection struct {
	Root     workqueue.SliceID   `json:"root" doc:"the slice that failed first"`
	Run      workqueue.RunID     `json:"run"`
	Step     workqueue.Step      `json:"step"`
	Block    workqueue.Block     `json:"block"`
	Endpoint string              `json:"endpoint"`
	Kind     RootKind            `json:"kind" enum:"bad_entity,too_big,bad_combination,service_down,undecided"`
	Items    int                 `json:"items" doc:"in the chunk"`
	Culprits int                 `json:"culprits" doc:"items that failed alone, permanently"`
	Ordinals []workqueue.Ordinal `json:"ordinals,omitempty" doc:"of the first ten culprits"`
	Slices   int                 `json:"slices" doc:"that it took in addition to the first"`
	FailedAt int                 `json:"failed_at" doc:"items in the smallest piece that failed"`
	WorkedAt int                 `json:"worked_at" doc:"items in the largest piece that worked; 0: none did"`
	Code     string              `json:"code" doc:"of the failure of the smallest piece"`
	Message  string              `json:"message"`
	Began    time.Time           `json:"began_at"`
	Ended    time.Time           `json:"ended_at" doc:"of the last piece so far"`
}

// Bisections is the outcome of a run's chunks that failed entirely.
type Bisections struct {
	Kinds    map[RootKind]int `json:"kinds" doc:"how many chunks of each kind"`
	Culprits int              `json:"culprits" doc:"items that failed alone, permanently"`
	Slices   int              `json:"slices" doc:"that it took to find out"`
	Roots    []Bisection      `json:"roots" doc:"the chunks, those with culprits first, then the costliest"`
	More     int              `json:"more" doc:"chunks that are not listed"`
}

const (
	// pieceColumns matches scanPieces. A slice of one item includes its ordinal.
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

	// Reads the slices of a run once, by work_slice_block, and then the pieces of failed chunks by ID: their number
	// is unknown while the run is young, and a join might scan all slices for each. An item that the service itself
	// asked to retry is also in a separate slice, but is not a failure of its chunk.
	familiesOfRun = pieceColumns + `
WHERE s.id = ANY (ARRAY(
    SELECT unnest(f.ids) FROM (
        SELECT array_agg(id) AS ids FROM work_slice WHERE run_id = $1 AND root IS NOT NULL GROUP BY root
        HAVING bool_or(cause IN ('bisect', 'exhausted', 'unreadable', 'breaker'))) f))
ORDER BY s.root, s.created_at, s.id`
)

// ReadBisections returns the outcome of all chunks of a run that failed, listing limit. It reads every slice.
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

// readFamilies runs a statement based on pieceColumns whose rows are sorted by root.
func readFamilies(ctx context.Context, db tracker.Querier, statement string, args ...any) ([]family, error) {
	var all []family
	var f family
	var p member
	failed, answered := false, false
	to := []any{&f.root, &f.run, &f.step, &f.block, &f.endpoint, &p.id, &p.parent, &p.items, &p.cause, &p.live, &failed,
		&answered, &p.counts, &p.at, &p.code, &p.message, &p.created, &p.ended}
	err := pg.Each(pg.Rows(ctx, db, statement, args...), to, func() {
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
	})
	return all, err
}

// RootKind is the cause of a chunk's failure.
type RootKind string

// The kinds of chunks that failed entirely.
const (
	KindBadEntity      RootKind = "bad_entity"      // some of its items fail alone
	KindTooBig         RootKind = "too_big"         // it works in pieces, like other chunks of its endpoint
	KindBadCombination RootKind = "bad_combination" // it works in pieces, and is the only such chunk
	KindServiceDown    RootKind = "service_down"    // its endpoint was down
	KindUndecided      RootKind = "undecided"       // its pieces are still in progress
)

// tooBigRoots is how many chunks must work only in pieces before their size is to blame.
const tooBigRoots = 3

type member struct {
	id, parent workqueue.SliceID
	items      int
	cause      workqueue.Cause
	live       bool
	how        endedHow          // of one that ended
	counts     bool              // its service's action or silence ended it
	at         workqueue.Ordinal // of a single item
	code       string
	message    string
	created    time.Time
	ended      *time.Time
}

type family struct {
	root     workqueue.SliceID
	run      workqueue.RunID
	step     workqueue.Step
	block    workqueue.Block
	endpoint string
	pieces   []member
}

func (f *family) summary() Bisection {
	b := Bisection{Root: f.root, Run: f.run, Step: f.step, Block: f.block, Endpoint: f.endpoint,
		Slices: len(f.pieces) - 1, Kind: KindBadCombination}
	followed := map[workqueue.SliceID]bool{}
	for i := range f.pieces {
		followed[f.pieces[i].parent] = true
	}
	live, down, halved := false, false, false
	for i := range f.pieces {
		p := &f.pieces[i]
		b.Items = max(b.Items, p.items)
		live, down = live || p.live, down || p.cause == workqueue.CauseBreaker
		halved = halved || p.cause == workqueue.CauseBisect || p.cause == workqueue.CauseExhausted
		b.extend(p)
		b.outcome(p, followed[p.id])
	}
	switch {
	case b.Culprits > 0:
		b.Kind = KindBadEntity
	case live:
		b.Kind = KindUndecided
	case !halved, down && b.WorkedAt >= b.FailedAt: // what failed worked later, unchanged
		b.Kind = KindServiceDown
	}
	return b
}

// outcome takes the end of a piece. A single item that failed its chunk and was not retried is a culprit. One that
// got an error in its slot, even after retries, failed individually and failed no chunk.
func (b *Bisection) outcome(p *member, followed bool) {
	switch {
	case p.live || !p.counts || p.how == EndedRefused:
	case p.how == endedWell && p.code == "":
		b.WorkedAt = max(b.WorkedAt, p.items)
	default:
		b.failure(p)
		if p.items == 1 && !followed {
			b.culprit(p.at)
		}
	}
}

func (b *Bisection) extend(p *member) {
	if b.Began.IsZero() || p.created.Before(b.Began) {
		b.Began = p.created
	}
	if p.ended != nil && p.ended.After(b.Ended) {
		b.Ended = *p.ended
	}
}

func (b *Bisection) failure(p *member) {
	if b.FailedAt == 0 || p.items < b.FailedAt {
		b.FailedAt = p.items
		b.Code, b.Message = p.code, p.message
	}
}

func (b *Bisection) culprit(at workqueue.Ordinal) {
	b.Culprits++
	if len(b.Ordinals) < workqueue.MaxNamed {
		b.Ordinals = append(b.Ordinals, at)
	}
}

// tellSizes distinguishes too-big chunks from bad combinations: several failed at a size at which nothing of their
// endpoint worked. worked is the largest size otherwise known to work, by endpoint.
func tellSizes(all []Bisection, worked map[string]int) {
	for i := range all {
		b := &all[i]
		if b.Kind == KindBadCombination {
			worked[b.Endpoint] = max(worked[b.Endpoint], b.WorkedAt)
		}
	}
	alike := map[string]int{}
	for i := range all {
		if all[i].mayBeTooBig(worked) {
			alike[all[i].Endpoint]++
		}
	}
	for i := range all {
		if all[i].mayBeTooBig(worked) && alike[all[i].Endpoint] >= tooBigRoots {
			all[i].Kind = KindTooBig
		}
	}
}

func (b *Bisection) mayBeTooBig(worked map[string]int) bool {
	return b.Kind == KindBadCombination && b.FailedAt > worked[b.Endpoint]
}

const (
	// capWindow and capNewest bound the search for too-big chunks: by time, and to the slices that ended last.
	capWindow = 10 * time.Minute
	capNewest = 5000
	// capFor is how long larger chunks are not tried.
	capFor = time.Hour
)

const (
	// familiesOfEndpoint reads the newest entries of the index on endpoint and end; pieces by work_slice_block.
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

// ChunkCap is the outcome of a check for too-big chunks.
type ChunkCap struct {
	Endpoint string
	Changed  bool
	Items    int // the new cap
	Reason   string
}

// CheckTooBig checks whether chunks of an endpoint fail because of their size: several failed at a size at which
// nothing worked lately, and their pieces worked. Then chunks are limited to the largest size that worked, for one
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
	return out, pg.Wrap(err, "find chunks that are too big for endpoint %s", endpoint)
}

// tooBig returns how many chunks were too big, if any, their smallest failed piece and the largest that worked.
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
