package runs

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// shownFirst is how many items a dry run shows.
const shownFirst = 3

// try says what would be started.
func (r *Start) try(
	ctx context.Context, term *cli.Console, cl *client.Client, settings client.RunSettings,
) error {
	found, err := send(ctx, r, term, settings, cl.DryRun)
	if err != nil {
		return err
	}
	for _, w := range found.Warnings {
		term.Note("warning: %s", w)
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", dryRunText(&found))
}

func dryRunText(found *client.DryRun) string {
	if found.Existing != nil {
		return fmt.Sprintf("nothing would be started: run %s is there already, by its idempotency key\n", *found.Existing)
	}
	var text strings.Builder
	plan := cli.Inert(found.Plan)
	if found.PlanVersion > 0 {
		plan = fmt.Sprintf("%s@%d", plan, found.PlanVersion)
	}
	fmt.Fprintf(&text, "would start: plan %s, %s of %s, keys from %s\n", plan, cli.Plural(found.Items, "item"),
		cli.Plural(found.Bytes, "byte"), cli.Inert(found.Key))
	if found.Skipped > 0 {
		fmt.Fprintf(&text, "%s would be skipped\n", cli.Plural(found.Skipped, "duplicate"))
	}
	if found.Held > 0 {
		fmt.Fprintf(&text, "%s would wait for the canary\n", cli.Plural(found.Held, "item"))
	}
	t := cli.Table{Right: map[int]bool{2: true, 3: true, 4: true, 5: true}}
	t.Row("STEP", "ASKS", "CHUNK", "IN FLIGHT", "REQUESTS", "WHO CAN")
	for i := range found.Steps {
		s := &found.Steps[i]
		t.Row(cli.Inert(s.Name), cli.Inert(s.Endpoint), sizeText(s.Chunk, s.ChunkAuto), sizeText(s.InFlight, s.InFlightAuto),
			cli.Count(s.Requests), fmt.Sprint(s.Services))
	}
	text.WriteString(t.String())
	for i := range found.First[:min(len(found.First), shownFirst)] {
		row := &found.First[i]
		fmt.Fprintf(&text, "item %s: %s\n", cli.Inert(cli.Short(row.Key, 40)), cli.Inert(cli.Short(string(row.Payload), 100)))
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
