package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Nodes lists the nodes.
type Nodes struct{}

// Run lists nodes.
func (Nodes) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, nodesText)(cl.ListNodes(ctx, term.Keep()))
}

// nodesText is the nodes with what each holds, and who leads.
func nodesText(found *client.Nodes, room int) string {
	if len(found.Nodes) == 0 {
		return "no node has been here\n"
	}
	list := cli.List[client.NodeView]{
		Columns: "NODE|STATE|HEARD|CLAIMED>|SENT>|ITEMS>|PROCESS|VERSION|RUNS",
		Row: func(n *client.NodeView) []any {
			state, heard := n.State, n.HeartbeatAt
			if n.Leader {
				state += ", leader"
			}
			if n.EndedAt != nil {
				heard = *n.EndedAt
			}
			return []any{cli.ShortID(n.Session), state, since(found, heard, 100*time.Millisecond), n.Slices.Claimed,
				n.Slices.Sent, n.Items, fmt.Sprintf("%s:%d", n.Host, n.PID), n.Version, nodeRuns(n.Runs)}
		},
	}
	text := list.Text(found.Nodes, room)
	for i := range found.Nodes {
		if n := &found.Nodes[i]; n.NATS != "" {
			text += cli.ShortID(n.Session) + ": " + cli.Inert(n.NATS) + "; see tranche health\n"
		}
	}
	if found.DatabaseReadOnly {
		return text + "PostgreSQL takes no writes: nodes cannot say that they live, and those that do are dead here; see " +
			"tranche health\n"
	}
	if found.Leader == nil {
		return text + "nobody leads at the moment: schedules and sweeps wait for a node that does\n"
	}
	return text + leaderText(found, room)
}

// since is how long ago something was, by the server's clock.
func since(found *client.Nodes, at time.Time, to time.Duration) string {
	return cli.Span(max(found.At.Sub(at), 0).Round(to)) + " ago"
}

// leaderText is who leads and since when, and what it does as the leader.
func leaderText(found *client.Nodes, room int) string {
	lead := found.Leader
	text := fmt.Sprintf("\n%s leads since %s (%s), epoch %d\n", cli.ShortID(lead.Session),
		cli.Moment(lead.Since), cli.Span(max(found.At.Sub(lead.Since), 0)), lead.Epoch)
	if len(found.Duties) == 0 {
		return text
	}
	list := cli.List[client.DutyView]{Columns: "DUTY|RUNS>|FAILED>|LAST|TOOK>|STATE", Row: func(d *client.DutyView) []any {
		last := "-"
		if d.EndedAt != nil {
			last = since(found, *d.EndedAt, 100*time.Millisecond)
		}
		return []any{d.Name, d.Runs, d.Failures, last, cli.Span(cli.Seconds(d.Took).Round(time.Millisecond)),
			dutyState(found, d)}
	}}
	return text + list.Text(found.Duties, room)
}

// dutyState says how a duty is doing, and what went wrong with it last.
func dutyState(found *client.Nodes, d *client.DutyView) string {
	state := "waiting"
	switch {
	case d.Running > 0:
		state = "runs for " + cli.Span(cli.Seconds(d.Running))
	case d.Failing:
		state = "failing"
	}
	if d.LastError != "" && d.FailedAt != nil {
		state += ": " + since(found, *d.FailedAt, time.Second) + ": " + d.LastError
	}
	return state
}

// nodeRuns names the runs that a node works on.
func nodeRuns(runs []client.NodeRun) string {
	var names []string
	for i := range runs {
		names = append(names, cmp.Or(runs[i].Name, cli.ShortID(runs[i].ID)))
	}
	return cmp.Or(strings.Join(names, ", "), "-")
}
