package collector

import (
	"context"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// RefusalNoted is how often a node notes that adds to a collector are refused, as long as they are.
const RefusalNoted = time.Minute

const (
	noteRefused = `
UPDATE collector
SET refused_since = coalesce(refused_since, tranche_now()), refused_at = tranche_now(), refused_for = $2
WHERE name = $1 AND state <> 'deleting'`

	// noteTaken forgets that adds were refused, unless another node says so still. Mostly it finds that nothing is known.
	noteTaken = `
UPDATE collector SET refused_since = NULL
WHERE name = $1 AND state <> 'deleting' AND refused_since IS NOT NULL
  AND ($2 OR refused_at < tranche_now() - $3::interval)`
)

// NoteRefused keeps that adds to a collector are refused, as what is stored with them cannot be had.
func (s Store) NoteRefused(ctx context.Context, name, problem string) error {
	if _, err := s.db.Pool.Exec(ctx, noteRefused, name, pg.Plain(problem)); err != nil {
		return fmt.Errorf("note that adds to collector %s are refused: %w", name, err)
	}
	return nil
}

// NoteTaken keeps that adds to a collector are taken. mine says that it was this node that noted their refusal; what
// others noted holds until they are silent.
func (s Store) NoteTaken(ctx context.Context, name string, mine bool) error {
	if _, err := s.db.Pool.Exec(ctx, noteTaken, name, mine, 2*RefusalNoted); err != nil {
		return fmt.Errorf("note that adds to collector %s are taken: %w", name, err)
	}
	return nil
}
