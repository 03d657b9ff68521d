// Package inspect reads runs, steps, items, slices, endpoints, nodes, the audit log and unpublished events, and
// counts the items of a run by a field of their payloads.
package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store reads the state of runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// AuditEntry is one action. It is written in the action's transaction and never changed.
type AuditEntry struct {
	ID      int64            `json:"id" doc:"the newer the greater"`
	At      time.Time        `json:"at" doc:"by the clock of the database"`
	Actor   string           `json:"actor" doc:"who did it; tranche for a node"`
	Action  string           `json:"action" doc:"what, like start, rerun, pause or endpoint_set"`
	Run     *workqueue.RunID `json:"run,omitempty" doc:"absent when it is about no single run"`
	Subject string           `json:"subject,omitempty" doc:"what else it is about, like an endpoint or a plan"`
	Detail  json.RawMessage  `json:"detail" doc:"what else there is to say, by name"`
	Before  json.RawMessage  `json:"before,omitempty" doc:"what it found of that which it changed, by name"`
	After   json.RawMessage  `json:"after,omitempty" doc:"what it made of it, by name"`
	Origin  json.RawMessage  `json:"origin,omitempty" doc:"token, session, certificate, address and request; absent: it was no request"`
	Seal    int64            `json:"seal,omitempty" doc:"its number in the chain; absent: not yet sealed"`
	Hash    string           `json:"hash,omitempty" doc:"of the chain up to it"`
}

// AuditFilter selects what Audit lists. Zero fields select everything.
type AuditFilter struct {
	Run    workqueue.RunID `json:"-"`
	Actor  string          `query:"actor" maxLength:"512" doc:"only actions of this actor; tranche: those of nodes"`
	Action string          `query:"action" maxLength:"64" doc:"only actions of this name" example:"rerun"`
	Since  time.Time       `query:"since" doc:"only actions then or later"`
	Before int64           `query:"before" minimum:"0" doc:"next of the previous page"` // 0: from the newest
	Limit  int             `query:"limit" minimum:"1" maximum:"500" default:"50"`       // 0 means DefaultAudit
}

// The number of entries on a page.
const (
	DefaultAudit = 50
	MaxAudit     = 500
	// MaxSearched limits the rows read for a page of a caller limited to namespaces.
	MaxSearched = 20_000
)

// AuditPage is a page of the audit log, newest first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    int64        `json:"next,omitempty" doc:"value of before (of an export: after) for the next page; absent on the last"`
}

// The primary key or, for one run, audit_log_run, backwards. Entries are few, so the other filters need no index.
const (
	auditFields = `
SELECT id, at, actor, action, run_id, subject, detail, before, after, origin, coalesce(seal, 0),
    coalesce(encode(hash, 'hex'), '')`
	auditColumns = auditFields + ` FROM audit_log`

	listAudit = auditColumns + `
WHERE ($1::uuid IS NULL OR run_id = $1) AND ($2 = '' OR actor = $2) AND ($3 = '' OR action = $3)
    AND ($4::timestamptz IS NULL OR at >= $4) AND id < coalesce(nullif($5::bigint, 0), 9223372036854775807)
    AND ($7::text[] IS NULL OR (SELECT r.namespace FROM batchrun r WHERE r.id = run_id) = ANY ($7))
    AND id >= coalesce($8::bigint, 0)
ORDER BY id DESC
LIMIT $6`

	// auditFloor bounds what a page of some namespaces reads; no row: nothing is older. Times of ids are a bit mixed.
	auditFloor = `
SELECT id, coalesce(at < $3::timestamptz - interval '1 hour', false) FROM audit_log
WHERE id < coalesce(nullif($1::bigint, 0), 9223372036854775807) ORDER BY id DESC OFFSET $2 LIMIT 1`

	chainedAudit = auditColumns + ` WHERE seal > $1 ORDER BY seal LIMIT $2`

	linkColumns = auditFields + `, salt, coalesce(encode(erased, 'hex'), '') FROM audit_log WHERE `
	linkRange   = `seal > $1 AND seal <= $2 ORDER BY seal LIMIT $3`
	links       = linkColumns + linkRange
	linksOfRun  = linkColumns + `run_id = $4 AND ` + linkRange
)

// ChainedAudit lists actions in the order of the chain, after a seal. New ones are there within seconds.
func (s Store) ChainedAudit(ctx context.Context, after int64, limit int) (AuditPage, error) {
	entries, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[AuditEntry], chainedAudit, after,
		pg.Limit(limit, MaxAudit, MaxAudit))
	if err != nil {
		return AuditPage{}, fmt.Errorf("read the audit log: %w", err)
	}
	page := AuditPage{Entries: entries}
	if n := len(page.Entries); n > 0 {
		page.Next = page.Entries[n-1].Seal
	}
	return page, nil
}

// ChainRow is an action with what its hash is computed from (audit_log.hash).
type ChainRow struct {
	AuditEntry

	Salt   uuid.UUID `json:"salt"`
	Erased string    `json:"erased,omitempty"`
}

// EachChainRow yields the actions after a seal, up to another one, in the order of the chain; of one run, unless that
// is zero. Memory is that of a page.
func (s Store) EachChainRow(
	ctx context.Context, run workqueue.RunID, after, last int64, yield func(*ChainRow) error,
) error {
	statement, args := links, []any{after, last, MaxAudit}
	if run != (workqueue.RunID{}) {
		statement, args = linksOfRun, append(args, run)
	}
	for {
		page, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[ChainRow], statement, args...)
		if err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		for i := range page {
			if err := yield(&page[i]); err != nil {
				return err
			}
			args[0] = page[i].Seal
		}
		if len(page) < MaxAudit {
			return nil
		}
	}
}

// Audit lists actions, newest first: all, or those on the runs of the context's scope. A page of those may have few
// entries, or none, and a next one.
func (s Store) Audit(ctx context.Context, f AuditFilter) (AuditPage, error) {
	page := AuditPage{Entries: []AuditEntry{}}
	if !pg.ValidText(f.Actor) || !pg.ValidText(f.Action) {
		return page, nil // no entry can have them
	}
	limit := pg.Limit(f.Limit, DefaultAudit, MaxAudit)
	run, since := pg.UnlessZero(f.Run), pg.UnlessZero(f.Since)
	var floor *int64
	var last bool
	var err error
	if run == nil && workqueue.Namespaces(ctx) != nil {
		err = pg.NoRow(s.db.Pool.QueryRow(ctx, auditFloor, f.Before, MaxSearched, since).Scan(&floor, &last), nil)
	}
	if err == nil {
		page.Entries, err = pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[AuditEntry], listAudit, run, f.Actor, f.Action,
			since, f.Before, limit+1, workqueue.Namespaces(ctx), floor)
	}
	switch {
	case err != nil:
		return AuditPage{}, fmt.Errorf("read the audit log: %w", err)
	case len(page.Entries) > limit:
		page.Entries = page.Entries[:limit]
		page.Next = page.Entries[limit-1].ID
	case floor != nil && !last:
		page.Next = *floor
	}
	return page, nil
}

// unpublishedEvents uses run_event_unpublished. At first, a completion is left to the node that committed it.
const unpublishedEvents = `
SELECT id, run_id, generation, kind, payload, at
FROM run_event WHERE published_at IS NULL AND (at, id) > ($1, $2) AND kind <> ALL ($3)
  AND (kind <> 'completed' OR at < tranche_now() - $5::interval) ORDER BY at, id LIMIT $4`

// ownCompletion is how long a completion is left to the node that committed it, which publishes it immediately.
const ownCompletion = time.Second

// EventPlace is a position in the order of events. The zero value is before all.
type EventPlace struct {
	At time.Time
	ID uuid.UUID
}

// UnpublishedEvents returns the unpublished events after a position, except of some kinds, oldest first. It leaves
// out completions of the last second, which the nodes that committed them publish.
func (s Store) UnpublishedEvents(
	ctx context.Context, after EventPlace, but []workqueue.EventKind, limit int,
) ([]workqueue.Event, error) {
	without := make([]string, 0, len(but)) // never NULL, which would match nothing
	for _, kind := range but {
		without = append(without, string(kind))
	}
	events, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[workqueue.Event],
		unpublishedEvents, after.At, after.ID, without, limit, ownCompletion)
	return events, pg.Wrap(err, "read unpublished events")
}

// EventsPublished marks events as published.
func (s Store) EventsPublished(ctx context.Context, ids []uuid.UUID) error {
	const mark = `UPDATE run_event SET published_at = tranche_now() WHERE id = ANY($1) AND published_at IS NULL`
	_, err := s.db.Pool.Exec(ctx, mark, ids)
	return pg.Wrap(err, "mark %d events as published", len(ids))
}

// GoneRun is a deleted run, or one being deleted.
type GoneRun struct {
	Run        workqueue.RunID `json:"run"`
	Name       string          `json:"name,omitempty"`
	Plan       string          `json:"plan"`
	Items      int64           `json:"items"`
	FinishedAt time.Time       `json:"finished_at"`
	DeletedAt  time.Time       `json:"deleted_at" doc:"when it left lists and searches"`
	Why        string          `json:"why" doc:"the limits that it was past, or the reason that was given"`
	By         string          `json:"by,omitempty" doc:"who deleted it; absent: it was past the limits"`
	Rows       int64           `json:"rows" doc:"that were deleted of it so far"`
	GoneAt     *time.Time      `json:"purged_at,omitempty" doc:"when nothing was left of it; absent while there is"`
}

// GoneFields are the columns of a [GoneRun].
const GoneFields = `run_id, name, plan, items, finished_at, deleted_at, why, deleted_by, deleted, purged_at`

const goneInRange = `
SELECT ` + GoneFields + ` FROM deleted_run WHERE run_id BETWEEN $1 AND $2 ORDER BY run_id DESC LIMIT 2`

// GoneRuns reads deleted runs with a statement that selects GoneFields.
func (s Store) GoneRuns(ctx context.Context, statement string, args ...any) ([]GoneRun, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[GoneRun], statement, args...)
	return found, pg.Wrap(err, "read deleted runs")
}

// GoneError is returned for a deleted run. It is a [workqueue.ErrNotFound].
type GoneError struct {
	Run GoneRun
}

func (e *GoneError) Error() string {
	if e.Run.By != "" {
		text := fmt.Sprintf("run %s was deleted at %s by %s", e.Run.Run, e.Run.DeletedAt.UTC().Format(time.RFC3339), e.Run.By)
		if e.Run.Why != "" {
			text += ": " + e.Run.Why
		}
		return text
	}
	return fmt.Sprintf("run %s was deleted at %s: it had ended at %s, and finished runs are kept by %s", e.Run.Run,
		e.Run.DeletedAt.UTC().Format(time.RFC3339), e.Run.FinishedAt.UTC().Format(time.RFC3339), e.Run.Why)
}

// Is makes it a [workqueue.ErrNotFound].
func (e *GoneError) Is(target error) bool { return target == workqueue.ErrNotFound }

// gone returns a GoneError if ref is the ID of a deleted run, or the start of one.
func (s Store) gone(ctx context.Context, ref string) error {
	low, high, ok := pg.PrefixRange(ref)
	if !ok || workqueue.Namespaces(ctx) != nil { // whose it was is not kept
		return nil
	}
	found, err := s.GoneRuns(ctx, goneInRange, low, high)
	if err != nil || len(found) != 1 {
		return err
	}
	return &GoneError{found[0]}
}

// LastRun is the reference to the run created last.
const LastRun = "last"

// The primary key backwards, or batchrun_namespace for each namespace.
const lastRun = `
SELECT id FROM (
    (SELECT id FROM batchrun WHERE $1::text[] IS NULL ORDER BY id DESC LIMIT 1)
    UNION ALL
    SELECT r.id FROM unnest($1::text[]) AS n (name) CROSS JOIN LATERAL (
        SELECT id FROM batchrun WHERE namespace = n.name AND (state <> '') IS TRUE ORDER BY id DESC LIMIT 1) r
) r ORDER BY id DESC LIMIT 1`

// Two index scans: batchrun_name, and a range of the primary key. $2 and $3 are null if ref cannot start one.
const matchingRuns = `
SELECT id FROM batchrun WHERE name = $1 AND ($5::text[] IS NULL OR namespace = ANY ($5))
UNION
SELECT id FROM batchrun WHERE id BETWEEN $2 AND $3 AND ($5::text[] IS NULL OR namespace = ANY ($5))
ORDER BY id DESC
LIMIT $4`

// Reads all runs; no index fits.
const runsWithPiece = `
SELECT id FROM batchrun
WHERE position($1 IN replace(id::text, '-', '')) > 0 AND ($3::text[] IS NULL OR namespace = ANY ($3))
ORDER BY id DESC
LIMIT $2`

// Resolve finds the run that ref means: LastRun, an ID, a name, the start of an ID, or else any part of an ID (at
// least MinPrefix digits, hyphens optional). It returns an AmbiguousError with the newest matches if several runs
// fit. Otherwise the error wraps ErrNotFound, and is a GoneError if the run was deleted. Runs out of the context's
// [workqueue.Scope] do not exist.
func (s Store) Resolve(ctx context.Context, ref string) (workqueue.RunID, error) {
	ids, err := s.matches(ctx, strings.TrimSpace(ref))
	switch {
	case err != nil:
		return workqueue.RunID{}, fmt.Errorf("look up run %q: %w", ref, err)
	case len(ids) == 1:
		return ids[0], nil
	case len(ids) > 1:
		return workqueue.RunID{}, &workqueue.AmbiguousError{Ref: ref, Matches: ids}
	case ref == LastRun:
		return workqueue.RunID{}, fmt.Errorf("there is no run yet: %w", workqueue.ErrNotFound)
	default:
		if err := s.gone(ctx, strings.TrimSpace(ref)); err != nil {
			return workqueue.RunID{}, err
		}
		return workqueue.RunID{}, fmt.Errorf("no run has ID or name %q: %w", ref,
			workqueue.ErrNotFound)
	}
}

// Visible returns which runs are in the context's [workqueue.Scope], by their IDs as text.
func (s Store) Visible(ctx context.Context, ids []workqueue.RunID) (map[string]bool, error) {
	const visible = `SELECT id FROM batchrun WHERE id = ANY ($1) AND ($2::text[] IS NULL OR namespace = ANY ($2))`
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], visible, ids, workqueue.Namespaces(ctx))
	if err != nil {
		return nil, fmt.Errorf("find runs: %w", err)
	}
	all := map[string]bool{}
	for _, id := range found {
		all[id.String()] = true
	}
	return all, nil
}

func (s Store) matches(ctx context.Context, ref string) ([]workqueue.RunID, error) {
	if ref == LastRun {
		return pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], lastRun, workqueue.Namespaces(ctx))
	}
	if !pg.ValidText(ref) {
		return nil, nil
	}
	var low, high *uuid.UUID
	if lo, hi, ok := pg.PrefixRange(ref); ok {
		low, high = &lo, &hi
	}
	ids, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], matchingRuns, ref, low, high, pg.MaxMatches,
		workqueue.Namespaces(ctx))
	if piece, ok := pg.Piece(ref); ok && err == nil && len(ids) == 0 {
		return pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runsWithPiece, piece, pg.MaxMatches,
			workqueue.Namespaces(ctx))
	}
	return ids, err
}
