package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	lateAfter   = 3 * time.Second // three heartbeats
	leaderGrace = 2 * time.Second // a lease changes hands within it
)

// judge says what of the facts a person should see to. It asks no one.
func judge(f *facts) (all []health.Condition) {
	if f.db == nil {
		all = append(all, f.databaseAway())
	} else {
		all = append(all, f.told()...)
		all = append(all, f.nodes()...)
		all = append(all, f.others()...)
	}
	all = append(all, f.machine()...)
	for i := range all {
		all[i] = all[i].Filled()
	}
	return all
}

// told is what the database tells, and who does not listen. Where no one does, nothing else is said of what waits.
func (f *facts) told() (all []health.Condition) {
	none := map[string]bool{}
	for _, e := range f.unheard {
		none[e.Endpoint] = true
		if kind, _ := workqueue.TargetKind(e.Endpoint); kind == workqueue.KindEndpoint && f.stalled() != nil {
			continue // services may be at servers that are away: it can be told when JetStream answers again
		}
		all = append(all, f.nobody(e))
	}
	for i := range f.db.Conditions {
		if c := f.db.Conditions[i]; c.Kind != health.OldestWaiting || !none[c.Subject] {
			all = append(all, c)
		}
	}
	return all
}

// nobody reports work that no service does.
func (f *facts) nobody(e unheard) health.Condition {
	c := health.Condition{Kind: health.NoListeners, Severity: health.Critical, Subject: e.Endpoint}
	kind, target := workqueue.TargetKind(e.Endpoint)
	if kind == workqueue.KindLocal {
		c.Title = "No node has the function " + target
		c.Detail = haveWork(e.Runs)
		c.Remedy = "Start the program that embeds a node with this function"
	} else {
		c.Title = "No one listens on endpoint " + e.Endpoint
		if e.like != "" {
			c.Title += "; was " + e.like + " meant?"
		}
		c.Detail = fmt.Sprintf("%s Requests that are out: %d.", haveWork(e.Runs), e.Out)
		c.Remedy = fmt.Sprintf("Start a service that listens on it; it is there when this names it: "+
			"`tranche endpoints show %s`", e.Endpoint)
	}
	c.Undated = true
	return c
}

func haveWork(runs int64) string {
	if runs == 1 {
		return "1 running run has work for it."
	}
	return fmt.Sprintf("%d running runs have work for it.", runs)
}

// nodes judges who is there and who leads. While the database takes no writes, nodes cannot send heartbeats.
func (f *facts) nodes() (all []health.Condition) {
	if f.db.Database.ReadOnly {
		return []health.Condition{{
			Undated: true, Kind: health.Database, Severity: health.Critical, Subject: f.host,
			Link: "/nodes", Title: "PostgreSQL takes no writes",
			Detail: "Nothing is sent or recorded, no command changes anything, and nodes cannot send heartbeats.",
			Remedy: "See whether it is a standby (`SELECT pg_is_in_recovery()`) that --database should not lead to, or was " +
				"set so (`SHOW default_transaction_read_only`); work goes on by itself when it takes writes again",
		}}
	}
	if f.db.Database.AwaitsStandby {
		return []health.Condition{{
			Undated: true, Kind: health.Database, Severity: health.Critical, Subject: f.host,
			Link: "/nodes", Title: "Commits wait for a standby",
			Detail: "PostgreSQL confirms no commit before a synchronous standby has it, and none does: nothing is sent and " +
				"recorded, and nodes cannot send heartbeats.",
			Remedy: health.StandbyRemedy,
		}}
	}
	alive, first := 0, f.at // and since when one has been there
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
	return append(append(all, f.leader(alive, first)...), f.quorum()...)
}

func (f *facts) node(n *health.NodeHealth) (all []health.Condition) {
	switch {
	case !n.Alive:
		c := health.Condition{
			Kind: health.NodeDead, Subject: n.Session.String(), Since: n.ExpiresAt,
			Title: "Died: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and did not stop in good order. Others have taken over what it "+
				"held.", health.Ago(f.at.Sub(n.BeatAt))),
			Remedy: "Start it again: `tranche serve`; its log says why it died",
		}
		if n.Slices > 0 || n.Loads > 0 {
			c.Severity = health.Critical
			c.Detail = fmt.Sprintf("It was heard of last %s ago, and still holds %s with %s, and %s that it was loading. The "+
				"node that leads takes them from it.", health.Ago(f.at.Sub(n.BeatAt)), health.Count(n.Slices, "request"),
				health.Count(n.Items, "item"), health.Count(n.Loads, "run"))
		}
		all = append(all, c)
	case f.at.Sub(n.BeatAt) > lateAfter:
		all = append(all, health.Condition{
			Since: n.BeatAt, Kind: health.NodeLate, Subject: n.Session.String(),
			Title: "Not heard of: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and holds %s with %s. It counts as dead in %s.",
				health.Ago(f.at.Sub(n.BeatAt)), health.Count(n.Slices, "request"), health.Count(n.Items, "item"),
				health.Ago(n.ExpiresAt.Sub(f.at))),
			Remedy: "See whether its machine is overloaded, or cut off from PostgreSQL",
		})
	}
	switch {
	case !n.Alive || n.Host == f.host: // this one knows that better itself
	case n.Refused != "":
		all = append(all, natsRefuses(n.Host, n.Name(), n.Refused))
	case n.Away:
		all = append(all, health.Condition{
			Undated: true, Kind: health.NATS, Severity: health.Critical, Subject: n.Host,
			Title:  "Cannot reach NATS: " + n.Name(),
			Detail: "It sends nothing and records nothing until it can.",
			Remedy: health.NATSAdvice().Remedy(),
		})
	}
	return all
}

func (f *facts) leader(alive int, first time.Time) []health.Condition {
	c := health.Condition{
		Kind: health.LeaderMissing, Severity: health.Critical, Subject: "leader", Title: "No node leads",
		Detail: fmt.Sprintf("%s alive. Without a leader, requests of dead nodes and past deadlines are not reissued.",
			health.ThereAre(alive, "node")),
		Remedy: "Start a node: `tranche serve`",
	}
	if alive > 0 {
		c.Remedy = "See what the nodes say in their logs: one of them should take the lead within seconds"
	}
	switch l := f.db.Leader; {
	case l == nil && alive > 0 && f.at.Sub(first) <= leaderGrace: // the first node of all is about to
		return nil
	case l == nil:
		c.Undated = true
		return []health.Condition{c}
	case f.at.Sub(l.ExpiresAt) > leaderGrace:
		c.Detail = fmt.Sprintf("The lease ran out %s ago, and %s", health.Ago(f.at.Sub(l.ExpiresAt)), c.Detail)
		c.Since = l.ExpiresAt
		return []health.Condition{c}
	default:
		return nil
	}
}

// quorum tells of streams that do not answer any node that reaches NATS.
func (f *facts) quorum() []health.Condition {
	stalled := f.stalled()
	if stalled == nil {
		return nil
	}
	return []health.Condition{{ // nodes that start again know only since then
		Undated: true, Since: *stalled.StalledSince, Kind: health.NATS, Severity: health.Critical, Subject: health.JetStream,
		Title:  "JetStream does not answer",
		Detail: "Nothing is sent or recorded until it does. " + health.StalledText(stalled.StalledWhy) + ".",
		Remedy: health.QuorumAdvice().Remedy(),
	}}
}

// stalled returns the node that the streams have not answered for longest, or nil when they answer some node.
func (f *facts) stalled() *health.Node {
	return health.Stalled(func(yield func(*health.Node) bool) {
		for i := range f.db.Nodes {
			if !yield(&f.db.Nodes[i].Node) {
				return
			}
		}
	})
}

// answered reports whether the streams answer a node that would know by now if they did not.
func (f *facts) answered() bool {
	return slices.ContainsFunc(f.db.Nodes, func(n health.NodeHealth) bool {
		return n.Alive && !n.Away && n.StalledSince == nil && f.at.Sub(n.StartedAt) > settledAfter
	})
}
