package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// The states of a rule.
const (
	StateActive = "active"
	StatePaused = "paused"
)

// Text is a rule on its way onto the record. The caller has validated it.
type Text struct {
	Name   string
	Spec   json.RawMessage // in full
	Source string          // as people wrote it; valid UTF-8 without NUL
}

// AppliedAlert is the outcome of putting a rule on record.
type AppliedAlert struct {
	Name      string    `json:"name"`
	Version   int       `json:"version"`
	Unchanged bool      `json:"unchanged" doc:"it was so before: nothing was done"`
	Previous  int       `json:"previous,omitempty" doc:"the version before; absent when there was none"`
	State     string    `json:"state" enum:"active,paused" doc:"a paused rule stays paused"`
	ChangedBy string    `json:"changed_by"`
	ChangedAt time.Time `json:"changed_at"`
}

const (
	// A conflict waits for the other, and takes what it has written for what was there before.
	claimName = `
INSERT INTO alert (name, version, spec, source, created_by, changed_by, deleted_at)
VALUES ($1, 1, 'null', '', $2, $2, tranche_now())
ON CONFLICT DO NOTHING`

	// The row is held: those who change a rule, and who notes something for it, take turns.
	lockAlert = `
SELECT version, state, deleted_at IS NOT NULL, spec = $2::jsonb AND source = $3, spec, changed_by, changed_at
FROM alert WHERE name = $1
FOR NO KEY UPDATE`

	// One that was deleted begins anew, but for its number. Another text may have another receiver: it is asked at once.
	writeAlert = `
UPDATE alert
SET version = CASE WHEN spec = 'null' THEN 1 ELSE version + 1 END, spec = $2, source = $3, changed_by = $4,
    changed_at = tranche_now(), next_at = tranche_now(), failures = 0, failing_since = NULL, error = '',
    state = CASE WHEN deleted_at IS NULL THEN state ELSE 'active' END,
    created_by = CASE WHEN deleted_at IS NULL THEN created_by ELSE $4 END,
    created_at = CASE WHEN deleted_at IS NULL THEN created_at ELSE tranche_now() END,
    since = CASE WHEN deleted_at IS NULL THEN since ELSE tranche_now() END,
    looked_at = CASE WHEN deleted_at IS NULL THEN looked_at ELSE tranche_now() END,
    told_at = CASE WHEN deleted_at IS NULL THEN told_at END, deleted_at = NULL
WHERE name = $1
RETURNING version, changed_at`
)

// row is a rule as a change finds it.
type row struct {
	version   int
	state     string
	deleted   bool
	same      bool
	spec      json.RawMessage
	changedBy string
	changedAt time.Time
}

func lock(ctx context.Context, tx pgx.Tx, name string, spec json.RawMessage, source string) (r row, err error) {
	if spec == nil {
		spec = json.RawMessage("null")
	}
	err = tx.QueryRow(ctx, lockAlert, name, spec, source).Scan(&r.version, &r.state, &r.deleted, &r.same, &r.spec,
		&r.changedBy, &r.changedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("alert %q: %w", name, workqueue.ErrNotFound)
	}
	return r, err
}

// Apply puts a rule on record, or changes it, with a row in the audit log, which keeps what was there before. What is
// the same, text and meaning, changes nothing. What was told stays told; messages that wait go to the receiver of the
// new text.
func (s Store) Apply(ctx context.Context, text Text, actor string) (out AppliedAlert, err error) {
	actor = pg.Plain(actor)
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, claimName, text.Name, actor); err != nil {
			return err
		}
		was, err := lock(ctx, tx, text.Name, text.Spec, text.Source)
		if err != nil {
			return err
		}
		if was.same && !was.deleted {
			out = AppliedAlert{text.Name, was.version, true, 0, was.state, was.changedBy, was.changedAt}
			return nil
		}
		out = AppliedAlert{Name: text.Name, State: StateActive, ChangedBy: actor}
		change := ledger.Action{Actor: actor, Name: "alert_apply", Subject: text.Name}
		if !was.deleted {
			out.Previous, out.State = was.version, was.state
			change.Before = map[string]any{"version": was.version, "spec": was.spec}
		}
		if err := tx.QueryRow(ctx, writeAlert, text.Name, text.Spec, text.Source, actor).
			Scan(&out.Version, &out.ChangedAt); err != nil {
			return err
		}
		change.After = map[string]any{"version": out.Version, "spec": text.Spec}
		return ledger.AuditChange(ctx, tx, change)
	})
	if err != nil {
		return AppliedAlert{}, fmt.Errorf("apply alert %s: %w", text.Name, err)
	}
	return out, nil
}
