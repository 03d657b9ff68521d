package start

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
)

// planKind is how plans are stored: a row for each version; the newest is locked, deleted or not.
func planKind() ledger.Kind {
	return ledger.Kind{
		Name: "plan",
		Hold: `
SELECT version, 'active', deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, NULL::timestamptz, created_by,
    created_at, namespace
FROM plan WHERE name = $1
ORDER BY version DESC
LIMIT 1
FOR NO KEY UPDATE`,
	}
}

const (
	insertPlan = `
INSERT INTO plan (name, version, spec, source, created_by, namespace) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING version, created_at`

	deletePlan = `UPDATE plan SET deleted_at = tranche_now() WHERE name = $1 AND deleted_at IS NULL`
)

// ApplyPlan saves a plan under the next version of its name. Numbers are never reused.
func (s Store) ApplyPlan(
	ctx context.Context, doc workqueue.Document, actor string,
) (workqueue.AppliedDocument, error) {
	return planKind().Apply(ctx, s.db, &doc, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.AppliedDocument) error {
			return tx.QueryRow(ctx, insertPlan, doc.Name, was.Version+1, doc.Spec, doc.Source, out.ChangedBy,
				workqueue.Into(ctx)).
				Scan(&out.Version, &out.ChangedAt)
		})
}

// DeletePlan deletes all versions of a plan. Runs keep what they started with. Applied again, it has the next version.
func (s Store) DeletePlan(ctx context.Context, name, actor string) (workqueue.ControlledDocument, error) {
	return planKind().Set(ctx, s.db, name, workqueue.DocumentDeleted, actor,
		func(ctx context.Context, tx pgx.Tx, _ *ledger.Held, _ *workqueue.ControlledDocument) error {
			_, err := tx.Exec(ctx, deletePlan, name)
			return err
		})
}
