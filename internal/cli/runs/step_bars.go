package runs

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

const (
	// maxBars is how many steps have a bar each; a run of more shows how far it is as a whole.
	maxBars = 12
	barRoom = 24
	// minBarColumns is what a bar with its numbers needs.
	minBarColumns = 78
)

// liveLines is what a person sees of a run that moves: a line, and under it a bar for each step, where there are
// several.
func liveLines(run client.RunDocument, columns int) []string {
	if len(run.Steps) < 2 || len(run.Steps) > maxBars || columns < minBarColumns {
		return []string{barLine(run, columns)}
	}
	lines := []string{cli.Short(runLine(run, false), columns-1)}
	name := 0
	for i := range run.Steps {
		name = max(name, len([]rune(stepName(&run.Steps[i]))))
	}
	for i := range run.Steps {
		s := &run.Steps[i]
		line := fmt.Sprintf("  %-*s  %s %6s  %s", name, stepName(s), bar(s.Progress, barRoom), percent(s.Progress),
			cli.Count(s.Done))
		if s.Failed > 0 {
			line += "  " + cli.Count(s.Failed) + " failed"
		}
		if s.Skipped > 0 {
			line += "  " + cli.Count(s.Skipped) + " left out"
		}
		lines = append(lines, cli.Short(line, columns-1))
	}
	return lines
}

func stepName(s *client.StepView) string { return cli.Short(cli.Inert(s.Name), 16) }

// draw puts the lines where those before them are.
func (p *progress) draw(lines []string) {
	up := ""
	if p.lines > 1 {
		up = fmt.Sprintf("\x1b[%dA", p.lines-1)
	}
	p.last, p.lines = strings.Join(lines, "\n\x1b[K"), len(lines)
	_, _ = fmt.Fprintf(p.term.Err, "%s\r\x1b[K%s", up, p.last) // only for looks
}
