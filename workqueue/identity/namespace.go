package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Quotas limit what a namespace uses at a time; nil: no limit.
type Quotas struct {
	MaxRuns  *int64 `json:"max_runs,omitempty" doc:"runs that have not ended; absent: no limit"`
	MaxItems *int64 `json:"max_items,omitempty" doc:"items of those runs; absent: no limit"`

	MaxInFlight *int64 `json:"max_in_flight,omitempty" doc:"requests of its runs in flight; absent: no limit"`
	MaxBytes    *int64 `json:"max_bytes,omitempty" doc:"bytes that all its runs store, about; absent: no limit"`
}

// values are in the order of the columns.
func (q *Quotas) values() []any { return []any{&q.MaxRuns, &q.MaxItems, &q.MaxInFlight, &q.MaxBytes} }

func (q *Quotas) audited() map[string]any {
	doc := map[string]any{}
	for name, quota := range map[string]*int64{"max_runs": q.MaxRuns, "max_items": q.MaxItems,
		"max_in_flight": q.MaxInFlight, "max_bytes": q.MaxBytes} {
		if quota != nil {
			doc[name] = *quota
		}
	}
	return doc
}

// NamespaceView is a namespace.
type NamespaceView struct {
	Name string `json:"name"`
	Quotas
	Runs      int64     `json:"runs" doc:"that have not ended"`
	Items     int64     `json:"items" doc:"of those"`
	InFlight  int64     `json:"in_flight" doc:"requests of those"`
	Bytes     *int64    `json:"bytes,omitempty" doc:"that its runs store, about; absent without such a quota"`
	ChangedBy string    `json:"changed_by"`
	ChangedAt time.Time `json:"changed_at"`
}

// Few rows. Runs by batchrun_active, requests by work_slice_live.
const listNamespaces = `
SELECT n.name, n.max_runs, n.max_items, n.max_in_flight, n.max_bytes, coalesce(r.runs, 0), coalesce(r.items, 0)::bigint,
    coalesce(r.requests, 0)::bigint, CASE WHEN n.max_bytes IS NOT NULL THEN namespace_bytes(n.name) END,
    n.changed_by, n.changed_at
FROM namespace n LEFT JOIN (
    SELECT namespace, count(*) AS runs, sum(items) AS items, sum((
        SELECT count(*) FROM work_slice s WHERE s.run_id = b.id AND s.state IN ('claimed', 'sent'))) AS requests
    FROM batchrun b WHERE state IN ('loading', 'running') GROUP BY namespace) r ON r.namespace = n.name
WHERE $1::text[] IS NULL OR n.name = ANY ($1)
ORDER BY n.name`

// Namespaces lists the namespaces of the context's scope by name.
func (s Store) Namespaces(ctx context.Context) ([]NamespaceView, error) {
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[NamespaceView], listNamespaces, workqueue.Namespaces(ctx))
	return all, pg.Wrap(err, "list namespaces")
}

const (
	quotas = `max_runs, max_items, max_in_flight, max_bytes`

	// Starts in progress do not wait for a change, but a deletion for them.
	holdNamespace = `
SELECT ` + quotas + ` FROM namespace WHERE name = $1 FOR NO KEY UPDATE`

	holdDeleted = `
SELECT ` + quotas + ` FROM namespace WHERE name = $1 FOR UPDATE`

	setNamespace = `
INSERT INTO namespace (` + quotas + `, name, changed_by) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET (` + quotas + `) = ROW ($1, $2, $3, $4), changed_by = $6, changed_at = tranche_now()`

	// What still belongs to it; foreign keys cover what is made meanwhile.
	usesOfNamespace = `
SELECT what FROM (
    SELECT 'runs' AS what WHERE EXISTS (SELECT FROM batchrun WHERE namespace = $1)
    UNION ALL SELECT 'plans' WHERE EXISTS (SELECT FROM plan WHERE namespace = $1)
    UNION ALL SELECT 'schedules' WHERE EXISTS (SELECT FROM schedule WHERE namespace = $1)
    UNION ALL SELECT 'collectors' WHERE EXISTS (SELECT FROM collector WHERE namespace = $1)
    UNION ALL SELECT 'trackers' WHERE EXISTS (SELECT FROM tracker_service WHERE namespace = $1)
    UNION ALL SELECT 'alerts' WHERE EXISTS (SELECT FROM alert a WHERE namespace = $1
        AND (deleted_at IS NULL OR EXISTS (SELECT FROM alert_message m WHERE m.alert = a.name)))
    UNION ALL SELECT 'endpoints' WHERE EXISTS (SELECT FROM endpoint_setting WHERE $1 = ANY (namespaces))
    UNION ALL SELECT 'tokens' WHERE EXISTS (SELECT FROM api_token WHERE revoked_at IS NULL AND grants ? $1
        AND (expires_at IS NULL OR expires_at > tranche_now()))) u LIMIT 1`

	// The next namespace of this name is another.
	endGranted = `DELETE FROM web_session WHERE grants ? $1`
)

// SetNamespace makes a namespace, or changes its quotas, with an audit entry.
func (s Store) SetNamespace(ctx context.Context, name string, q Quotas, actor string) error {
	if err := workqueue.CheckNamespace(name); err != nil {
		return err
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var was Quotas
		change := ledger.Action{Actor: actor, Name: "namespace_set", Subject: name, After: q.audited()}
		err := tx.QueryRow(ctx, holdNamespace, name).Scan(was.values()...)
		if err == nil {
			change.Before = was.audited()
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, err := tx.Exec(ctx, setNamespace, append(q.values(), name, pg.Plain(actor))...); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, change)
	})
	return pg.Wrap(err, "set namespace %s", name)
}

// DeleteNamespace deletes a namespace that owns nothing, with an audit entry.
func (s Store) DeleteNamespace(ctx context.Context, name, actor string) error {
	if err := workqueue.CheckNamespace(name); err != nil {
		return err
	}
	if name == workqueue.DefaultNamespace {
		return workqueue.Conflict("the namespace default cannot be deleted: it owns what is made without naming a " +
			"namespace")
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var was Quotas
		err := tx.QueryRow(ctx, holdDeleted, name).Scan(was.values()...)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("namespace %q: %w", name, workqueue.ErrNotFound)
		}
		var uses string
		if err == nil {
			err = tx.QueryRow(ctx, usesOfNamespace, name).Scan(&uses)
		}
		switch {
		case err == nil:
			return workqueue.Conflict("namespace %s still has %s, deleted ones included while a record of them is kept; "+
				"only an empty one can be deleted", name, uses)
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		for _, statement := range []string{endGranted, `DELETE FROM namespace WHERE name = $1`} {
			if _, err := tx.Exec(ctx, statement, name); err != nil {
				return err
			}
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "namespace_delete", Subject: name,
			Before: was.audited()})
	})
	return pg.Wrap(err, "delete namespace %s", name)
}

// HasNamespace reports whether a namespace exists.
func (s Store) HasNamespace(ctx context.Context, name string) (has bool, err error) {
	err = s.db.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM namespace WHERE name = $1)`, name).Scan(&has)
	return has, pg.Wrap(err, "find namespace %s", name)
}

// owner finds the namespace of an object, by its primary key or the index of names.
func owner(kind string) string {
	switch kind {
	case "run":
		return `SELECT namespace FROM batchrun WHERE id = $1::text::uuid`
	case "plan":
		return `SELECT namespace FROM plan WHERE name = $1 ORDER BY version DESC LIMIT 1`
	case "schedule":
		return `SELECT namespace FROM schedule WHERE name = $1`
	case "collector":
		return `SELECT namespace FROM collector WHERE name = $1 AND state <> 'deleting'`
	case "alert":
		return `SELECT namespace FROM alert WHERE name = $1 AND deleted_at IS NULL`
	default: // tracker
		return `SELECT namespace FROM tracker_service WHERE batch_id = $1::text::uuid`
	}
}

// NamespaceOf returns the namespace of a run or tracker by ID, or of a plan, schedule, collector or alert by name. The
// error wraps ErrNotFound if it does not exist.
func (s Store) NamespaceOf(ctx context.Context, kind, ref string) (namespace string, err error) {
	if kind == "run" || kind == "tracker" {
		id, err := uuid.Parse(ref)
		if err != nil {
			return "", workqueue.ErrNotFound
		}
		ref = id.String() // other forms of it PostgreSQL does not read
	}
	if !pg.ValidText(ref) {
		return "", workqueue.ErrNotFound
	}
	err = s.db.Pool.QueryRow(ctx, owner(kind), ref).Scan(&namespace)
	return namespace, pg.NoRow(err, workqueue.ErrNotFound)
}

// orNone is never NULL.
func orNone(grants map[string]string) map[string]string {
	if grants == nil {
		return map[string]string{}
	}
	return grants
}
