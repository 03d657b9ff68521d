package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	latencyWarm    = 20    // single runs discarded
	latencySingles = 200   // runs of one item
	latencyItems   = 5_000 // of the larger runs
	latencyRuns    = 50    // larger runs
)

type percentiles struct{ p50, p99, max time.Duration }

// measureLatency starts runs one at a time. Plain subscribers get replies on arrival, before JetStream stores them.
func measureLatency(ctx context.Context, cfg config, pg *cluster, rep *report) (err error) {
	b, err := openBed(ctx, cfg, pg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	replies, err := b.watchReplies()
	if err != nil {
		return err
	}
	if _, _, err := b.timeRuns(ctx, replies, latencyWarm, 1); err != nil {
		return err
	}
	whole, last, err := b.timeRuns(ctx, replies, latencySingles, 1)
	if err != nil {
		return err
	}
	_, runLast, err := b.timeRuns(ctx, replies, latencyRuns, latencyItems)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "latency  %d runs of 1 item and %d of %d\n", latencySingles, latencyRuns, latencyItems)
	t := rep.table("latency", "runs", "p50 ms", "p99 ms", "max ms")
	t.add(percentilesOf(whole).row("1 item: start to completion event", latencySingles)...)
	t.add(percentilesOf(last).row("1 item: last reply to completion event", latencySingles)...)
	t.add(percentilesOf(runLast).row(thousands(latencyItems)+" items: last reply to completion event", latencyRuns)...)
	return nil
}

// timeRuns returns each run's duration, and the time from its last reply to its completion event.
func (b *bed) timeRuns(
	ctx context.Context, replies *lastReplies, runs, n int,
) (whole, last []time.Duration, err error) {
	for range runs {
		begun := time.Now()
		done, err := b.complete(ctx, work{endpoint: echoEndpoint}, items{n: n})
		if err != nil {
			return nil, nil, err
		}
		replied, ok := replies.take(done.run)
		if !ok {
			return nil, nil, fmt.Errorf("run %s completed, but no reply of it was seen", done.run)
		}
		whole, last = append(whole, done.at.Sub(begun)), append(last, done.at.Sub(replied))
	}
	return whole, last, nil
}

type lastReplies struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (b *bed) watchReplies() (*lastReplies, error) {
	r := &lastReplies{at: map[string]time.Time{}}
	_, err := b.nc.Subscribe(wire.ReplySubject(echoEndpoint), func(m *nats.Msg) {
		now := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.at[m.Header.Get(wire.HeaderRun)] = now
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	return r, b.nc.Flush()
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

func compose(_ context.Context, chunk *endpoints.Chunk[endpoints.None, composed]) error {
	for _, item := range chunk.Items() {
		var out composed
		for name, into := range map[string]*customer{
			"accounts": &out.Account, "transactions": &out.Transactions, "branches": &out.Branch,
		} {
			part, there, err := endpoints.PartOf[customer](item, name)
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
func measureHoles(ctx context.Context, l *lab, rep *report) error {
	t := rep.table("what is done again", "items", "reset s", "completed after s", "items/s", "parts fetched", "composed")
	if err := l.startService(); err != nil {
		return err
	}
	if err := l.putPlan(ctx, "name: statement\n"+composePlan[len("name: gather\n"):]); err != nil {
		return err
	}
	input := items{n: l.items}
	begun := time.Now()
	done, err := l.complete(ctx, work{plan: "statement"}, input)
	if err != nil {
		return err
	}
	again := time.Since(begun)
	err = l.count(ctx, t, done.run, 1, "gather three parts and compose, from the start", input.n, 0, again)
	if err != nil {
		return err
	}
	keys := input.keys(scattered)
	for i, c := range []struct {
		what string
		n    int
		keys []byte
		args []string
	}{
		{"compose everything again", input.n, nil, []string{"--step", composeEndpoint, "--all"}},
		{"fetch 1,000 scattered parts again, unchanged", scattered, keys, []string{"--step", "accounts", "--keys", "-"}},
		{"the same with their compositions", scattered, keys, []string{"--step", "accounts", "--keys", "-", "--cascade"}},
	} {
		reset, again, err := l.refill(ctx, done.run, c.keys, c.args)
		if err == nil {
			err = l.count(ctx, t, done.run, i+2, c.what, c.n, reset, again)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		fmt.Fprintf(os.Stderr, "holes     %-46s reset %s, completed after %s\n", c.what, reset, again)
	}
	return nil
}

func (l *lab) refill(
	ctx context.Context, run string, keys []byte, args []string,
) (reset, again time.Duration, err error) {
	timed, cancel := context.WithTimeout(ctx, runBase+time.Duration(l.items)*runPerItem)
	defer cancel()
	begun := time.Now()
	if _, err := l.command(timed, bytes.NewReader(keys), append([]string{"run", "reset", run}, args...)...); err != nil {
		return 0, 0, err
	}
	reset = time.Since(begun)
	_, err = l.completion(timed, run)
	return reset, time.Since(begun), err
}

const countParts = `SELECT count(*)::float8 FROM work_result p JOIN run_step s USING (run_id, step)
WHERE p.run_id = $1 AND p.generation = $2 AND (s.name = $3) = $4 AND p.result IS NOT NULL`

// count counts a generation's results, by the steps before the composition and by it.
func (l *lab) count(
	ctx context.Context, t *table, run string, generation int, what string, n int, reset, again time.Duration,
) error {
	made, err := l.number(ctx, countParts, run, generation, composeEndpoint, true)
	if err != nil {
		return err
	}
	fetched, err := l.number(ctx, countParts, run, generation, composeEndpoint, false)
	t.add(what, thousands(float64(n)), fmt.Sprintf("%.3f", reset.Seconds()), fmt.Sprintf("%.2f", again.Seconds()),
		thousands(float64(n)/again.Seconds()), thousands(fetched), thousands(made))
	return err
}

// keys returns n keys spread over the items, one per line.
func (in items) keys(n int) []byte {
	var text []byte
	for k := range n {
		text = append(in.appendKey(text, k*(in.n/n)), '\n')
	}
	return text
}

// old compares a run on a database with many items of finished runs with the same run on a database that has had one.
type old struct {
	seconds []float64 // per round
	empty   []float64 // per round, in the database that has had one run
}

const (
	deletedWithin = 5 * time.Minute
	// restedFor is how long a run must have ended before it can be deleted.
	restedFor = 61 * time.Second

	isGone  = `(SELECT purged_at IS NOT NULL FROM deleted_run WHERE run_id = $1)`
	hasSize = `SELECT pg_database_size(current_database())`
)

// measureOld measures with 1, 3, 10 and 30 finished runs in a database. Both nodes stay up and take turns.
func measureOld(ctx context.Context, cfg config, pg *cluster, rep *report) (err error) {
	t := rep.table("old items", "database, GB", "a run, s", "after one run only, s",
		"ratio, round by round: median, min–max", "one run of them deleted, s")
	return withLab(ctx, cfg, pg, "old", func(l *lab) error {
		if err := l.startService(); err != nil {
			return err
		}
		var ended []finish
		for _, runs := range []int{1, 3, 10, 30} {
			for len(ended) < runs {
				begun := time.Now()
				done, err := l.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items})
				if err != nil {
					return fmt.Errorf("run %d: %w", len(ended)+1, err)
				}
				ended = append(ended, done)
				fmt.Fprintf(os.Stderr, "old       run %d: %.2f s\n", len(ended), done.at.Sub(begun).Seconds())
			}
			if ended, err = l.measureOld(ctx, cfg, t, ended); err != nil {
				return fmt.Errorf("after %d runs: %w", runs, err)
			}
		}
		return nil
	})
}

// measureOld measures with the given finished runs and returns those remaining: it deletes one.
func (l *lab) measureOld(ctx context.Context, cfg config, t *table, ended []finish) ([]finish, error) {
	there, o := len(ended)*cfg.items, old{}
	for round := range cfg.rounds {
		done, err := l.besideEmpty(ctx, cfg, &o, round%2 == 0)
		if err != nil {
			return nil, err
		}
		ended = append(ended, done)
	}
	size, err := l.number(ctx, hasSize)
	if err != nil {
		return nil, err
	}
	deletion, err := l.delete(ctx, ended[0])
	if err != nil {
		return nil, err
	}
	r := spreadOf(roundRatios(o.seconds, o.empty, 1))
	t.add(thousands(float64(there)), fmt.Sprintf("%.1f", size/1e9), fmt.Sprintf("%.2f", spreadOf(o.seconds).median),
		fmt.Sprintf("%.2f", spreadOf(o.empty).median), fmt.Sprintf("%.3f, %.3f–%.3f", r.median, r.low, r.high),
		fmt.Sprintf("%.2f", deletion))
	fmt.Fprintf(os.Stderr, "old       %d items: %.3f of the time after one run only\n", there, r.median)
	return ended[1:], nil
}

// besideEmpty runs the items here and in a separate database, in turn, and returns the run here.
func (l *lab) besideEmpty(ctx context.Context, cfg config, o *old, first bool) (own finish, err error) {
	empty, err := openBed(ctx, cfg, l.pg)
	if err != nil {
		return own, err
	}
	defer func() { err = errors.Join(err, empty.close()) }()
	// A database's first large run must create files and takes a fifth longer.
	if _, err := empty.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items}); err != nil {
		return own, err
	}
	for _, here := range []bool{first, !first} {
		b, into := empty, &o.empty
		if here {
			b, into = l.bed, &o.seconds
		}
		if err := l.pg.checkpoint(ctx); err != nil {
			return own, err
		}
		begun := time.Now()
		done, err := b.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items})
		if err != nil {
			return own, err
		}
		*into = append(*into, done.at.Sub(begun).Seconds())
		if here {
			own = done
		}
	}
	return own, nil
}

func (l *lab) delete(ctx context.Context, run finish) (seconds float64, err error) {
	if err := backoff.Sleep(ctx, restedFor-time.Since(run.at)); err != nil {
		return 0, err
	}
	begun := time.Now()
	if _, err := l.command(ctx, nil, "run", "delete", run.run, "--reason", "bench"); err != nil {
		return 0, err
	}
	err = l.until(ctx, deletedWithin, "the run is deleted", isGone, run.run)
	return time.Since(begun).Seconds(), err
}
