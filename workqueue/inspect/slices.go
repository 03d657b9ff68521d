package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// SliceView is one request of a run that is being made, is out, or waits for its time.
type SliceView struct {
	ID        workqueue.SliceID `json:"id"`
	Step      string            `json:"step"`
	Block     workqueue.Block   `json:"block"`
	Items     int               `json:"items"`
	Remaining int               `json:"remaining" doc:"items without an outcome"`
	Attempt   int               `json:"attempt" doc:"how often these items were asked for, this time included"`
	Cause     workqueue.Cause   `json:"cause" doc:"why it was made: cut, retry, deadline, …"`
	State     string            `json:"state" enum:"scheduled,claimed,sent" doc:"scheduled: to be tried again later"`
	Node      *SliceNode        `json:"node,omitempty" doc:"who claimed it"`
	Service   string            `json:"service,omitempty" doc:"who has answered a part of it"`
	FirstKey  string            `json:"first_key" doc:"of the first item that remains"`
	CreatedAt time.Time         `json:"created_at"`
	SentAt    *time.Time        `json:"sent_at,omitempty"`
	HandedAt  *time.Time        `json:"handed_at,omitempty" doc:"when it was seen in the hands of a service"`
	Deadline  *time.Time        `json:"deadline,omitempty"`
	NotBefore *time.Time        `json:"not_before,omitempty" doc:"of a scheduled one"`
}

// SliceNode is a node that holds a slice.
type SliceNode struct {
	Session workqueue.SessionID `json:"session"`
	Host    string              `json:"host,omitempty"`
	PID     int                 `json:"pid,omitempty"`
}

// LiveCounts counts the slices that have not ended.
type LiveCounts struct {
	Scheduled int64 `json:"scheduled"`
	Claimed   int64 `json:"claimed"`
	Sent      int64 `json:"sent"`
}

// LiveSlices is a page of them. Next is the After of the page behind it; nil on the last.
type LiveSlices struct {
	Slices []SliceView        `json:"slices"`
	Next   *workqueue.SliceID `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
	Counts LiveCounts         `json:"counts" doc:"of all live slices of the run, whatever was asked for"`
}

// LiveFilter chooses what LiveSlices lists.
type LiveFilter struct {
	Run    workqueue.RunID
	States []string          // scheduled, claimed, sent; none: all
	After  workqueue.SliceID // of the page before; zero: from the beginning
	Limit  int               // 1 to MaxSlices; 0 means DefaultSlices
}

// The number of slices on a page.
const (
	DefaultSlices = 100
	MaxSlices     = 1000
)

const (
	// countLive is a read of work_slice_live for the steps of a run.
	countLive = `
SELECT count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'claimed'),
    count(*) FILTER (WHERE state = 'sent')
FROM work_slice WHERE run_id = $1 AND step = ANY ($2) AND state IN ('scheduled', 'claimed', 'sent')`

	// listLive goes by id, which says nothing, but stays: a slice keeps its place while others come and go. The masks are
	// only taken out of the rows on the page. The first key is a point read of work_queue.
	listLive = `
WITH page AS MATERIALIZED (
    SELECT id FROM work_slice
    WHERE run_id = $1 AND step = ANY ($2) AND state IN ('scheduled', 'claimed', 'sent')
        AND (cardinality($3::text[]) = 0 OR state = ANY ($3)) AND id > $4
    ORDER BY id LIMIT $5
)
SELECT w.id, s.name, w.block, bit_count(w.mask)::int, bit_count(w.remaining)::int, w.attempt, w.cause, w.state,
    w.session_id, coalesce(n.host, ''), coalesce(n.pid, 0), coalesce(w.service, ''),
    coalesce((SELECT q.item_key FROM work_queue q WHERE q.run_id = w.run_id
        AND q.ordinal = w.block * 8192 + position(B'1' IN w.remaining) - 1), ''),
    w.created_at, w.sent_at, w.handed_at, w.deadline, CASE WHEN w.state = 'scheduled' THEN w.not_before END
FROM page JOIN work_slice w USING (id) JOIN run_step s USING (run_id, step)
LEFT JOIN node_session n ON n.id = w.session_id
ORDER BY w.id`
)

// LiveSlices lists the slices of a run that have not ended.
func (s Store) LiveSlices(ctx context.Context, f LiveFilter) (*LiveSlices, error) {
	limit := pg.Limit(f.Limit, DefaultSlices, MaxSlices)
	out := &LiveSlices{}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, f.Run)
		if err != nil {
			return err
		}
		all, err := g.View("")
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, countLive, f.Run, all.Reads).
			Scan(&out.Counts.Scheduled, &out.Counts.Claimed, &out.Counts.Sent)
		if err != nil {
			return err
		}
		states := f.States
		if states == nil {
			states = []string{}
		}
		out.Slices, err = pg.Collect(ctx, tx, scanSliceView, listLive, f.Run, all.Reads, states, f.After, limit+1)
		return err
	})
	if err != nil && !errors.Is(err, workqueue.ErrNotFound) {
		err = fmt.Errorf("list the slices of run %s: %w", f.Run, err)
	}
	if len(out.Slices) > limit {
		out.Slices = out.Slices[:limit]
		out.Next = &out.Slices[limit-1].ID
	}
	return out, err
}

func scanSliceView(row pgx.CollectableRow) (v SliceView, err error) {
	var session *uuid.UUID
	var node SliceNode
	err = row.Scan(&v.ID, &v.Step, &v.Block, &v.Items, &v.Remaining, &v.Attempt, &v.Cause, &v.State, &session, &node.Host,
		&node.PID, &v.Service, &v.FirstKey, &v.CreatedAt, &v.SentAt, &v.HandedAt, &v.Deadline, &v.NotBefore)
	if session != nil {
		node.Session = workqueue.SessionID(*session)
		v.Node = &node
	}
	return v, err
}
