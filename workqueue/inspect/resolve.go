package inspect

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// LastRun is the reference that means the run that was made last.
const LastRun = "last"

const lastRun = `SELECT id FROM batchrun ORDER BY id DESC LIMIT 1` // the primary key, backwards

// Two index scans: batchrun_name, and a range of the primary key. $2 and $3 are null when the reference cannot be the
// beginning of an id.
const matchingRuns = `
SELECT id FROM batchrun WHERE name = $1
UNION
SELECT id FROM batchrun WHERE id BETWEEN $2 AND $3
ORDER BY id DESC
LIMIT $4`

// All runs are read. Nothing else fits, then.
const runsWithPiece = `
SELECT id FROM batchrun WHERE position($1 IN replace(id::text, '-', '')) > 0
ORDER BY id DESC
LIMIT $2`

// Resolve finds the run that a person means by ref: LastRun, an id, a name, the beginning of an id, or else any piece
// of
// one (MinPrefix digits or more, hyphens optional). It returns an AmbiguousError with the newest matches when several
// runs fit, and an error that wraps ErrNotFound when none does, a GoneError when it was deleted.
func (s Store) Resolve(ctx context.Context, ref string) (workqueue.RunID, error) {
	ids, err := s.matches(ctx, strings.TrimSpace(ref))
	switch {
	case err != nil:
		return workqueue.RunID{}, fmt.Errorf("look up run %q: %w", ref, err)
	case len(ids) == 1:
		return ids[0], nil
	case len(ids) > 1:
		return workqueue.RunID{}, &workqueue.AmbiguousError{Ref: ref, Matches: ids}
	case ref == LastRun:
		return workqueue.RunID{}, fmt.Errorf("there is no run yet: %w", workqueue.ErrNotFound)
	default:
		if err := s.gone(ctx, strings.TrimSpace(ref)); err != nil {
			return workqueue.RunID{}, err
		}
		return workqueue.RunID{}, fmt.Errorf("no run has the id, a piece of an id or the name %q: %w", ref,
			workqueue.ErrNotFound)
	}
}

func (s Store) matches(ctx context.Context, ref string) ([]workqueue.RunID, error) {
	if ref == LastRun {
		return pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], lastRun)
	}
	if !pg.ValidText(ref) {
		return nil, nil
	}
	var low, high *uuid.UUID
	if lo, hi, ok := pg.PrefixRange(ref); ok {
		low, high = &lo, &hi
	}
	ids, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], matchingRuns, ref, low, high, pg.MaxMatches)
	if piece, ok := pg.Piece(ref); ok && err == nil && len(ids) == 0 {
		return pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runsWithPiece, piece, pg.MaxMatches)
	}
	return ids, err
}
