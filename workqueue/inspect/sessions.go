package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
)

// NodeView is a node, from its start to its end, with what it holds.
type NodeView struct {
	Session     workqueue.SessionID `json:"session"`
	Host        string              `json:"host"`
	PID         int                 `json:"pid"`
	Version     string              `json:"version"`
	StartedAt   time.Time           `json:"started_at"`
	HeartbeatAt time.Time           `json:"heartbeat_at"`
	ExpiresAt   time.Time           `json:"expires_at" doc:"when it counts as dead unless it is heard of before"`
	EndedAt     *time.Time          `json:"ended_at,omitempty" doc:"absent unless it ended in good order"`
	State       string              `json:"state" enum:"live,late,dead,ended" doc:"late: not heard of for 3 heartbeats"`
	Leader      bool                `json:"leader"`
	Slices      NodeSlices          `json:"slices"`
	Items       int64               `json:"items" doc:"in its slices"`
	Runs        []NodeRun           `json:"runs" doc:"that its slices are of, up to 20, those with most slices first"`
	Stats       json.RawMessage     `json:"stats" doc:"its counters since its start, as it said with its last heartbeat"`
	NATS        string              `json:"nats,omitempty" doc:"what keeps it from NATS, as it said; absent: nothing"`
}

// NodeSlices counts the slices of a node.
type NodeSlices struct {
	Claimed int64 `json:"claimed" doc:"that it is publishing or working on; they are issued again when it dies"`
	Sent    int64 `json:"sent" doc:"that it has published; any node records their replies"`
}

// NodeRun is a run that a node holds slices of.
type NodeRun struct {
	ID     workqueue.RunID `json:"id"`
	Name   string          `json:"name,omitempty"`
	Plan   string          `json:"plan"`
	Slices int64           `json:"slices"`
}

// Nodes is who is there and who leads.
type Nodes struct {
	Leader *LeaderView `json:"leader" doc:"null while nobody leads"`
	Duties []DutyView  `json:"duties" doc:"what the node that leads does as such, as it said with its last heartbeat"`
	Nodes  []NodeView  `json:"nodes" doc:"those that are there, then those that are gone, newest first, up to 50 of them"`
	At     time.Time   `json:"at" doc:"the database's clock when it looked"`
	// ReadOnly is why nodes that live are dead here: they cannot say so.
	ReadOnly bool `json:"database_read_only,omitempty" doc:"PostgreSQL takes no writes: nodes cannot say that they live"`
}

const (
	maxGoneNodes = 50
	maxNodeRuns  = 20
	// lateAfter is three of a node's heartbeats.
	lateAfter = 3 * time.Second
)

const (
	currentLeader = HealthLeader + ` AND expires_at > tranche_now()`

	// Sessions are few. What they hold says work_slice_live, once for all of them.
	nodeViews = `
WITH held AS MATERIALIZED (
    SELECT w.session_id, w.run_id, count(*) AS slices, count(*) FILTER (WHERE w.state = 'claimed') AS claimed,
        sum(bit_count(w.remaining)) AS items
    FROM work_slice w WHERE w.state IN ('claimed', 'sent') AND w.session_id IS NOT NULL GROUP BY 1, 2),
sums AS (
    SELECT session_id, sum(slices)::bigint AS slices, sum(claimed)::bigint AS claimed, sum(items)::bigint AS items
    FROM held GROUP BY 1),
known AS (
    SELECT n.*, row_number() OVER (PARTITION BY n.ended_at IS NULL AND n.expires_at > tranche_now()
        ORDER BY n.started_at DESC, n.id) AS nth, n.ended_at IS NULL AND n.expires_at > tranche_now() AS alive
    FROM node_session n)
SELECT k.id, k.host, k.pid, k.version, k.started_at, k.heartbeat_at, k.expires_at, k.ended_at,
    CASE WHEN k.ended_at IS NOT NULL THEN 'ended' WHEN NOT k.alive THEN 'dead'
        WHEN k.heartbeat_at < tranche_now() - $2::interval THEN 'late' ELSE 'live' END,
    k.id = coalesce((SELECT session_id FROM leader WHERE name = $3 AND expires_at > tranche_now()),
        '00000000-0000-0000-0000-000000000000'),
    coalesce(s.claimed, 0), coalesce(s.slices - s.claimed, 0), coalesce(s.items, 0), k.stats,
    coalesce((SELECT jsonb_agg(jsonb_build_object('id', h.run_id, 'name', coalesce(r.name, ''), 'plan', r.plan,
            'slices', h.slices) ORDER BY h.slices DESC, h.run_id)
        FROM (SELECT * FROM held WHERE session_id = k.id ORDER BY slices DESC, run_id LIMIT $4) h
        JOIN batchrun r ON r.id = h.run_id), '[]'),
    CASE WHEN NOT k.alive THEN '' WHEN k.stats ? 'refused' THEN k.stats ->> 'refused'
        WHEN k.stats -> 'nats' = 'false' THEN 'it cannot reach NATS'
        WHEN k.stats ? 'stalled' THEN 'JetStream does not answer it' ELSE '' END
FROM known k LEFT JOIN sums s ON s.session_id = k.id
WHERE k.alive OR k.nth <= $1 OR s.session_id IS NOT NULL AND s.claimed > 0
ORDER BY k.alive DESC, k.started_at DESC, k.id`

	databaseNow = `SELECT tranche_now(), NOT (` + TakesWrites + `)`
)

// Nodes returns the nodes that are there and those that were there lately.
func (s Store) Nodes(ctx context.Context) (Nodes, error) {
	out := Nodes{Duties: []DutyView{}}
	b := &pgx.Batch{}
	b.Queue(nodeViews, maxGoneNodes, lateAfter, ledger.LeaseName, maxNodeRuns).Query(func(rows pgx.Rows) (err error) {
		out.Nodes, err = pgx.CollectRows(rows, scanNode)
		return err
	})
	b.Queue(currentLeader, ledger.LeaseName).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LeaderView])
		if len(found) > 0 {
			out.Leader = &found[0]
		}
		return err
	})
	b.Queue(databaseNow).QueryRow(func(row pgx.Row) error { return row.Scan(&out.At, &out.ReadOnly) })
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return Nodes{}, fmt.Errorf("list the nodes: %w", err)
	}
	for i := range out.Nodes {
		if n := &out.Nodes[i]; n.Leader {
			out.Duties = append(out.Duties, dutiesOf(n)...)
		}
	}
	return out, nil
}

func scanNode(row pgx.CollectableRow) (n NodeView, err error) {
	err = row.Scan(&n.Session, &n.Host, &n.PID, &n.Version, &n.StartedAt, &n.HeartbeatAt, &n.ExpiresAt, &n.EndedAt,
		&n.State, &n.Leader, &n.Slices.Claimed, &n.Slices.Sent, &n.Items, &n.Stats, &n.Runs, &n.NATS)
	return n, err
}

// LeaderView is the lease of the node that leads, or that led last.
type LeaderView struct {
	Session   workqueue.SessionID `json:"session"`
	Epoch     int64               `json:"epoch" doc:"one more with every change of hands"`
	Since     time.Time           `json:"since" doc:"when it began to lead"`
	ExpiresAt time.Time           `json:"expires_at"`
}

// HealthLeader reads the leader, if there is one.
const HealthLeader = `SELECT session_id, epoch, since, expires_at FROM leader WHERE name = $1`
