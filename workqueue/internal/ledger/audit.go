package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Action is an operator's action on its way into the audit log.
type Action struct {
	Actor   string
	Name    string          // what was done: start, pause, endpoint_set, …
	Run     workqueue.RunID // zero when it is about no single run
	Subject string          // what it is about instead: an endpoint, a plan
	Detail  map[string]any
	Before  map[string]any // what was there, as far as the action changed it; nil: nothing
	After   map[string]any
}

const insertAudit = `
INSERT INTO audit_log (actor, action, run_id, subject, detail, before, after)
VALUES ($1, $2, nullif($3, '00000000-0000-0000-0000-000000000000'::uuid), $4, $5, $6, $7)`

// AuditChange notes an action in the transaction that carries it out, in the audit log and with the request for it.
func AuditChange(ctx context.Context, tx pgx.Tx, a Action) error {
	docs := make([][]byte, 3)
	for i, m := range []map[string]any{a.Detail, a.Before, a.After} {
		if m == nil {
			continue
		}
		var err error
		if docs[i], err = json.Marshal(m); err != nil {
			return fmt.Errorf("audit %s: %w", a.Name, err)
		}
	}
	if docs[0] == nil {
		docs[0] = []byte("{}")
	}
	err := pg.Later(ctx, tx, insertAudit, pg.Plain(a.Actor), a.Name, a.Run, pg.Plain(a.Subject), docs[0], docs[1], docs[2])
	if err != nil {
		return fmt.Errorf("audit %s: %w", a.Name, err)
	}
	done := workqueue.CarriedOut{Action: a.Name, Subject: pg.Plain(a.Subject)}
	if a.Run != (workqueue.RunID{}) {
		done.Run = &a.Run
	}
	return NoteCarriedOut(ctx, tx, done)
}
