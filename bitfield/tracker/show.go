package tracker

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// StateExpired is the state of a tracker that was idle for too long; its batch is cancelled.
const StateExpired State = "expired"

// Summary is a tracker without item counts. Its fields match summaryColumns.
type Summary struct {
	ID          uuid.UUID
	Namespace   string
	Owner       string
	Key         string // empty: none
	State       State
	Items       int64
	Groups      int
	OpenGroups  int // groups with pending items
	CreatedBy   string
	CreatedAt   time.Time
	ActiveAt    time.Time // last recorded activity; the real one may be later, by up to a twentieth of the ages
	SealedAt    *time.Time
	CompletedAt *time.Time
	ExpiredAt   *time.Time
	OpenIdle    time.Duration
	SealedIdle  time.Duration
	Keep        time.Duration

	WebhookURL      string // empty: none
	WebhookSecret   string // the secret's name
	WebhookState    WebhookState
	WebhookAttempts int
	WebhookNextAt   *time.Time
	WebhookError    string // of the last attempt
}

// Info is a tracker with item counts at one moment. Items = Pending + Done + Failed.
type Info struct {
	Summary

	Pending int64
	Done    int64
	Failed  int64
	Codes   []CodeCount // of failed items, the most frequent first, at most 100
}

// CodeCount is the number of items that failed with a code.
type CodeCount struct {
	Code  string
	Items int64
}

const summaryColumns = `
s.batch_id, s.namespace, s.owner, coalesce(s.key, ''), CASE b.state WHEN 'cancelled' THEN 'expired' ELSE b.state END,
b.items, b.groups, b.open_groups, s.created_by, b.created_at, greatest(s.active_at, b.active_at), b.sealed_at,
b.completed_at, s.expired_at, s.open_idle, s.sealed_idle, s.keep, coalesce(s.webhook_url, ''),
coalesce(s.webhook_secret, ''), s.webhook_state, s.webhook_attempts,
CASE s.webhook_state WHEN 'due' THEN s.webhook_next_at END, coalesce(s.webhook_error, '')`

// showSQL takes no locks. It reads all groups, a kilobyte each, and all failed masks: 160 MB for a billion items.
const showSQL = `
WITH code AS MATERIALIZED (
    SELECT code, sum(bit_count(mask))::bigint AS items FROM tracker_failed WHERE batch_id = $1 GROUP BY code
), top AS (
    SELECT code, items FROM code ORDER BY items DESC, code LIMIT 100
)
SELECT ` + summaryColumns + `,
    coalesce((SELECT sum(bit_count(pending)) FROM tracker_group g WHERE g.batch_id = $1), 0)::bigint,
    coalesce((SELECT sum(items) FROM code), 0)::bigint,
    (SELECT coalesce(array_agg(code ORDER BY items DESC, code), '{}') FROM top),
    (SELECT coalesce(array_agg(items ORDER BY items DESC, code), '{}') FROM top)
FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
WHERE s.batch_id = $1 AND s.deleted_at IS NULL`

// Get returns a tracker with its item counts.
func Get(ctx context.Context, q Querier, batch uuid.UUID) (Info, error) {
	row, err := pgx.CollectExactlyOneRow(rowsOf(ctx, q, showSQL, batch), pgx.RowToStructByPos[struct {
		Summary

		Pending, Failed int64
		Codes           []string
		Items           []int64
	}])
	if err != nil {
		return Info{}, notFound("read", batch, err)
	}
	info := Info{Summary: row.Summary, Pending: row.Pending, Failed: row.Failed}
	info.Done = info.Summary.Items - info.Pending - info.Failed
	for i, code := range row.Codes {
		info.Codes = append(info.Codes, CodeCount{code, row.Items[i]})
	}
	return info, nil
}

// Filter selects trackers.
type Filter struct {
	Owner string    // empty: any
	State State     // empty: any
	After uuid.UUID // last ID of the previous page; zero: start at the newest
	Limit int       // page size, 1 to MaxPage

	Namespaces []string // nil: any
}

// These scan an index backwards, the primary key or tracker_service_owner. IDs of version 7 ascend with time.
const (
	listSQL      = listed + newestFirst
	listOwnerSQL = listed + ` AND s.owner = $5` + newestFirst

	listed = `SELECT ` + summaryColumns + `
FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
WHERE s.deleted_at IS NULL AND ($1::uuid IS NULL OR s.batch_id < $1)
  AND ($2 = '' OR b.state = CASE $2 WHEN 'expired' THEN 'cancelled' ELSE $2 END)
  AND ($4::text[] IS NULL OR s.namespace = ANY ($4))`
	newestFirst = ` ORDER BY s.batch_id DESC LIMIT $3`
)

// List returns trackers, newest first if their IDs are of version 7.
func List(ctx context.Context, q Querier, f Filter) ([]Summary, error) {
	var after *uuid.UUID
	if f.After != (uuid.UUID{}) {
		after = &f.After
	}
	switch f.State {
	case "", StateOpen, StateSealed, StateCompleted, StateExpired:
	default:
		return nil, &RequestError{Field: "state", Problem: "must be open, sealed, completed or expired"}
	}
	if err := CheckText("owner", f.Owner, MaxText); err != nil {
		return nil, err
	}
	sql, args := listSQL, []any{after, string(f.State), page(f.Limit), f.Namespaces}
	if f.Owner != "" {
		sql, args = listOwnerSQL, append(args, f.Owner)
	}
	return pgx.CollectRows(rowsOf(ctx, q, sql, args...), pgx.RowToStructByPos[Summary])
}

// GroupState is the item counts of a group. Size = Pending + Done + Failed.
type GroupState struct {
	Group, Size, Pending, Done, Failed int
}

// groupStatesSQL takes no locks; it reads both tables by primary key.
const groupStatesSQL = `
SELECT g.grp, g.size, bit_count(g.pending)::integer,
    coalesce((SELECT sum(bit_count(f.mask)) FROM tracker_failed f WHERE f.batch_id = $1 AND f.grp = g.grp), 0)::integer
FROM tracker_group g
WHERE g.batch_id = $1 AND g.grp >= $2
ORDER BY g.grp LIMIT $3`

// GroupStates returns groups in ascending order, starting with from. A short page is the last.
func GroupStates(ctx context.Context, q Querier, batch uuid.UUID, from, limit int) ([]GroupState, error) {
	if err := known(ctx, q, batch); err != nil {
		return nil, err
	}
	rows := rowsOf(ctx, q, groupStatesSQL, batch, clamp(from), page(limit))
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g GroupState, err error) {
		err = row.Scan(&g.Group, &g.Size, &g.Pending, &g.Failed)
		g.Done = g.Size - g.Pending - g.Failed
		return g, err
	})
	return list, wrap("list the groups of", batch, err)
}

// Range is a range [Lo, Hi) of pending items in one group.
type Range struct {
	Group, Lo, Hi int
}

// String returns group:lo-last, or group:lo for a single item.
func (r Range) String() string {
	if r.Hi == r.Lo+1 {
		return fmt.Sprintf("%d:%d", r.Group, r.Lo)
	}
	return fmt.Sprintf("%d:%d-%d", r.Group, r.Lo, r.Hi-1)
}

// Position identifies an item of a batch by group and index.
type Position struct {
	Group, Index int
}

// missingSQL takes no locks. It scans the primary key and skips groups without pending items.
const missingSQL = `
SELECT grp, pending FROM tracker_group
WHERE batch_id = $1 AND grp >= $2 AND pending <> B'0'::bit(8192)
ORDER BY grp LIMIT $3`

// missingPage bounds the groups read at a time: a megabyte.
const missingPage = 1024

// Missing returns pending items from a position as at most limit ascending ranges. next is the next position, or nil
// at the end. The batch may change between pages.
func Missing(ctx context.Context, q Querier, batch uuid.UUID, from Position, limit int,
) (missing []Range, next *Position, err error) {
	if err := known(ctx, q, batch); err != nil {
		return nil, nil, err
	}
	limit = page(limit)
	for {
		groups := min(missingPage, limit-len(missing)+1)
		rows := rowsOf(ctx, q, missingSQL, batch, clamp(from.Group), groups)
		read := 0
		var group int
		var pending bitfield.Set
		_, err := pgx.ForEachRow(rows, []any{&group, pgbits.Into(&pending)}, func() error {
			read++
			for lo, hi := range pending.Ranges() {
				if group == from.Group && hi <= from.Index || next != nil {
					continue
				}
				if group == from.Group {
					lo = max(lo, from.Index)
				}
				if len(missing) == limit {
					next = &Position{group, lo}
					continue
				}
				missing = append(missing, Range{Group: group, Lo: lo, Hi: hi})
			}
			return nil
		})
		if err != nil || next != nil || read < groups {
			return missing, next, wrap("list what is missing of", batch, err)
		}
		from = Position{Group: group + 1}
	}
}

func known(ctx context.Context, q Querier, batch uuid.UUID) error {
	var stale bool
	return notFound("read", batch, q.QueryRow(ctx, checkSQL, batch).Scan(&stale))
}
