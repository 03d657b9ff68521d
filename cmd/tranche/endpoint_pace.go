package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// paceRows adds what limits an endpoint over all runs to its head.
func paceRows(t *table, e *client.Endpoint) {
	limits := []string{budgetText(e.MaxInFlight), rateLimitText(e.RateLimit)}
	if e.CallRate > 0 {
		limits = append(limits, callRateText(e.CallRate))
	}
	t.row("limits", strings.Join(limits, ", "))
	p := e.Pace
	if p == nil {
		t.row("pace", "nodes have not had to find one yet")
		return
	}
	t.row("pace", learnedText(p))
	breaker := "closed"
	if p.Breaker == client.BreakerStateOpen {
		breaker = "OPEN: " + inert(p.BreakerReason)
		if p.BreakerSince != nil {
			breaker += ", since " + moment(*p.BreakerSince)
		}
		if p.ProbeAt != nil {
			breaker += fmt.Sprintf("; %d probes so far, the next at %s", p.Probes, moment(*p.ProbeAt))
		}
	}
	t.row("breaker", breaker)
}

func learnedText(p *client.PaceView) string {
	parts := []string{fmt.Sprintf("%d requests out, %d are good", p.RequestsOut, p.InFlight)}
	if p.Rate != nil {
		parts = append(parts, "takes "+rate(*p.Rate))
	}
	if p.Chunk != nil {
		parts = append(parts, fmt.Sprintf("chunks of %d do best", *p.Chunk))
	}
	if p.ChunkCap != nil && p.ChunkCapUntil != nil {
		parts = append(parts, fmt.Sprintf("chunks over %d fail (until %s)", *p.ChunkCap, moment(*p.ChunkCapUntil)))
	}
	return strings.Join(parts, ", ")
}

// changesText lists the last changes of an endpoint's pace, each with its reason.
func changesText(changes []client.PastPace, room int) string {
	if len(changes) == 0 {
		return ""
	}
	t := table{room: room}
	t.row("CHANGED", "WHAT", "FROM", "TO", "WHY")
	for i := range changes {
		c := &changes[i]
		t.row(c.At.Local().Format(time.DateTime)[5:], strings.ReplaceAll(c.What, "_", " "), dash(c.Before), dash(c.After),
			inert(c.Reason))
	}
	return "\n" + t.String()
}
