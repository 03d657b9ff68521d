package admin

import (
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
	found, err := cl.ListNodes(ctx, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s", nodesText(&found, term.Room()))
}

// nodesText is the nodes with what each holds, and who leads.
func nodesText(found *client.Nodes, room int) string {
	if len(found.Nodes) == 0 {
		return "no node has been here\n"
	}
	t := cli.Table{Right: map[int]bool{3: true, 4: true, 5: true}, Room: room}
	t.Row("NODE", "STATE", "HEARD", "CLAIMED", "SENT", "ITEMS", "PROCESS", "VERSION", "RUNS")
	for i := range found.Nodes {
		n := &found.Nodes[i]
		state := n.State
		if n.Leader {
			state += ", leader"
		}
		heard := max(found.At.Sub(n.HeartbeatAt), 0)
		if n.EndedAt != nil {
			heard = max(found.At.Sub(*n.EndedAt), 0)
		}
		t.Row(cli.ShortID(n.Session), state, cli.Span(heard.Round(100*time.Millisecond))+" ago", cli.Count(n.Slices.Claimed),
			cli.Count(n.Slices.Sent), cli.Count(n.Items), fmt.Sprintf("%s:%d", cli.Inert(n.Host), n.PID),
			cli.Inert(n.Version), nodeRuns(n.Runs))
	}
	text := t.String()
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

// leaderText is who leads and since when, and what it does as the leader.
func leaderText(found *client.Nodes, room int) string {
	lead := found.Leader
	text := fmt.Sprintf("\n%s leads since %s (%s), epoch %d\n", cli.ShortID(lead.Session),
		cli.Moment(lead.Since), cli.Span(max(found.At.Sub(lead.Since), 0)), lead.Epoch)
	if len(found.Duties) == 0 {
		return text
	}
	t := cli.Table{Right: map[int]bool{1: true, 2: true, 4: true}, Room: room}
	t.Row("DUTY", "RUNS", "FAILED", "LAST", "TOOK", "STATE")
	for i := range found.Duties {
		d := &found.Duties[i]
		last := "-"
		if d.EndedAt != nil {
			last = cli.Span(max(found.At.Sub(*d.EndedAt), 0).Round(100*time.Millisecond)) + " ago"
		}
		t.Row(cli.Inert(d.Name), cli.Count(d.Runs), cli.Count(d.Failures), last,
			cli.Span(cli.Seconds(d.Took).Round(time.Millisecond)),
			dutyState(found, d))
	}
	return text + t.String()
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
		state += ": " + cli.Span(max(found.At.Sub(*d.FailedAt), 0).Round(time.Second)) + " ago: " + cli.Inert(d.LastError)
	}
	return state
}

// nodeRuns names the runs that a node works on.
func nodeRuns(runs []client.NodeRun) string {
	var names []string
	for i := range runs {
		name := runs[i].Name
		if name == "" {
			name = cli.ShortID(runs[i].ID)
		}
		names = append(names, cli.Inert(name))
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}
