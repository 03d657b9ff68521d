package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Outcome is where an item stands as its owner sees it.
type Outcome string

// The outcomes. An item is done when every step is done with it, failed when one step is, and missing otherwise.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeMissing Outcome = "missing"
)

// ExportedItem is one item with its outcome. Result, of the last step, is set when it is done; Step, ErrorCode and
// ErrorMessage, of the first step that failed, when it failed.
type ExportedItem struct {
	Ordinal      Ordinal
	Key          string
	State        Outcome
	Step         string
	Result       []byte // valid until yield returns
	ContentType  string // empty means JSON
	ErrorCode    string
	ErrorMessage string
}

const exportRun = `
SELECT r.items, array_agg(s.step ORDER BY s.step), array_agg(s.name ORDER BY s.step)
FROM batchrun r JOIN run_step s ON s.run_id = r.id WHERE r.id = $1 GROUP BY r.id`

// Export yields the items of a run in the order of their ordinals, only those in one of the given states (none: all).
// Memory is constant: pages of at most 1024 items and of 8 MiB but for the item that fills it, each read at one moment.
// While yield runs, neither a connection nor a snapshot is held, so a slow reader is in nobody's way. An error from
// yield ends the export and is wrapped. The error wraps ErrNotFound when there is no such run.
func (s *Store) Export(ctx context.Context, id RunID, states []Outcome, yield func(*ExportedItem) error) error {
	pages := exportPages{store: s, run: id, states: states}
	var items int64
	err := s.pool.QueryRow(ctx, exportRun, id).Scan(&items, &pages.steps, &pages.names)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("export run %s: %w", id, err)
	}
	for from := Ordinal(0); int64(from) < items; {
		page, next, err := pages.read(ctx, from)
		if err != nil {
			return fmt.Errorf("export run %s from item %d: %w", id, from, err)
		}
		for i := range page {
			if err := yield(&page[i]); err != nil {
				return fmt.Errorf("export run %s, item %d: %w", id, page[i].Ordinal, err)
			}
		}
		from = next
	}
	return nil
}
