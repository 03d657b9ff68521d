package plane

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const planTrace = `
SELECT coalesce(max(version), 0), coalesce(max(version) FILTER (WHERE deleted_at IS NULL), 0)
FROM plan WHERE name = $1`

// AbsentPlan says why a plan, or a version of it, is not there.
func AbsentPlan(ctx context.Context, q pg.RowQuerier, name string, version int) error {
	var ever, newest int
	if err := q.QueryRow(ctx, planTrace, name).Scan(&ever, &newest); err != nil {
		return fmt.Errorf("look for plan %s: %w", name, err)
	}
	switch {
	case ever == 0:
		return fmt.Errorf("plan %q: %w", name, workqueue.ErrNotFound)
	case newest == 0:
		return fmt.Errorf("plan %q was deleted: %w", name, workqueue.ErrNotFound)
	default:
		return fmt.Errorf("version %d of plan %q, whose newest is %d: %w", version, name, newest, workqueue.ErrNotFound)
	}
}
