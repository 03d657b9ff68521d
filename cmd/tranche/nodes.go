package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type nodesCommand struct{}

// Run lists nodes.
func (nodesCommand) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.ListNodes(ctx, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", nodesText(&found, term.room()))
}

// nodesText is the nodes with what each holds, and who leads.
func nodesText(found *client.Nodes, room int) string {
	if len(found.Nodes) == 0 {
		return "no node has been here\n"
	}
	t := table{right: map[int]bool{3: true, 4: true, 5: true}, room: room}
	t.row("NODE", "STATE", "HEARD", "CLAIMED", "SENT", "ITEMS", "PROCESS", "VERSION", "RUNS")
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
		t.row(shortID(n.Session), state, span(heard.Round(100*time.Millisecond))+" ago", count(n.Slices.Claimed),
			count(n.Slices.Sent), count(n.Items), fmt.Sprintf("%s:%d", short(inert(n.Host), 24), n.PID),
			short(inert(n.Version), 16), nodeRuns(n.Runs))
	}
	text := t.String()
	if found.Leader == nil {
		return text + "nobody leads at the moment: schedules and sweeps wait for a node that does\n"
	}
	return text + leaderText(found, room)
}

// leaderText is who leads and since when, and what it does as the leader.
func leaderText(found *client.Nodes, room int) string {
	lead := found.Leader
	text := fmt.Sprintf("\n%s leads since %s (%s), epoch %d\n", shortID(lead.Session),
		lead.Since.Local().Format(time.DateTime), span(max(found.At.Sub(lead.Since), 0)), lead.Epoch)
	if len(found.Duties) == 0 {
		return text
	}
	t := table{right: map[int]bool{1: true, 2: true, 4: true}, room: room}
	t.row("DUTY", "RUNS", "FAILED", "LAST", "TOOK", "STATE")
	for i := range found.Duties {
		d := &found.Duties[i]
		last := "-"
		if d.EndedAt != nil {
			last = span(max(found.At.Sub(*d.EndedAt), 0).Round(100*time.Millisecond)) + " ago"
		}
		t.row(inert(d.Name), count(d.Runs), count(d.Failures), last, span(seconds(d.Took).Round(time.Millisecond)),
			dutyState(found, d))
	}
	return text + t.String()
}

// dutyState says how a duty is doing, and what went wrong with it last.
func dutyState(found *client.Nodes, d *client.DutyView) string {
	state := "waiting"
	switch {
	case d.Running > 0:
		state = "runs for " + span(seconds(d.Running))
	case d.Failing:
		state = "failing"
	}
	if d.LastError != "" && d.FailedAt != nil {
		state += ": " + span(max(found.At.Sub(*d.FailedAt), 0).Round(time.Second)) + " ago: " + inert(d.LastError)
	}
	return state
}

// nodeRuns names the runs that a node works on.
func nodeRuns(runs []client.NodeRun) string {
	var names []string
	for i := range runs {
		name := runs[i].Name
		if name == "" {
			name = shortID(runs[i].ID)
		}
		names = append(names, short(inert(name), 20))
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}
