package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// AuditEntry is one thing that somebody did. It was written in the transaction that did it, and is never changed.
type AuditEntry struct {
	ID      int64            `json:"id" doc:"the newer the greater"`
	At      time.Time        `json:"at" doc:"by the clock of the database"`
	Actor   string           `json:"actor" doc:"who; tranche for what nodes did by themselves"`
	Action  string           `json:"action" doc:"what, like start, rerun, pause or endpoint_set"`
	Run     *workqueue.RunID `json:"run,omitempty" doc:"absent when it is about no single run"`
	Subject string           `json:"subject,omitempty" doc:"what else it is about, like an endpoint or a plan"`
	Detail  json.RawMessage  `json:"detail" doc:"what else there is to say, by name"`
	Before  json.RawMessage  `json:"before,omitempty" doc:"what it found of that which it changed, by name"`
	After   json.RawMessage  `json:"after,omitempty" doc:"what it made of it, by name"`
}

// AuditFilter chooses what Audit lists. What is zero does not matter.
type AuditFilter struct {
	Run    workqueue.RunID
	Actor  string
	Action string
	Since  time.Time
	Before int64 // the Next of the page before; 0: from the newest
	Limit  int   // 1 to MaxAudit; 0 means DefaultAudit
}

// The number of entries in one page.
const (
	DefaultAudit = 50
	MaxAudit     = 500
)

// AuditPage is some of the audit log, newest first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    int64        `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// The primary key or, for one run, audit_log_run, backwards. People make few entries, so that no index is needed to
// leave some out.
const listAudit = `
SELECT id, at, actor, action, run_id, subject, detail, before, after FROM audit_log
WHERE ($1::uuid IS NULL OR run_id = $1) AND ($2 = '' OR actor = $2) AND ($3 = '' OR action = $3)
    AND ($4::timestamptz IS NULL OR at >= $4) AND ($5 = 0::bigint OR id < $5)
ORDER BY id DESC
LIMIT $6`

// Audit lists what was done, newest first.
func (s Store) Audit(ctx context.Context, f AuditFilter) (AuditPage, error) {
	page := AuditPage{Entries: []AuditEntry{}}
	if !pg.ValidText(f.Actor) || !pg.ValidText(f.Action) {
		return page, nil // no entry can have them
	}
	limit := pg.Limit(f.Limit, DefaultAudit, MaxAudit)
	var run *workqueue.RunID
	if f.Run != (workqueue.RunID{}) {
		run = &f.Run
	}
	var since *time.Time
	if !f.Since.IsZero() {
		since = &f.Since
	}
	var err error
	page.Entries, err = pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[AuditEntry], listAudit, run, f.Actor, f.Action,
		since, f.Before, limit+1)
	if err != nil {
		return AuditPage{}, fmt.Errorf("read the audit log: %w", err)
	}
	if len(page.Entries) > limit {
		page.Entries = page.Entries[:limit]
		page.Next = page.Entries[limit-1].ID
	}
	return page, nil
}
