package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// GoneRun is a run that was deleted, or is being deleted.
type GoneRun struct {
	Run        workqueue.RunID `json:"run"`
	Name       string          `json:"name,omitempty"`
	Plan       string          `json:"plan"`
	Items      int64           `json:"items"`
	FinishedAt time.Time       `json:"finished_at"`
	DeletedAt  time.Time       `json:"deleted_at" doc:"from when on nobody found it"`
	Why        string          `json:"why" doc:"the limits that it was past, or the reason that was given"`
	By         string          `json:"by,omitempty" doc:"who deleted it; absent: it was past the limits"`
	Rows       int64           `json:"rows" doc:"that were deleted of it so far"`
	GoneAt     *time.Time      `json:"gone_at,omitempty" doc:"when nothing was left of it; absent while there is"`
}

// GoneFields are those of a [GoneRun].
const GoneFields = `run_id, name, plan, items, finished_at, deleted_at, why, deleted_by, deleted, gone_at`

const goneInRange = `
SELECT ` + GoneFields + ` FROM retention_run WHERE run_id BETWEEN $1 AND $2 ORDER BY run_id DESC LIMIT 2`

// GoneRuns reads runs that were removed.
func (s Store) GoneRuns(ctx context.Context, statement string, args ...any) ([]GoneRun, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[GoneRun], statement, args...)
	if err != nil {
		return nil, fmt.Errorf("read deleted runs: %w", err)
	}
	return found, nil
}

// GoneError is returned for a run that was deleted. It is an [workqueue.ErrNotFound].
type GoneError struct {
	Run GoneRun
}

func (e *GoneError) Error() string {
	if e.Run.By != "" {
		text := fmt.Sprintf("run %s was deleted at %s by %s", e.Run.Run, e.Run.DeletedAt.UTC().Format(time.RFC3339), e.Run.By)
		if e.Run.Why != "" {
			text += ": " + e.Run.Why
		}
		return text
	}
	return fmt.Sprintf("run %s was deleted at %s: it had ended at %s, and finished runs are kept by %s", e.Run.Run,
		e.Run.DeletedAt.UTC().Format(time.RFC3339), e.Run.FinishedAt.UTC().Format(time.RFC3339), e.Run.Why)
}

// Is makes it an [workqueue.ErrNotFound].
func (e *GoneError) Is(target error) bool { return target == workqueue.ErrNotFound }

// gone returns an error that says so when a reference is the id, or its beginning, of a run that was deleted.
func (s Store) gone(ctx context.Context, ref string) error {
	low, high, ok := pg.PrefixRange(ref)
	if !ok {
		return nil
	}
	found, err := s.GoneRuns(ctx, goneInRange, low, high)
	if err != nil || len(found) != 1 {
		return err
	}
	return &GoneError{found[0]}
}
