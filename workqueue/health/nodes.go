package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
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

// The live sessions, those in $1, and the one with the newest heartbeat.
const explainSessions = `
SELECT ` + nodeColumns + `
FROM node_session n
WHERE (ended_at IS NULL AND expires_at > tranche_now()) OR id = ANY ($1)
    OR id = (SELECT id FROM node_session ORDER BY heartbeat_at DESC LIMIT 1)
ORDER BY started_at, id`

const noWrites = `SELECT NOT (` + inspect.TakesWrites + `), ` + inspect.AwaitsStandby

func (f *facts) readSessions(ctx context.Context, tx pgx.Tx) error {
	var asked []workqueue.SessionID
	for i := range f.slices {
		asked = append(asked, f.slices[i].session)
	}
	for _, r := range f.runs {
		asked = append(asked, r.loader)
	}
	err := tx.QueryRow(ctx, noWrites).Scan(&f.readOnly, &f.awaitsStandby)
	if err != nil {
		return fmt.Errorf("ask whether the database takes writes: %w", err)
	}
	rows := pg.Rows(ctx, tx, explainSessions, asked)
	sessions, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[Node])
	if err != nil {
		return fmt.Errorf("read the nodes: %w", err)
	}
	for _, s := range sessions {
		f.sessions[s.Session] = s
		if s.Alive && !f.readOnly && !f.awaitsStandby {
			f.alive = append(f.alive, s)
		}
	}
	return nil
}

func (f *facts) nodesText() string {
	able := f.able()
	switch len(able) {
	case 0:
		return "no node"
	case 1:
		return able[0].Name()
	default:
		return fmt.Sprintf("any of %d nodes", len(able))
	}
}

// able is the live nodes that reach NATS, or all live nodes if none does.
func (f *facts) able() []*Node {
	able := slices.DeleteFunc(slices.Clone(f.alive), func(s *Node) bool { return s.Away })
	if len(able) == 0 {
		return f.alive
	}
	return able
}

// natsUnreachable makes a group wait until one of the nodes reaches NATS again.
func (f *facts) natsUnreachable(g *MissingGroup, nodes []*Node) {
	row := Row{"alive": len(nodes)}
	if len(nodes) == 1 {
		row["case"], row["node"] = "one", nodes[0].Name()
	}
	g.Say(ReasonNATSUnreachable, row)
	g.Advice = []Advice{NATS.Advice("")}
	refusedBy(g, nodes)
}

// refusedByNATS makes a group wait for the administrator of NATS, if a node must send it and none may.
func (f *facts) refusedByNATS(st *stepFacts, g *MissingGroup) {
	if st.kind == workqueue.KindEndpoint && (g.State == "ready" || g.State == "claimed") &&
		(g.Owner == OwnerNode || g.Owner == OwnerService) {
		refusedBy(g, f.alive)
	}
}

func refusedBy(g *MissingGroup, nodes []*Node) {
	if len(nodes) == 0 || slices.ContainsFunc(nodes, func(s *Node) bool { return s.Refused == "" }) {
		return
	}
	g.Say(ReasonNATSRefused, Row{"node": nodes[0].Name(), "refused": nodes[0].Refused})
	g.Advice = []Advice{NATS.Advice("refused")}
}

func (f *facts) nodeNotes() []string {
	var notes []string
	for _, s := range f.alive {
		switch {
		case s.Refused != "":
			notes = append(notes, s.Name()+": "+s.Refused)
		case s.Away:
			notes = append(notes, s.Name()+" cannot reach NATS: it sends nothing and records nothing until it can")
		}
	}
	return notes
}

func (f *facts) slowNotes() []string {
	var notes []string
	for i := range f.slow {
		s := &f.slow[i]
		notes = append(notes, fmt.Sprintf("%s, since %s; see: tranche endpoints show %s", s, clock(s.Since), s.Endpoint))
	}
	return notes
}

func (f *facts) lastSeen() *Node {
	var last *Node
	for _, s := range f.sessions {
		if last == nil || s.BeatAt.After(last.BeatAt) {
			last = s
		}
	}
	return last
}

func (f *facts) leaderText() string {
	if len(f.alive) == 0 {
		return "the next node that starts"
	}
	if !f.led {
		return "the node that takes the lead next, within seconds,"
	}
	return "the leader"
}

// StandbyText explains that commits wait for a missing synchronous standby.
const StandbyText = "commits wait for a standby: PostgreSQL confirms none before a synchronous standby has it, and " +
	"none does"

const (
	// sweepWithin is the longest wait for leader work, lookWithin for an idle node's next search for work.
	sweepWithin = time.Second
	lookWithin  = 2 * time.Second
)

// swept makes a group wait for the leader's sweep, or for a node if none is alive.
func (f *facts) swept(g *MissingGroup, reason Kind, row Row) {
	f.say(g, reason, row)
	g.When = new(f.at.Add(sweepWithin))
	if len(f.alive) == 0 {
		f.noNode(g)
	}
}

// noNode makes a group wait for a node to start, or for the database to take writes, as heartbeats do.
func (f *facts) noNode(g *MissingGroup) {
	if g.Why != "" {
		g.by = append(g.by, cameBy{g.Why, g.Items})
	}
	switch {
	case f.awaitsStandby:
		g.Say(ReasonStandby, nil)
		g.Advice = []Advice{Database.Advice("standby")}
	case f.readOnly:
		g.Say(ReasonReadOnly, nil)
	default:
		row, reason := Row{}, cmp.Or(g.Reason, ReasonNoNode)
		if last := f.lastSeen(); last != nil {
			row["last"], row["beat"] = last.Name(), last.BeatAt
			g.Since = new(last.gone())
		}
		g.Say(ReasonNoNode, row)
		g.Reason = reason
	}
}

// withoutQuorum makes a group wait for NATS if the streams do not answer, which stops both nodes and services.
func (f *facts) withoutQuorum(st *stepFacts, g *MissingGroup) {
	stalled := Stalled(slices.Values(f.alive))
	turn := []Owner{OwnerNode, OwnerService}
	if stalled == nil || st.kind != workqueue.KindEndpoint || !slices.Contains(turn, g.Owner) &&
		g.Reason != ReasonPostponed {
		return
	}
	g.Say(ReasonNATSStalled, Row{"said": StalledText(stalled.StalledWhy)})
	g.Since, g.by, g.Advice = stalled.StalledSince, nil, []Advice{NATS.Advice("stalled")}
}

// StalledText explains that streams do not answer; why is the error that a node got.
func StalledText(why string) string {
	return fmt.Sprintf("NATS can be reached, and JetStream does not answer (%s): more than half of the servers that keep "+
		"its streams are unavailable, or they have no leader yet", why)
}

// lettersAndEvents are the streams that no item waits for.
var lettersAndEvents = [...]string{"TRANCHE_DEAD", "TRANCHE_EVENT"} //nolint:gochecknoglobals // a constant

func (f *facts) readStreamFaults(ctx context.Context, tx pgx.Tx) (err error) {
	f.faults, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[session.StreamFault], session.StreamFaults)
	if err != nil {
		return fmt.Errorf("read which streams take nothing: %w", err)
	}
	f.faults = slices.DeleteFunc(f.faults, func(s session.StreamFault) bool {
		return slices.Contains(lettersAndEvents[:], s.Stream)
	})
	return nil
}

// unwritable explains items that wait because JetStream's store is not writable, and reports whether they do.
func (f *facts) unwritable(kind workqueue.Kind, g *MissingGroup) bool {
	if len(f.faults) == 0 || kind != workqueue.KindEndpoint {
		return false
	}
	first, row := f.faults[0], Row{"faults": StoreText(f.faults)}
	if first.Detail == "" {
		row["case"] = "room"
	}
	f.say(g, ReasonUnwritable, row)
	g.Since = &first.Since
	if first.Detail == "" {
		g.When = new(f.at.Add(replacedWithin))
	}
	return true
}

// replacedWithin is about how long the leader takes to replace a stream.
const replacedWithin = 10 * time.Second

// StoreText says why streams reject messages.
func StoreText(faults []session.StreamFault) string {
	names := make([]string, len(faults))
	for i := range faults {
		names[i] = faults[i].Stream
	}
	text := "JetStream's store cannot be written, as on a full disk: " + strings.Join(names, ", ")
	if len(names) == 1 {
		text += " takes no messages"
	} else {
		text += " take no messages"
	}
	if detail := faults[0].Detail; detail != "" {
		return text + ", and there is no room for new ones: " + detail
	}
	return text + " since it could not once; there is room now"
}
