package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// LastRun is the reference that means the run that was made last.
const LastRun = "last"

// MinPrefix is the least number of hexadecimal digits that count as the beginning of an id.
const MinPrefix = 4

// maxMatches bounds the ids that an AmbiguousError lists.
const maxMatches = 10

const lastRun = `SELECT id FROM batchrun ORDER BY id DESC LIMIT 1` // the primary key, backwards

// Two index scans: batchrun_name, and a range of the primary key. $2 and $3 are null when the reference cannot be the
// beginning of an id.
const matchingRuns = `
SELECT id FROM batchrun WHERE name = $1
UNION
SELECT id FROM batchrun WHERE id BETWEEN $2 AND $3
ORDER BY id DESC
LIMIT $4`

// Resolve finds the run that a person means by ref: LastRun, an id, the beginning of an id (MinPrefix digits or more,
// hyphens optional) or a name. It returns an AmbiguousError with the newest matches when several runs fit, and an error
// that wraps ErrNotFound when none does, a GoneError when it was deleted.
func (s *Store) Resolve(ctx context.Context, ref string) (RunID, error) {
	ids, err := s.matches(ctx, strings.TrimSpace(ref))
	switch {
	case err != nil:
		return RunID{}, fmt.Errorf("look up run %q: %w", ref, err)
	case len(ids) == 1:
		return ids[0], nil
	case len(ids) > 1:
		return RunID{}, &AmbiguousError{Ref: ref, Matches: ids}
	case ref == LastRun:
		return RunID{}, fmt.Errorf("there is no run yet: %w", ErrNotFound)
	default:
		if err := s.gone(ctx, strings.TrimSpace(ref)); err != nil {
			return RunID{}, err
		}
		return RunID{}, fmt.Errorf("no run has the id, the beginning of an id or the name %q: %w", ref, ErrNotFound)
	}
}

func (s *Store) matches(ctx context.Context, ref string) ([]RunID, error) {
	if ref == LastRun {
		return collectRunIDs(s.pool.Query(ctx, lastRun))
	}
	if !validText(ref) {
		return nil, nil
	}
	var low, high *uuid.UUID
	if lo, hi, ok := prefixRange(ref); ok {
		low, high = &lo, &hi
	}
	return collectRunIDs(s.pool.Query(ctx, matchingRuns, ref, low, high, maxMatches))
}

func collectRunIDs(rows pgx.Rows, err error) ([]RunID, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[RunID])
}

// prefixRange returns the least and the greatest id that begin with the digits of ref.
func prefixRange(ref string) (low, high uuid.UUID, ok bool) {
	digits := strings.ReplaceAll(ref, "-", "")
	if len(digits) < MinPrefix || len(digits) > 32 {
		return low, high, false
	}
	low, errLow := uuid.Parse(digits + strings.Repeat("0", 32-len(digits)))
	high, errHigh := uuid.Parse(digits + strings.Repeat("f", 32-len(digits)))
	return low, high, errors.Join(errLow, errHigh) == nil
}

// validText reports whether PostgreSQL can hold s: what it cannot hold, no run is called.
func validText(s string) bool {
	return !strings.Contains(s, "\x00") && strings.ToValidUTF8(s, "") == s
}
