package health

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
)

// Node is a node's session.
type Node struct {
	Session      workqueue.SessionID
	Host         string
	PID          int
	StartedAt    time.Time
	BeatAt       time.Time
	ExpiresAt    time.Time
	EndedAt      *time.Time
	Alive        bool
	Away         bool       // it reported that it cannot reach NATS
	StalledSince *time.Time // since when it reports that it reaches NATS but the streams do not answer; nil: they do
	StalledWhy   string
	Refused      string    // what NATS refuses it, as it reported; empty: nothing
	Locals       *[]string // local functions that it reported; nil: it has not reported
}

// Columns of the row n of node_session.
const nodeColumns = `n.id, n.host, n.pid, n.started_at, n.heartbeat_at, n.expires_at, n.ended_at,
    n.ended_at IS NULL AND n.expires_at > tranche_now(), coalesce(n.stats -> 'nats' = 'false', false),
    ` + inspect.StalledSince + `, ` + inspect.StalledWhy + `, ` + inspect.Refused + `,
    CASE jsonb_typeof(n.stats -> 'locals')
        WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(n.stats -> 'locals'))
        WHEN 'null' THEN '{}'::text[] END`

// Name is the node's human-readable name.
func (n *Node) Name() string { return fmt.Sprintf("node %s (pid %d)", n.Host, n.PID) }

// Has reports whether a live node has a local function, or may have it because it has not reported.
func (n *Node) Has(function string) bool {
	return n.Alive && (n.Locals == nil || slices.Contains(*n.Locals, function))
}

func (n *Node) gone() time.Time {
	if n.EndedAt != nil {
		return *n.EndedAt
	}
	return n.ExpiresAt
}

// Stalled returns the node with the longest stall of the streams, or nil if they answer any.
func Stalled(nodes iter.Seq[*Node]) (first *Node) {
	for n := range nodes {
		switch {
		case !n.Alive || n.Away:
		case n.StalledSince == nil:
			return nil
		case first == nil || n.StalledSince.Before(*first.StalledSince):
			first = n
		}
	}
	return first
}

// NodeHealth is a live node, or one that died lately and was not replaced on its host.
type NodeHealth struct {
	Node

	Slices int64 // claimed and not sent
	Items  int64 // in them
	Loads  int64 // runs that it was loading
}

// JetStream is the subject of conditions about JetStream itself, not one node.
const JetStream = "JetStream"

// DatabaseLoad is the load of the database.
type DatabaseLoad struct {
	Connections    int64
	MaxConnections int64
	Bytes          int64 // of this database
	ReadOnly       bool
	AwaitsStandby  bool // commits wait for a standby
}

const (
	// Claimed slices by work_slice_live, the runs being loaded by batchrun_active.
	healthNodes = `
WITH held AS MATERIALIZED (
    SELECT session_id, count(*) AS slices, sum(bit_count(remaining))::bigint AS items
    FROM work_slice WHERE state = 'claimed' AND session_id IS NOT NULL GROUP BY 1)
SELECT ` + nodeColumns + `,
    coalesce(h.slices, 0), coalesce(h.items, 0),
    (SELECT count(*) FROM batchrun r WHERE r.state = 'loading' AND r.loader_session = n.id)
FROM node_session n LEFT JOIN held h ON h.session_id = n.id
WHERE n.ended_at IS NULL AND (n.expires_at > tranche_now() OR h.session_id IS NOT NULL
    OR n.expires_at > tranche_now() - $1::interval
        AND NOT EXISTS (SELECT FROM node_session later WHERE later.id <> n.id AND later.host = n.host
            AND later.started_at > n.heartbeat_at))
ORDER BY n.started_at, n.id`

	// pg_stat_database counts all roles; pg_stat_activity does not show all of them.
	healthDatabase = `
SELECT (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::bigint,
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
    pg_database_size(current_database()), tranche_now(), NOT (` + inspect.TakesWrites + `),
    ` + inspect.AwaitsStandby

	healthKept = `SELECT kind, subject, since, seen_at, said FROM health_condition`
)

func (f *Facts) queueNodes(b *pgx.Batch) {
	b.Queue(inspect.HealthLeader, ledger.LeaseName).QueryRow(func(row pgx.Row) error {
		var leader inspect.LeaderView
		err := row.Scan(&leader.Session, &leader.Epoch, &leader.Since, &leader.ExpiresAt)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil:
			f.Leader = &leader
		}
		return err
	})
	queueRows(b, &f.Nodes, healthNodes, deadWindow)
}

func (f *Facts) queueDatabase(b *pgx.Batch) {
	b.Queue(healthDatabase).QueryRow(func(row pgx.Row) error {
		d := &f.Database
		return row.Scan(&d.Connections, &d.MaxConnections, &d.Bytes, &f.At, &d.ReadOnly, &d.AwaitsStandby)
	})
	queueRows(b, &f.Kept, healthKept)
	queueRows(b, &f.Marks, healthMarks)
}
