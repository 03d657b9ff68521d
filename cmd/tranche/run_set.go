package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type runSet struct {
	Ref          string           `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	Step         string           `help:"Settings of this step, when there are several." placeholder:"NAME"`
	Chunk        *gather.Adaptive `help:"Items in a request, 1 to 8192, or auto." placeholder:"N|auto"`
	ChunkBytes   *gather.Bytes    `help:"Wanted size of a request, like 512KiB; 0: what the node allows." placeholder:"SIZE"`
	ChunkTime    *gather.Duration `help:"What a request should take, with --chunk auto." placeholder:"TIME"`
	InFlight     *gather.Adaptive `help:"Requests out at once, 1 to 10000, or auto." placeholder:"N|auto"`
	Rate         *float64         `help:"Items a second at the most; 0: no limit." placeholder:"N"`
	Priority     *int             `help:"Runs with a greater number go first." placeholder:"N"`
	MaxFailed    *string          `aliases:"threshold" help:"Failed items that pause the run: more than 500, or 1%; or none. Also --threshold." placeholder:"N|P%"`
	Attempts     *int             `help:"How often an item that fails is tried, in all." placeholder:"N"`
	Backoff      *gather.Duration `help:"Before the second attempt; doubled for each later one." placeholder:"TIME"`
	MaxBackoff   *gather.Duration `help:"The longest such wait." placeholder:"TIME"`
	RetryCode    []string         `sep:"none" help:"An error code that is tried again, whatever the service says; may stand more than once, and replaces those before; none: no code is." placeholder:"CODE"`
	NeverRetry   []string         `sep:"none" help:"An error code that is not; likewise." placeholder:"CODE"`
	SliceTimeout *gather.Duration `help:"For the reply to a request that a service has." placeholder:"TIME"`
	Reason       string           `help:"Why, for the audit log." placeholder:"TEXT"`
}

// Validate is called by kong.
func (r *runSet) Validate() error {
	if reflect.DeepEqual(*r, runSet{Ref: r.Ref, Step: r.Step, Reason: r.Reason}) {
		return errors.New("say what to set: --chunk, --in-flight, --rate, --priority, --max-failed and others")
	}
	if r.Rate != nil && (math.IsNaN(*r.Rate) || math.IsInf(*r.Rate, 0)) { // which JSON cannot say
		return fmt.Errorf("--rate is %v; it must be items a second, or 0 for no limit", *r.Rate)
	}
	return cmp.Or(sizingWithin("--chunk", r.Chunk, bitfield.Size),
		sizingWithin("--in-flight", r.InFlight, gather.MaxInFlight))
}

// Run changes settings of a run.
func (r *runSet) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	done, err := cl.SetRun(ctx, r.Ref, r.changes(), term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", setText(&done))
}

func (r *runSet) changes() client.RunChanges {
	return client.RunChanges{
		Step: r.Step, Priority: r.Priority, MaxFailed: r.MaxFailed, Chunk: (*client.Sizing)(r.Chunk),
		ChunkBytes: (*int)(r.ChunkBytes), ChunkTime: (*client.Duration)(r.ChunkTime),
		InFlight: (*client.Sizing)(r.InFlight), Rate: r.Rate, MaxAttempts: r.Attempts,
		RetryBackoff: (*client.Duration)(r.Backoff), MaxBackoff: (*client.Duration)(r.MaxBackoff),
		Timeout: (*client.Duration)(r.SliceTimeout), RetryCodes: r.RetryCode, NeverRetry: r.NeverRetry, Reason: r.Reason,
	}
}

// setText says what became different, and from when on.
func setText(done *client.ChangedRun) string {
	if len(done.After) == 0 {
		return fmt.Sprintf("run %s has these settings already; nothing was changed\n", done.Run)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "run %s, step %s\n", done.Run, inert(done.Step))
	t := table{}
	for _, name := range slices.Sorted(maps.Keys(done.After)) {
		t.row("  "+strings.ReplaceAll(name, "_", " "), settingText(done.Before[name])+" → "+settingText(done.After[name]))
	}
	text.WriteString(t.String())
	text.WriteString("requests that are sent from now on go by it; those that are out stay as they are\n")
	if done.Paused != "" {
		fmt.Fprintf(&text, "the run stays paused %s\ngo on with: tranche run resume %s\n", inert(done.Paused), done.Run)
	}
	return text.String()
}

func settingText(v any) string {
	text := fmt.Sprint(v)
	if text == "" {
		return "none"
	}
	return inert(text)
}
