package health

import (
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	lateAfter   = 3 * time.Second // three heartbeats
	leaderGrace = 2 * time.Second // a lease changes hands within that time
)

func (f *facts) say(kind health.Kind, row health.Row) health.Condition {
	return kind.Condition(f.at, row)
}

// judge derives conditions from the facts, without further reads.
func judge(f *facts) (all []health.Condition) {
	if f.db == nil {
		all = append(all, f.say(health.Database, health.Row{"subject": f.host, "said": f.dbErr.Error()}))
	} else {
		all = append(all, f.told()...)
		all = append(all, f.nodes()...)
		all = append(all, f.others()...)
	}
	return append(all, f.machine()...)
}

// told returns the database's conditions and missing listeners. For an endpoint without listeners, no other condition
// about waiting work is reported.
func (f *facts) told() (all []health.Condition) {
	none := map[string]bool{}
	for _, e := range f.unheard {
		none[e.Endpoint] = true
		kind, target := workqueue.TargetKind(e.Endpoint)
		if kind == workqueue.KindEndpoint && f.stalled() != nil {
			continue // services may be connected to unavailable servers: unknown until JetStream answers
		}
		all = append(all, f.say(health.NoListeners, health.Row{"case": string(kind), "subject": e.Endpoint,
			"function": target, "like": e.like, "runs": e.Runs, "out": e.Out}))
	}
	for i := range f.db.Conditions {
		if c := f.db.Conditions[i]; c.Kind != health.OldestWaiting || !none[c.Subject] {
			all = append(all, c)
		}
	}
	return all
}

// nodes checks nodes and leader. While the database takes no writes, nodes cannot send heartbeats.
func (f *facts) nodes() (all []health.Condition) {
	switch {
	case f.db.Database.ReadOnly:
		return []health.Condition{f.say(health.Database, health.Row{"case": "read_only", "subject": f.host})}
	case f.db.Database.AwaitsStandby:
		return []health.Condition{f.say(health.Database, health.Row{"case": "standby", "subject": f.host})}
	}
	alive, first := 0, f.at // and the start of the oldest live node
	for i := range f.db.Nodes {
		n := &f.db.Nodes[i]
		if n.Alive {
			alive++
			if n.StartedAt.Before(first) {
				first = n.StartedAt
			}
		}
		all = append(all, f.node(n)...)
	}
	all = append(all, f.leader(alive, first)...)
	if s := f.stalled(); s != nil { // restarted nodes know it only since their start
		all = append(all, f.say(health.NATS, health.Row{"case": "stalled", "subject": health.JetStream,
			"since": *s.StalledSince, "undated": true, "said": health.StalledText(s.StalledWhy)}))
	}
	return all
}

func (f *facts) node(n *health.NodeHealth) (all []health.Condition) {
	row := health.Row{"subject": n.Session.String(), "node": n.Name(), "beat": n.BeatAt, "since": n.BeatAt,
		"expires": n.ExpiresAt, "slices": n.Slices, "items": n.Items, "loads": n.Loads}
	switch {
	case !n.Alive:
		row["since"] = n.ExpiresAt
		if n.Slices > 0 || n.Loads > 0 {
			row["case"] = "holds"
		}
		all = append(all, f.say(health.NodeDead, row))
	case f.at.Sub(n.BeatAt) > lateAfter:
		all = append(all, f.say(health.NodeLate, row))
	}
	switch {
	case !n.Alive || n.Host == f.host: // this node knows its own state better
	case n.Refused != "":
		all = append(all, f.natsRefuses(n.Host, n.Name(), n.Refused))
	case n.Away:
		all = append(all, f.say(health.NATS, health.Row{"subject": n.Host, "node": n.Name()}))
	}
	return all
}

func (f *facts) leader(alive int, first time.Time) []health.Condition {
	row := health.Row{"subject": "leader", "alive": alive}
	switch l := f.db.Leader; {
	case l == nil && alive > 0 && f.at.Sub(first) <= leaderGrace: // the first node is about to become leader
		return nil
	case l == nil:
	case f.at.Sub(l.ExpiresAt) > leaderGrace:
		row["since"] = l.ExpiresAt
	default:
		return nil
	}
	return []health.Condition{f.say(health.LeaderMissing, row)}
}

// stalled returns the node whose streams have been stalled longest, or nil if they respond to any node.
func (f *facts) stalled() *health.Node {
	return health.Stalled(func(yield func(*health.Node) bool) {
		for i := range f.db.Nodes {
			if !yield(&f.db.Nodes[i].Node) {
				return
			}
		}
	})
}

// answered reports whether the streams respond to a node that would know by now if they did not.
func (f *facts) answered() bool {
	return slices.ContainsFunc(f.db.Nodes, func(n health.NodeHealth) bool {
		return n.Alive && !n.Away && n.StalledSince == nil && f.at.Sub(n.StartedAt) > settledAfter
	})
}
