package runs

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// runSteps is a table of the steps of a run, what they need of each other, and their settings.
func runSteps(run *client.RunDocument) string {
	t := cli.Table{Right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true}}
	head := []string{"STEP", "WAITING", "READY", "IN FLIGHT", "RETRY", "DONE", "FAILED"}
	several := len(run.Steps) > 1
	if several {
		head = append(head, "LEFT OUT", "")
	}
	t.Row(head...)
	settings := cli.Table{}
	var graph cli.Table
	for i := range run.Steps {
		s := &run.Steps[i]
		cells := []string{cli.Inert(s.Name), cli.Count(s.Waiting), cli.Count(s.Ready), cli.Count(s.InFlight),
			cli.Count(s.Scheduled),
			cli.Count(s.Done), cli.Count(s.Failed)}
		if several {
			cells = append(cells, cli.Count(s.Skipped), percent(s.Progress))
		}
		t.Row(cells...)
		if several || s.Kind != client.KindEndpoint {
			graph.Row("  "+cli.Inert(s.Name), relationText(s))
		}
		for i, line := range settingsText(s) {
			name := ""
			if i == 0 {
				name = cli.Inert(s.Name)
			}
			settings.Row("  "+name, line)
		}
	}
	text := "\n" + t.String()
	if len(graph.Rows) > 0 {
		text += "\nwhat they do\n" + graph.String()
	}
	return text + "\nsettings\n" + settings.String()
}

// relationText says what a step asks, what it needs, and how that binds it.
func relationText(s *client.StepView) string {
	parts := []string{cli.TargetText(s.Endpoint)}
	if s.Kind == client.KindRequest {
		parts[0] += ", by plain requests"
	}
	if len(s.Needs) > 0 {
		parts = append(parts, "needs "+cli.Inert(strings.Join(s.Needs, ", ")))
	}
	if sees := seenText(s); sees != "" {
		parts = append(parts, sees)
	}
	switch {
	case s.Gate != nil && s.Gate.State == "approved":
		parts = append(parts, "approved by "+cli.Inert(s.Gate.ApprovedBy))
	case s.Gate != nil && s.Gate.State == "waiting":
		parts = append(parts, "waits for somebody to approve it")
	case s.Gate != nil:
		parts = append(parts, "waits until they have all, and somebody approves")
	case s.Barrier && s.BarrierPassed:
		parts = append(parts, "barrier passed")
	case s.Barrier:
		parts = append(parts, "waits at its barrier until they have all")
	}
	if s.Optional {
		parts = append(parts, "optional: others go on without it")
	}
	return strings.Join(parts, "; ")
}

// seenText says what a step is given, where that is not the item and all that it needs.
func seenText(s *client.StepView) string {
	if s.SeesItem && len(s.Inputs) == len(s.Needs) {
		return ""
	}
	seen := s.Inputs
	if s.SeesItem {
		seen = append([]string{"the item"}, seen...)
	}
	if len(seen) == 0 {
		return "sees keys only"
	}
	return "sees " + cli.Inert(strings.Join(seen, ", "))
}

// stepsLine is how far each step is, in a line.
func stepsLine(run client.RunDocument) string {
	parts := make([]string, len(run.Steps))
	for i := range run.Steps {
		s := &run.Steps[i]
		parts[i] = fmt.Sprintf("%s %s", cli.Inert(s.Name), percent(s.Progress))
	}
	return strings.Join(parts, ", ")
}
