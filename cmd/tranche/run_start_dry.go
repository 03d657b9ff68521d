package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// shownFirst is how many items a dry run shows.
const shownFirst = 3

// try says what would be started.
func (r *runStart) try(
	ctx context.Context, term *console, cl *client.Client, settings client.RunSettings,
) error {
	found, err := send(ctx, r, term, settings, cl.DryRun)
	if err != nil {
		return err
	}
	for _, w := range found.Warnings {
		term.note("warning: %s", w)
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", dryRunText(&found))
}

func dryRunText(found *client.DryRun) string {
	if found.Existing != nil {
		return fmt.Sprintf("nothing would be started: run %s is there already, by its idempotency key\n", *found.Existing)
	}
	var text strings.Builder
	plan := inert(found.Plan)
	if found.PlanVersion > 0 {
		plan = fmt.Sprintf("%s@%d", plan, found.PlanVersion)
	}
	fmt.Fprintf(&text, "would start: plan %s, %s items of %s bytes, keys from %s\n", plan, count(found.Items),
		count(found.Bytes), inert(found.Key))
	if found.Skipped > 0 {
		fmt.Fprintf(&text, "%s duplicates would be skipped\n", count(found.Skipped))
	}
	if found.Held > 0 {
		fmt.Fprintf(&text, "%s items would wait for the canary\n", count(found.Held))
	}
	t := table{right: map[int]bool{2: true, 3: true, 4: true, 5: true}}
	t.row("STEP", "ASKS", "CHUNK", "IN FLIGHT", "REQUESTS", "WHO CAN")
	for i := range found.Steps {
		s := &found.Steps[i]
		t.row(inert(s.Name), inert(s.Endpoint), sizeText(s.Chunk, s.ChunkAuto), sizeText(s.InFlight, s.InFlightAuto),
			count(s.Requests), fmt.Sprint(s.Services))
	}
	text.WriteString(t.String())
	for i := range found.First[:min(len(found.First), shownFirst)] {
		row := &found.First[i]
		fmt.Fprintf(&text, "item %s: %s\n", inert(short(row.Key, 40)), inert(short(string(row.Payload), 100)))
	}
	text.WriteString("nothing was started\n")
	return text.String()
}

// sizeText is a size, marked where nodes find it.
func sizeText(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (%d)", n)
	}
	return fmt.Sprint(n)
}
