package workqueue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Engine is the actor of what nodes do by themselves.
const Engine = "tranche"

// action is an operator's action on its way into the audit log.
type action struct {
	actor   string
	name    string // what was done: start, pause, endpoint_set, …
	run     RunID  // zero when it is about no single run
	subject string // what it is about instead: an endpoint, a plan
	detail  map[string]any
	before  map[string]any // what was there, as far as the action changed it; nil: nothing
	after   map[string]any
}

const insertAudit = `
INSERT INTO audit_log (actor, action, run_id, subject, detail, before, after)
VALUES ($1, $2, nullif($3, '00000000-0000-0000-0000-000000000000'::uuid), $4, $5, $6, $7)`

// auditChange notes an action in the transaction that carries it out, in the audit log and with the request for it.
func auditChange(ctx context.Context, tx pgx.Tx, a action) error {
	docs := make([][]byte, 3)
	for i, m := range []map[string]any{a.detail, a.before, a.after} {
		if m == nil {
			continue
		}
		var err error
		if docs[i], err = json.Marshal(m); err != nil {
			return fmt.Errorf("audit %s: %w", a.name, err)
		}
	}
	if docs[0] == nil {
		docs[0] = []byte("{}")
	}
	err := later(ctx, tx, insertAudit, plain(a.actor), a.name, a.run, plain(a.subject), docs[0], docs[1], docs[2])
	if err != nil {
		return fmt.Errorf("audit %s: %w", a.name, err)
	}
	done := CarriedOut{Action: a.name, Subject: plain(a.subject)}
	if a.run != (RunID{}) {
		done.Run = &a.run
	}
	return noteCarriedOut(ctx, tx, done)
}
