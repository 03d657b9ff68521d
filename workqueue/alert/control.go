package alert

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ControlledAlert is a rule that somebody has paused, resumed or deleted.
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
    looked_at = CASE $2 WHEN 'active' THEN tranche_now() ELSE looked_at END
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

	// A pause after what failed is over: whoever tests has mended something.
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
