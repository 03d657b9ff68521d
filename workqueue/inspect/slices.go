package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// SliceView is a live slice: in preparation, in flight, or scheduled.
type SliceView struct {
	ID          workqueue.SliceID `json:"id"`
	Step        string            `json:"step"`
	Block       workqueue.Block   `json:"block"`
	Items       int               `json:"items"`
	Remaining   int               `json:"remaining" doc:"items without an outcome"`
	Attempt     int               `json:"attempt" doc:"how often these items were requested, this time included"`
	Cause       workqueue.Cause   `json:"cause" doc:"why it was made: cut, retry, deadline, …"`
	State       string            `json:"state" enum:"scheduled,claimed,sent" doc:"scheduled: to be retried later"`
	Node        *SliceNode        `json:"node,omitempty" doc:"who claimed it"`
	Service     string            `json:"service,omitempty" doc:"who has answered a part of it"`
	FirstKey    string            `json:"first_key" doc:"of the first item that remains"`
	CreatedAt   time.Time         `json:"created_at"`
	SentAt      *time.Time        `json:"sent_at,omitempty"`
	DeliveredAt *time.Time        `json:"delivered_at,omitempty" doc:"when it was seen in the hands of a service"`
	Deadline    *time.Time        `json:"deadline,omitempty"`
	NotBefore   *time.Time        `json:"not_before,omitempty" doc:"of a scheduled one"`
}

// SliceNode is a node that holds a slice.
type SliceNode struct {
	Session workqueue.SessionID `json:"session"`
	Host    string              `json:"host,omitempty"`
	PID     int                 `json:"pid,omitempty"`
}

// LiveCounts counts live slices.
type LiveCounts struct {
	Scheduled int64 `json:"scheduled"`
	Claimed   int64 `json:"claimed"`
	Sent      int64 `json:"sent"`
}

// LiveSlices is a page of live slices. Next is the After of the next page; nil on the last.
type LiveSlices struct {
	Slices []SliceView        `json:"slices"`
	Next   *workqueue.SliceID `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
	Counts LiveCounts         `json:"counts" doc:"of all live slices of the run, regardless of filters"`
}

// LiveFilter selects live slices.
type LiveFilter struct {
	Run    workqueue.RunID   `json:"-"`
	States []string          `query:"state,explode" enum:"scheduled,claimed,sent" doc:"repeatable; absent: all"`
	After  workqueue.SliceID `json:"-"`                                               // of the previous page
	Limit  int               `query:"limit" minimum:"1" maximum:"1000" default:"100"` // 0 means DefaultSlices
}

// The number of slices on a page.
const (
	DefaultSlices = 100
	MaxSlices     = 1000
)

const (
	// countLive reads work_slice_live for the steps of a run.
	countLive = `
SELECT count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'claimed'),
    count(*) FILTER (WHERE state = 'sent')
FROM work_slice WHERE run_id = $1 AND step = ANY ($2) AND state IN ('scheduled', 'claimed', 'sent')`

	// listLive sorts by ID, which is meaningless but stable: a slice keeps its place while others change. Masks are
	// read only for rows on the page. The first key is a point read of work_queue.
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
    w.created_at, w.sent_at, w.delivered_at, w.deadline, CASE WHEN w.state = 'scheduled' THEN w.not_before END
FROM page JOIN work_slice w USING (id) JOIN run_step s USING (run_id, step)
LEFT JOIN node_session n ON n.id = w.session_id
ORDER BY w.id`
)

// LiveSlices lists the live slices of a run.
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
	out.Slices, out.Next = pg.Cut(out.Slices, limit, func(v *SliceView) *workqueue.SliceID { return &v.ID })
	return out, err
}

func scanSliceView(row pgx.CollectableRow) (v SliceView, err error) {
	var session *uuid.UUID
	var node SliceNode
	err = row.Scan(&v.ID, &v.Step, &v.Block, &v.Items, &v.Remaining, &v.Attempt, &v.Cause, &v.State, &session, &node.Host,
		&node.PID, &v.Service, &v.FirstKey, &v.CreatedAt, &v.SentAt, &v.DeliveredAt, &v.Deadline, &v.NotBefore)
	if session != nil {
		node.Session = workqueue.SessionID(*session)
		v.Node = &node
	}
	return v, err
}

// StepView is one step of a run. Items is the sum of Waiting, Ready, InFlight, Scheduled, Done, Failed and Skipped.
type StepView struct {
	Step          workqueue.Step `json:"step"`
	Name          string         `json:"name"`
	Kind          workqueue.Kind `json:"kind" enum:"endpoint,direct,http,sql,local"`
	Endpoint      string         `json:"endpoint" doc:"or another target: http:HOST, sql:SOURCE, local:FUNCTION"`
	Needs         []string       `json:"needs,omitempty" doc:"steps that come first, item by item"`
	Inputs        []string       `json:"inputs,omitempty" doc:"of those, the ones whose parts it sees"`
	SeesItem      bool           `json:"sees_item" doc:"its requests carry the items' payloads"`
	Optional      bool           `json:"optional,omitempty" doc:"what needs it continues without its part"`
	Barrier       bool           `json:"barrier,omitempty" doc:"it begins when its needs have ended for all items"`
	BarrierPassed bool           `json:"barrier_passed,omitempty"`
	Gate          *control.Gate  `json:"gate,omitempty" doc:"with a barrier that needs approval"`
	State         string         `json:"state" enum:"waiting,running,completed" doc:"waiting: for other steps"`
	Progress      float64        `json:"progress" doc:"0 to 1"`
	Rate          float64        `json:"rate" doc:"items answered a second, over the last ten seconds"`

	Settings workqueue.SettingsView `json:"settings"`

	Cap   int `json:"cap,omitempty" doc:"requests in flight at most: its run is gentle, and that is enough"`
	Share int `json:"share" doc:"weight among runs of equal priority at the endpoint; over 1: its run would be late"`

	OpenBlocks       int   `json:"open_blocks"`
	Items            int64 `json:"items"`
	Waiting          int64 `json:"waiting" doc:"items that need another step first, or that are held"`
	Held             int64 `json:"held,omitempty" doc:"of those, behind a canary, or in line behind another item"`
	Ready            int64 `json:"ready"`
	InFlight         int64 `json:"in_flight" doc:"items requested and not answered"`
	Scheduled        int64 `json:"scheduled" doc:"items that wait to be retried"`
	Done             int64 `json:"done"`
	Failed           int64 `json:"failed"`
	Skipped          int64 `json:"skipped" doc:"items left out: a step that it needs has failed for them"`
	SlicesInFlight   int64 `json:"slices_in_flight"`
	SlicesScheduled  int64 `json:"slices_scheduled"`
	SlicesEnded      int64 `json:"slices_ended"`
	AnsweredRecently int64 `json:"-"`
}

const (
	// NeedNames and inputNames are SQL expressions on run_step s: the names of the steps that it needs and sees.
	NeedNames = `
ARRAY(SELECT n.name FROM run_step n WHERE n.run_id = s.run_id AND n.step = ANY (s.needs) ORDER BY n.step)`
	inputNames = `
ARRAY(SELECT n.name FROM run_step n WHERE n.run_id = s.run_id AND n.step = ANY (s.inputs) ORDER BY n.step)`
)

// Two ranges for each step: work_block's primary key and work_slice_block. Items of an open run without a block wait.
func stepViews() string {
	return `
SELECT s.step, s.name, s.endpoint,
    CASE WHEN b.open_blocks > 0 OR r.items > coalesce(b.items, 0) THEN 'running' ELSE 'completed' END,
    coalesce(b.open_blocks, 0),
    greatest(b.items, r.items), coalesce(b.ready, 0), coalesce(b.done, 0), coalesce(b.failed, 0),
    coalesce(w.in_flight, 0), coalesce(w.scheduled, 0),
    coalesce(w.slices_in_flight, 0), coalesce(w.slices_scheduled, 0), coalesce(w.slices_ended, 0),
    coalesce(w.answered, 0), s.kind, ` + NeedNames + `, ` + inputNames +
		`, s.input_item, s.optional, s.barrier, s.barrier_passed,
    coalesce(b.held, 0), coalesce(b.skipped, 0), coalesce(s.in_flight_cap, 0), s.share,
    ` + plane.SettingsToRead("s.") + `
FROM run_step s JOIN batchrun r ON r.id = s.run_id
LEFT JOIN LATERAL (
    SELECT sum(size)::bigint AS items, sum(bit_count(ready))::bigint AS ready,
        sum(bit_count(done))::bigint AS done, sum(bit_count(failed))::bigint AS failed,
        sum(bit_count(held))::bigint AS held, sum(bit_count(skipped))::bigint AS skipped,
        count(*) FILTER (WHERE ` + plane.SettledCount + ` < size) AS open_blocks
    FROM work_block b WHERE b.run_id = s.run_id AND b.step = s.step
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE state IN ('claimed', 'sent'))::bigint AS in_flight,
        sum(bit_count(remaining)) FILTER (WHERE state = 'scheduled')::bigint AS scheduled,
        count(*) FILTER (WHERE state IN ('claimed', 'sent')) AS slices_in_flight,
        count(*) FILTER (WHERE state = 'scheduled') AS slices_scheduled,
        count(ended_at) AS slices_ended,
        sum(bit_count(mask)) FILTER (WHERE ended_at > (
            SELECT greatest(tranche_now() - $2::interval, started_at) FROM batchrun WHERE id = $1)
            AND state = 'recorded')::bigint AS answered
    FROM work_slice WHERE run_id = s.run_id AND step = s.step
) w ON true
WHERE s.run_id = $1
ORDER BY s.step`
}

// Settled returns the number of items with an outcome in the step.
func (v *StepView) Settled() int64 { return v.Done + v.Failed + v.Skipped }

func scanStepView(row pgx.CollectableRow) (StepView, error) {
	var v StepView
	var set workqueue.StepSettings
	err := row.Scan(append([]any{&v.Step, &v.Name, &v.Endpoint, &v.State, &v.OpenBlocks, &v.Items, &v.Ready, &v.Done,
		&v.Failed, &v.InFlight, &v.Scheduled, &v.SlicesInFlight, &v.SlicesScheduled, &v.SlicesEnded, &v.AnsweredRecently,
		&v.Kind, &v.Needs, &v.Inputs, &v.SeesItem, &v.Optional, &v.Barrier, &v.BarrierPassed, &v.Held, &v.Skipped,
		&v.Cap, &v.Share},
		plane.SettingTargets(&set)...)...)
	v.Settings = set.View()
	v.Waiting = v.Items - v.Ready - v.Settled() - v.InFlight - v.Scheduled
	switch {
	case v.State == "completed":
		v.Progress = 1
	case v.Items > 0:
		v.Progress = float64(v.Settled()) / float64(v.Items)
	}
	if v.State == "running" && len(v.Needs) > 0 && v.Waiting > 0 && v.Ready+v.InFlight+v.Scheduled == 0 ||
		v.Barrier && !v.BarrierPassed && v.State != "completed" {
		v.State = "waiting"
	}
	return v, err
}

// OrderView is how the items of a run are put in lanes.
type OrderView struct {
	By         string   `json:"by" doc:"the field of the payload, or key"`
	Values     []string `json:"values,omitempty" doc:"the only values there are"`
	Partitions int      `json:"partitions,omitempty" doc:"values are hashed into this many lanes"`
	OnFailure  string   `json:"on_failure" enum:"continue,stop" doc:"what happens to items behind a failed one"`
}

func orderView(o *workqueue.RunOrder) *OrderView {
	if o == nil {
		return nil
	}
	v := &OrderView{By: o.Rule.By, Values: o.Rule.Values, Partitions: o.Rule.Partitions, OnFailure: "continue"}
	if o.Stop {
		v.OnFailure = "stop"
	}
	return v
}
