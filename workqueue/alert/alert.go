// Package alert stores alert rules, the conditions they have seen and reported, and the messages to their receivers.
//
// A condition is reported once: it stays in a row of its rule until it ends, marked in the transaction that creates
// its message. At most one message of a group waits; later changes go into the next. An attempt is counted, under
// the leader's lease, before it is made, and its result is recorded only for that count.
package alert

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store reads and writes alerts. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Owner returns the namespace that owns a rule: the only one that it is limited to, or else none, but the installation.
func Owner(namespaces []string) string {
	if len(namespaces) == 1 {
		return namespaces[0]
	}
	return "*"
}

// kind is how rules are stored. A rule's row serializes its changes and notes.
func kind() ledger.Kind {
	return ledger.Kind{
		Name: "alert",
		Hold: `
SELECT version, state, deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, NULL::timestamptz, changed_by,
    changed_at, namespace
FROM alert WHERE name = $1
FOR NO KEY UPDATE`,
		Left:  `SELECT count(*), 0 FROM alert_message WHERE alert = $1 AND state = 'waiting'`,
		Moves: true,
	}
}

const (
	// A namespace is not deleted meanwhile.
	unknownNamespace = `
WITH there AS MATERIALIZED (
    SELECT name FROM namespace WHERE $1::jsonb->'namespaces' ? name ORDER BY name FOR KEY SHARE)
SELECT k FROM jsonb_array_elements_text($1::jsonb->'namespaces') k
WHERE NOT EXISTS (SELECT FROM there WHERE name = k) LIMIT 1`

	// A deleted rule starts again with the next version. A new receiver is tried immediately.
	writeAlert = `
INSERT INTO alert AS a (name, version, spec, source, created_by, changed_by) VALUES ($1, 1, $2, $3, $4, $4)
ON CONFLICT (name) DO UPDATE
SET version = a.version + 1, spec = $2, source = $3, changed_by = $4,
    changed_at = tranche_now(), next_at = tranche_now(), failures = 0, failing_since = NULL, error = '',
    state = CASE WHEN a.deleted_at IS NULL THEN a.state ELSE 'active' END,
    created_by = CASE WHEN a.deleted_at IS NULL THEN a.created_by ELSE $4 END,
    created_at = CASE WHEN a.deleted_at IS NULL THEN a.created_at ELSE tranche_now() END,
    since = CASE WHEN a.deleted_at IS NULL THEN a.since ELSE tranche_now() END,
    last_checked_at = CASE WHEN a.deleted_at IS NULL THEN a.last_checked_at ELSE tranche_now() END,
    notified_at = CASE WHEN a.deleted_at IS NULL THEN a.notified_at END, deleted_at = NULL
RETURNING version, changed_at`

	deleteMessages = `DELETE FROM alert_message WHERE alert = $1`
)

// Apply creates or changes a rule, owned by the namespace in its text. Reported conditions stay reported; waiting
// messages go to the new receiver. One that moves loses both: they are about the namespaces that it had.
func (s Store) Apply(ctx context.Context, doc workqueue.Document, actor string) (
	none workqueue.AppliedDocument, _ error,
) {
	var spec struct{ Namespaces []string }
	if err := json.Unmarshal(doc.Spec, &spec); err != nil {
		return none, pg.Wrap(err, "apply alert %s", doc.Name)
	}
	ctx = workqueue.InScope(ctx, workqueue.Scope{Namespaces: workqueue.Namespaces(ctx), Into: Owner(spec.Namespaces)})
	return kind().Apply(ctx, s.db, &doc, actor,
		func(ctx context.Context, tx pgx.Tx, was *ledger.Held, out *workqueue.AppliedDocument) error {
			unknown, err := pg.One(ctx, tx, pgx.RowTo[string], unknownNamespace, doc.Spec)
			if err == nil {
				return &workqueue.UnknownNamespaceError{Name: unknown}
			}
			err = pg.NoRow(err, nil)
			for _, sql := range []string{deleteMessages, forgetConditions} {
				if err == nil && was.Version > 0 && was.Namespace != workqueue.Into(ctx) {
					_, err = tx.Exec(ctx, sql, doc.Name)
				}
			}
			if err != nil {
				return err
			}
			return tx.QueryRow(ctx, writeAlert, doc.Name, doc.Spec, doc.Source, out.ChangedBy).
				Scan(&out.Version, &out.ChangedAt)
		})
}

const (
	setAlert = `
UPDATE alert SET state = $2, changed_by = $3, changed_at = tranche_now(), next_at = tranche_now(),
    since = CASE $2 WHEN 'active' THEN tranche_now() ELSE since END,
    last_checked_at = CASE $2 WHEN 'active' THEN tranche_now() ELSE last_checked_at END
WHERE name = $1`

	endAlert = `
UPDATE alert SET deleted_at = tranche_now(), changed_by = $2, changed_at = tranche_now(), failures = 0,
    failing_since = NULL, error = ''
WHERE name = $1`

	dropMessages = `
UPDATE alert_message SET state = 'dropped', ended_at = tranche_now() WHERE alert = $1 AND state = 'waiting'`

	forgetConditions = `DELETE FROM alert_condition WHERE alert = $1`
)

// Set pauses, resumes or deletes a rule. A paused rule sends nothing, not even waiting messages. Resumed, it
// continues with the current conditions; one-time events meanwhile, like completions, are not reported. Deleting
// drops waiting messages; applied again, the rule has the next version.
func (s Store) Set(ctx context.Context, name, state, actor string) (workqueue.ControlledDocument, error) {
	return kind().Set(ctx, s.db, name, state, actor,
		func(ctx context.Context, tx pgx.Tx, _ *ledger.Held, _ *workqueue.ControlledDocument) error {
			if state != workqueue.DocumentDeleted {
				_, err := tx.Exec(ctx, setAlert, name, state, pg.Plain(actor))
				return err
			}
			if _, err := tx.Exec(ctx, endAlert, name, pg.Plain(actor)); err != nil {
				return err
			}
			for _, sql := range []string{dropMessages, forgetConditions} {
				if _, err := tx.Exec(ctx, sql, name); err != nil {
					return err
				}
			}
			return nil
		})
}

const (
	// A test that already waits serves this request, too.
	insertTest = `
INSERT INTO alert_message (id, alert, what, grp, severity, body) VALUES ($1, $2, 'test', 'test', 'info', $3)
ON CONFLICT (alert, grp) WHERE state = 'waiting' DO NOTHING`

	waitingTest = `SELECT id FROM alert_message WHERE alert = $1 AND grp = 'test' AND state = 'waiting'`

	// Ends the pause after a failure: testing suggests that the cause was fixed.
	retryNow = `UPDATE alert SET next_at = tranche_now() WHERE name = $1`
)

// Test sends a test message, even for a paused rule. It is tried once.
func (s Store) Test(ctx context.Context, name string, body json.RawMessage, actor string) (id uuid.UUID, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := kind().Find(ctx, tx, name); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insertTest, uuid.Must(uuid.NewV7()), name, body); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, waitingTest, name).Scan(&id); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, retryNow, name); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "alert_test", Subject: name,
			After: map[string]any{"message": id}})
	})
	return id, pg.Wrap(err, "test alert %s", name)
}
