package health

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
)

// nodes judges who is there and who leads. While the database takes no writes, nodes cannot say that they live.
func (f *facts) nodes() (all []Condition) {
	if f.db.Database.ReadOnly {
		return []Condition{unkept(Condition{
			Kind: Database, Severity: Critical, Subject: f.host, Title: "PostgreSQL takes no writes", Link: "/nodes",
			Detail: "Nothing is sent and recorded, no command changes anything, and nodes cannot say that they live.",
			Remedy: "See whether it is a standby (`SELECT pg_is_in_recovery()`) that --database should not lead to, or was " +
				"set so (`SHOW default_transaction_read_only`); work goes on by itself when it takes writes again",
		})}
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

func (f *facts) node(n *health.NodeHealth) (all []Condition) {
	switch {
	case !n.Alive:
		c := Condition{
			Kind: NodeDead, Severity: Warning, Subject: n.Session.String(), Link: "/nodes",
			Title: "Died: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and did not stop in good order. Others have taken over what it "+
				"held.", ago(f.at.Sub(n.BeatAt))),
			Remedy: "Start it again: `tranche serve`; its log says why it died",
		}
		if n.Slices > 0 || n.Loads > 0 {
			c.Severity = Critical
			c.Detail = fmt.Sprintf("It was heard of last %s ago, and still holds %s with %s, and %s that it was loading. The "+
				"node that leads takes them from it.", ago(f.at.Sub(n.BeatAt)), count(n.Slices, "request"), count(n.Items, "item"),
				count(n.Loads, "run"))
		}
		all = append(all, dated(n.ExpiresAt, c))
	case f.at.Sub(n.BeatAt) > lateAfter:
		all = append(all, dated(n.BeatAt, Condition{
			Kind: NodeLate, Severity: Warning, Subject: n.Session.String(), Link: "/nodes",
			Title: "Not heard of: " + n.Name(),
			Detail: fmt.Sprintf("It was heard of last %s ago, and holds %s with %s. It counts as dead in %s.",
				ago(f.at.Sub(n.BeatAt)), count(n.Slices, "request"), count(n.Items, "item"), ago(n.ExpiresAt.Sub(f.at))),
			Remedy: "See whether its machine is overloaded, or cut off from PostgreSQL",
		}))
	}
	switch {
	case !n.Alive || n.Host == f.host: // this one knows that better itself
	case n.Refused != "":
		all = append(all, natsRefuses(n.Host, n.Name(), n.Refused))
	case n.Away:
		all = append(all, unkept(Condition{
			Kind: NATS, Severity: Critical, Subject: n.Host, Link: "/nodes",
			Title:  "Cannot reach NATS: " + n.Name(),
			Detail: "It sends nothing and records nothing until it can.",
			Remedy: seeToNATS,
		}))
	}
	return all
}

func (f *facts) leader(alive int, first time.Time) []Condition {
	c := Condition{
		Kind: LeaderMissing, Severity: Critical, Subject: "leader", Title: "No node leads", Link: "/nodes",
		Detail: fmt.Sprintf("%s alive. Without a leader, requests of dead nodes and past deadlines are not issued again.",
			isAre(alive, "node")),
		Remedy: "Start a node: `tranche serve`",
	}
	if alive > 0 {
		c.Remedy = "See what the nodes say in their logs: one of them should take the lead within seconds"
	}
	switch l := f.db.Leader; {
	case l == nil && alive > 0 && f.at.Sub(first) <= leaderGrace: // the first node of all is about to
		return nil
	case l == nil:
		return []Condition{unkept(c)}
	case f.at.Sub(l.ExpiresAt) > leaderGrace:
		c.Detail = fmt.Sprintf("The lease ran out %s ago, and %s", ago(f.at.Sub(l.ExpiresAt)), c.Detail)
		return []Condition{dated(l.ExpiresAt, c)}
	default:
		return nil
	}
}

func isAre(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + " is"
	case 1:
		return "1 " + noun + " is"
	default:
		return fmt.Sprintf("%d %ss are", n, noun)
	}
}
