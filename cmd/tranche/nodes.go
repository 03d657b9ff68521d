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
		text += "nobody leads at the moment: schedules and sweeps wait for a node that does\n"
	}
	return text
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
