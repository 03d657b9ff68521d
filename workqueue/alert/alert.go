// Package alert keeps rules of who is told of what, what they have seen and told, and the messages to their receivers.
//
// A condition is told once: it stands in a row of its rule's until it is over, and is marked in the transaction that
// makes the message about it. Of a group at most one message waits; what changes meanwhile is told by the next. An
// attempt at a message is counted, under the leader's lease, before it is made, and what came of it is noted for that
// count only.
package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store is the database for alerts. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

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

	// One that was deleted begins again, but for its number. Another text may have another receiver: it is asked at once.
	writeAlert = `
UPDATE alert
SET version = CASE WHEN spec = 'null' THEN 1 ELSE version + 1 END, spec = $2, source = $3, changed_by = $4,
    changed_at = tranche_now(), next_at = tranche_now(), failures = 0, failing_since = NULL, error = '',
    state = CASE WHEN deleted_at IS NULL THEN state ELSE 'active' END,
    created_by = CASE WHEN deleted_at IS NULL THEN created_by ELSE $4 END,
    created_at = CASE WHEN deleted_at IS NULL THEN created_at ELSE tranche_now() END,
    since = CASE WHEN deleted_at IS NULL THEN since ELSE tranche_now() END,
    last_checked_at = CASE WHEN deleted_at IS NULL THEN last_checked_at ELSE tranche_now() END,
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

// ControlledAlert is a rule that someone has paused, resumed or deleted.
type ControlledAlert struct {
	Name      string `json:"name"`
	State     string `json:"state" enum:"active,paused,deleted"`
	Unchanged bool   `json:"unchanged" doc:"it was so before: nothing was done"`
	Waiting   int64  `json:"waiting" doc:"messages not delivered yet: they wait until it is resumed, or are dropped"`
}

const (
	setAlert = `
UPDATE alert SET state = $2, changed_by = $3, changed_at = tranche_now(), next_at = tranche_now(),
    since = CASE $2 WHEN 'active' THEN tranche_now() ELSE since END,
    last_checked_at = CASE $2 WHEN 'active' THEN tranche_now() ELSE last_checked_at END
WHERE name = $1`

	countWaiting = `SELECT count(*) FROM alert_message WHERE alert = $1 AND state = 'waiting'`

	endAlert = `
UPDATE alert SET deleted_at = tranche_now(), changed_by = $2, changed_at = tranche_now(), failures = 0,
    failing_since = NULL, error = ''
WHERE name = $1`

	dropMessages = `
UPDATE alert_message SET state = 'dropped', ended_at = tranche_now() WHERE alert = $1 AND state = 'waiting'`

	forgetConditions = `DELETE FROM alert_condition WHERE alert = $1`
)

func held(ctx context.Context, tx pgx.Tx, name string) (was row, out ControlledAlert, err error) {
	if !pg.ValidText(name) {
		return was, out, fmt.Errorf("alert %q: %w", name, workqueue.ErrNotFound)
	}
	if was, err = lock(ctx, tx, name, nil, ""); err == nil && was.deleted {
		err = fmt.Errorf("alert %q was deleted: %w", name, workqueue.ErrNotFound)
	}
	if err == nil {
		out.Name = name
		err = tx.QueryRow(ctx, countWaiting, name).Scan(&out.Waiting)
	}
	return was, out, err
}

// Set pauses a rule, or resumes it. A paused rule tells nothing, its messages that wait included. Once it is resumed it
// goes on with what holds then; what only happened meanwhile, like a completion, is not told.
func (s Store) Set(ctx context.Context, name, state, actor string) (out ControlledAlert, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var was row
		if was, out, err = held(ctx, tx, name); err != nil {
			return err
		}
		out.State = state
		if out.Unchanged = was.state == state; out.Unchanged {
			return nil
		}
		if _, err := tx.Exec(ctx, setAlert, name, state, pg.Plain(actor)); err != nil {
			return err
		}
		verb := map[string]string{StatePaused: "alert_pause", StateActive: "alert_resume"}[state]
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: verb, Subject: name,
			Before: map[string]any{"state": was.state}, After: map[string]any{"state": state}})
	})
	if err != nil {
		return ControlledAlert{}, fmt.Errorf("set alert %s %s: %w", name, state, err)
	}
	return out, nil
}

// Delete takes a rule off the record, and drops what waits to be told. AppliedAlert again, it has the next version.
func (s Store) Delete(ctx context.Context, name, actor string) (out ControlledAlert, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var was row
		if was, out, err = held(ctx, tx, name); err != nil {
			return err
		}
		out.State = "deleted"
		if _, err := tx.Exec(ctx, endAlert, name, pg.Plain(actor)); err != nil {
			return err
		}
		for _, sql := range []string{dropMessages, forgetConditions} {
			if _, err := tx.Exec(ctx, sql, name); err != nil {
				return err
			}
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "alert_delete", Subject: name,
			Before: map[string]any{"state": was.state, "spec": was.spec}})
	})
	if err != nil {
		return ControlledAlert{}, fmt.Errorf("delete alert %s: %w", name, err)
	}
	return out, nil
}

const (
	// Another test that waits still is the same wish.
	insertTest = `
INSERT INTO alert_message (id, alert, what, grp, severity, body) VALUES ($1, $2, 'test', 'test', 'info', $3)
ON CONFLICT (alert, grp) WHERE state = 'waiting' DO NOTHING`

	waitingTest = `SELECT id FROM alert_message WHERE alert = $1 AND grp = 'test' AND state = 'waiting'`

	// A pause after what failed is over: whoever tests has fixed something.
	retryNow = `UPDATE alert SET next_at = tranche_now() WHERE name = $1`
)

// Test has a message sent that says that it is a test, also by a paused rule. It is tried once.
func (s Store) Test(ctx context.Context, name string, body json.RawMessage, actor string) (id uuid.UUID, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := held(ctx, tx, name); err != nil {
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
	if err != nil {
		return id, fmt.Errorf("test alert %s: %w", name, err)
	}
	return id, nil
}
