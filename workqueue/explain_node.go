package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sessionFacts is a node.
type sessionFacts struct {
	id        SessionID
	host      string
	pid       int
	beatAt    time.Time
	expiresAt time.Time
	endedAt   *time.Time
	alive     bool
}

func (s *sessionFacts) name() string { return fmt.Sprintf("node %s (pid %d)", s.host, s.pid) }

// The sessions that are alive, those asked for, and the one that was heard of last.
const explainSessions = `
SELECT id, host, pid, heartbeat_at, expires_at, ended_at, ended_at IS NULL AND expires_at > $2
FROM node_session
WHERE (ended_at IS NULL AND expires_at > $2) OR id = ANY ($1)
    OR id = (SELECT id FROM node_session ORDER BY heartbeat_at DESC LIMIT 1)
ORDER BY started_at, id`

func (f *facts) readSessions(ctx context.Context, tx pgx.Tx) error {
	var asked []SessionID
	for i := range f.slices {
		asked = append(asked, f.slices[i].session)
	}
	for _, r := range f.runs {
		asked = append(asked, r.loader)
	}
	rows, err := tx.Query(ctx, explainSessions, asked, f.at)
	if err != nil {
		return fmt.Errorf("read the nodes: %w", err)
	}
	sessions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*sessionFacts, error) {
		s := &sessionFacts{}
		return s, row.Scan(&s.id, &s.host, &s.pid, &s.beatAt, &s.expiresAt, &s.endedAt, &s.alive)
	})
	if err != nil {
		return fmt.Errorf("read the nodes: %w", err)
	}
	for _, s := range sessions {
		f.sessions[s.id] = s
		if s.alive {
			f.alive = append(f.alive, s)
		}
	}
	return nil
}

// nodesText names the nodes that are alive.
func (f *facts) nodesText() string {
	switch len(f.alive) {
	case 0:
		return "no node"
	case 1:
		return f.alive[0].name()
	default:
		return fmt.Sprintf("any of %d nodes", len(f.alive))
	}
}

// lastSeen is the node that was heard of last, when none is alive.
func (f *facts) lastSeen() *sessionFacts {
	var last *sessionFacts
	for _, s := range f.sessions {
		if last == nil || s.beatAt.After(last.beatAt) {
			last = s
		}
	}
	return last
}

// leaderText names who sweeps.
func (f *facts) leaderText() string {
	if len(f.alive) == 0 {
		return "the next node that starts"
	}
	if !f.led {
		return "the node that takes the lead next, within seconds,"
	}
	return "the node that leads"
}

const (
	// sweepWithin is how long leader work may take to come round, lookWithin a look for work.
	sweepWithin = time.Second
	lookWithin  = 500 * time.Millisecond
)

// swept makes a group wait for the leader's sweep, or for a node when there is none.
func (f *facts) swept(g *MissingGroup, next string) {
	if len(f.alive) == 0 {
		f.noNode(g)
		return
	}
	g.Owner, g.Who, g.Next = OwnerNode, f.leaderText(), next
	g.When = after(f.at, sweepWithin)
}

// noNode makes a group wait for a node to be started.
func (f *facts) noNode(g *MissingGroup) {
	g.Owner, g.Who, g.When = OwnerOperator, "whoever starts a node", nil
	g.Why = "no node is alive" + because(g.Why)
	if last := f.lastSeen(); last != nil {
		g.Why += fmt.Sprintf("; %s was heard of last, %s", last.name(), clock(last.beatAt))
		at := last.expiresAt
		if last.endedAt != nil {
			at = *last.endedAt
		}
		g.Since = &at
	}
	g.Next = "they go on within seconds of a node's start"
	g.Advice = []Advice{{"start a node", "tranche serve"}}
}
