package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	latencyWarm    = 20    // single runs discarded
	latencySingles = 200   // runs of one item
	latencyItems   = 5_000 // of the larger runs
	latencyRuns    = 50    // larger runs
)

// measureLatency starts runs one at a time. Plain subscribers get replies on arrival, before JetStream stores them.
func measureLatency(ctx context.Context, cfg config, pg *cluster, rep *report) {
	t := rep.table("latency", "runs", "p50 ms", "p99 ms", "max ms")
	pg.onBed(ctx, cfg.binary, "tranche", func(b *bed) {
		b.warm(ctx)
		replies := b.watchReplies()
		b.timeRuns(ctx, replies, latencyWarm, 1)
		whole, last := b.timeRuns(ctx, replies, latencySingles, 1)
		t.add(percentilesOf(whole).row("1 item: start to completion event", latencySingles)...)
		t.add(percentilesOf(last).row("1 item: last reply to completion event", latencySingles)...)
		_, last = b.timeRuns(ctx, replies, latencyRuns, latencyItems)
		t.add(percentilesOf(last).row(thousands(latencyItems)+" items: last reply to completion event", latencyRuns)...)
	})
	fmt.Fprintf(os.Stderr, "latency  %d runs of 1 item and %d of %d\n", latencySingles, latencyRuns, latencyItems)
}

// timeRuns returns each run's duration, and the time from its last reply to its completion event.
func (b *bed) timeRuns(ctx context.Context, replies *lastReplies, runs, n int) (whole, last []time.Duration) {
	for range runs {
		begun := time.Now()
		done := b.complete(ctx, work{endpoint: echoEndpoint}, items{n: n})
		replied, ok := replies.take(done.run)
		if !ok {
			demokit.Stop(fmt.Errorf("run %s completed, but no reply of it was seen", done.run))
		}
		whole, last = append(whole, done.at.Sub(begun)), append(last, done.at.Sub(replied))
	}
	return whole, last
}

type lastReplies struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (b *bed) watchReplies() *lastReplies {
	r := &lastReplies{at: map[string]time.Time{}}
	b.subscribe(wire.ReplySubject(echoEndpoint), func(m *nats.Msg) {
		now := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.at[m.Header.Get(wire.HeaderRun)] = now
	})
	return r
}

func (r *lastReplies) take(run string) (at time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok = r.at[run]
	delete(r.at, run)
	return at, ok
}

const composeEndpoint = "compose"

const composePlan = gatherPlan + `- endpoint: compose
  needs: [accounts, transactions, branches]
  inputs: [accounts, transactions, branches]
`

type composed struct {
	Account, Transactions, Branch customer
}

func compose(ctx context.Context, chunk *endpoints.Chunk[endpoints.None, composed]) error {
	for _, item := range chunk.Items() {
		var out composed
		for name, into := range map[string]*customer{
			"accounts": &out.Account, "transactions": &out.Transactions, "branches": &out.Branch,
		} {
			part, there, err := endpoints.PartOf[customer](ctx, item, name)
			if err != nil || !there {
				return fmt.Errorf("part %s of %s: there is %v, %w", name, item.Key, there, err)
			}
			*into = part
		}
		item.Reply(out)
	}
	return nil
}

// scattered is the number of keys reset, spread over the run.
const scattered = 1000

// measureHoles gathers and composes a run and then reruns parts of it: all compositions, a thousand items whose parts
// turn out unchanged, and the same with their dependents.
func measureHoles(ctx context.Context, cfg config, pg *cluster, rep *report) {
	t := rep.table("what is recomputed", "items", "reset s", "completed after s", "parts fetched", "composed")
	pg.onBed(ctx, cfg.binary, "tranche", func(b *bed) {
		b.startService()
		b.applyPlan(ctx, "name: statement\n"+composePlan[len("name: gather\n"):])
		input := items{n: cfg.items}
		begun := time.Now()
		run := b.complete(ctx, work{plan: "statement"}, input).run
		b.addHole(ctx, t, run, 1, "three parts and the composition, from the start", input.n, "–", time.Since(begun))
		keys := input.keys(scattered)
		for i, c := range []struct {
			what string
			n    int
			keys []byte
			args []string
		}{
			{"every composition", input.n, nil, []string{"--step", composeEndpoint, "--all"}},
			{"1,000 scattered parts, unchanged", scattered, keys, []string{"--step", "accounts", "--keys", "-"}},
			{"the same with their compositions", scattered, keys, []string{"--step", "accounts", "--keys", "-", "--cascade"}},
		} {
			timed, cancel := context.WithTimeout(ctx, input.timeout())
			defer cancel()
			begun := time.Now()
			b.command(timed, bytes.NewReader(c.keys), append([]string{"run", "reset", run}, c.args...)...)
			reset := fmt.Sprintf("%.3f", time.Since(begun).Seconds())
			b.completion(timed, run)
			b.addHole(ctx, t, run, i+2, c.what, c.n, reset, time.Since(begun))
		}
	})
}

const countParts = `SELECT count(*)::float8 FROM work_result p JOIN run_step s USING (run_id, step)
WHERE p.run_id = $1 AND p.generation = $2 AND (s.name = $3) = $4 AND p.result IS NOT NULL`

// addHole adds a row with the number of a generation's results, by the steps before the composition and by it.
func (b *bed) addHole(
	ctx context.Context, t *table, run string, generation int, what string, n int, reset string, after time.Duration,
) {
	fetched := b.number(ctx, countParts, run, generation, composeEndpoint, false)
	composed := b.number(ctx, countParts, run, generation, composeEndpoint, true)
	t.add(what, thousands(float64(n)), reset, fmt.Sprintf("%.2f", after.Seconds()), thousands(fetched),
		thousands(composed))
	fmt.Fprintf(os.Stderr, "holes     %-46s reset %s, completed after %s\n", what, reset, after)
}

// keys returns n keys spread over the items, one per line.
func (in items) keys(n int) []byte {
	var text []byte
	for k := range n {
		text = append(in.appendKey(text, k*(in.n/n)), '\n')
	}
	return text
}
