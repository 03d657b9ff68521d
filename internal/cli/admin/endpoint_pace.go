package admin

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// paceRows adds what limits an endpoint over all runs to its head.
func paceRows(t *cli.Table, e *client.Endpoint) {
	limits := []string{budgetText(e.MaxInFlight), rateLimitText(e.RateLimit)}
	if e.CallRate > 0 {
		limits = append(limits, callRateText(e.CallRate))
	}
	t.Row("limits", strings.Join(limits, ", "))
	p := e.Pace
	if p == nil {
		t.Row("pace", "nodes have not had to find one yet")
		return
	}
	t.Row("pace", learnedText(p))
	breaker := "closed"
	if p.Breaker == client.BreakerStateOpen {
		breaker = "OPEN: " + cli.Inert(p.BreakerReason)
		if p.BreakerSince != nil {
			breaker += ", since " + cli.Moment(*p.BreakerSince)
		}
		if p.ProbeAt != nil {
			breaker += fmt.Sprintf("; %d probes so far, the next at %s", p.Probes, cli.Moment(*p.ProbeAt))
		}
	}
	t.Row("breaker", breaker)
}

func learnedText(p *client.PaceView) string {
	parts := []string{fmt.Sprintf("%d requests out, %d are good", p.RequestsOut, p.InFlight)}
	if p.Rate != nil {
		parts = append(parts, "takes "+cli.Rate(*p.Rate))
	}
	if p.Chunk != nil {
		parts = append(parts, fmt.Sprintf("chunks of %d do best", *p.Chunk))
	}
	if p.ChunkCap != nil && p.ChunkCapUntil != nil {
		parts = append(parts, fmt.Sprintf("chunks over %d fail (until %s)", *p.ChunkCap, cli.Moment(*p.ChunkCapUntil)))
	}
	return strings.Join(parts, ", ")
}

// changesText lists the last changes of an endpoint's pace, each with its reason.
func changesText(changes []client.PastPace, room int) string {
	if len(changes) == 0 {
		return ""
	}
	t := cli.Table{Room: room}
	t.Row("CHANGED", "WHAT", "FROM", "TO", "WHY")
	for i := range changes {
		c := &changes[i]
		t.Row(cli.Moment(c.At), strings.ReplaceAll(c.What, "_", " "), cli.OrDash(c.Before),
			cli.OrDash(c.After),
			cli.Inert(c.Reason))
	}
	return "\n" + t.String()
}
