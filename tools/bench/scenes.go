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
)

const (
	latencyWarm  = 20    // single runs thrown away
	latencyItems = 5_000 // of the bigger runs
	latencyRuns  = 50    // bigger runs
)

// latency is what one node, idle before each run, takes.
type latency struct {
	Singles int         `json:"singles"`
	Single  percentiles `json:"single_run"`   // from before the POST to the completion event here
	Last    percentiles `json:"single_event"` // of the same runs: from the last reply to the completion event
	Runs    int         `json:"runs"`         // bigger runs
	Items   int         `json:"items"`        // of each
	RunLast percentiles `json:"run_event"`    // of the bigger runs: from the last reply to the completion event
}

// percentiles are of times in nanoseconds.
type percentiles struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// measureLatency starts runs one after the other. Both ends of a reply's way are seen by a plain subscriber: NATS
// delivers to it when a message arrives at the server, before JetStream has stored it.
func measureLatency(ctx context.Context, cfg config, pg *cluster) (l *latency, err error) {
	b, err := openBed(ctx, cfg, pg)
	if err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	replies, err := b.watchReplies()
	if err != nil {
		return nil, err
	}
	if _, _, err := b.timeRuns(ctx, replies, latencyWarm, 1); err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	l = &latency{Singles: cfg.singles, Runs: latencyRuns, Items: latencyItems}
	whole, last, err := b.timeRuns(ctx, replies, l.Singles, 1)
	if err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	l.Single, l.Last = percentilesOf(whole), percentilesOf(last)
	if _, last, err = b.timeRuns(ctx, replies, l.Runs, l.Items); err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	l.RunLast = percentilesOf(last)
	fmt.Fprintf(os.Stderr, "latency  %d runs of 1 item and %d of %d\n", l.Singles, l.Runs, l.Items)
	return l, nil
}

// timeRuns returns how long each of the runs took, and how long its completion event came after its last reply.
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

// lastReplies notes when the last reply of each run came.
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

// holes is what it takes to do a part of a gathered run again.
type holes struct {
	What    string  `json:"what"`
	Items   int     `json:"items"` // of the run
	Holes   int     `json:"holes"` // made
	Reset   float64 `json:"reset_seconds"`
	Again   float64 `json:"seconds_until_completed"` // from the reset
	Fetched int     `json:"items_fetched"`           // by the steps before the composition
	Made    int     `json:"items_composed"`
}

// composeEndpoint puts the three parts of an item together.
const composeEndpoint = "compose"

const composePlan = gatherPlan + `- {endpoint: compose, needs: [accounts, transactions, branches], inputs: [accounts, transactions, branches]}
`

// composed is what a composition brings.
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

// scattered is how many keys are reset, spread over the whole run.
const scattered = 1000

// measureHoles gathers and composes a run, and then does parts of it again: all compositions, the parts of a thousand
// items that turn out unchanged, and the same with what depends on them.
func measureHoles(ctx context.Context, l *lab, rep *report) error {
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
	first := holes{What: "gather three parts and compose, from the start", Items: input.n, Holes: input.n,
		Again: time.Since(begun).Seconds()}
	if err := l.count(ctx, done.run, 1, &first); err != nil {
		return err
	}
	rep.Holes = append(rep.Holes, first)
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
		h := holes{What: c.what, Items: input.n, Holes: c.n}
		if err := l.refill(ctx, done.run, i+2, &h, c.keys, c.args); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		fmt.Fprintf(os.Stderr, "holes     %-46s reset %.3f s, completed after %.2f s\n", h.What, h.Reset, h.Again)
		rep.Holes = append(rep.Holes, h)
	}
	return nil
}

// refill resets what the arguments name and waits until the run has completed again.
func (l *lab) refill(ctx context.Context, run string, generation int, h *holes, keys []byte, args []string) error {
	timed, cancel := context.WithTimeout(ctx, runBase+time.Duration(h.Items)*runPerItem)
	defer cancel()
	begun := time.Now()
	if _, err := l.command(timed, bytes.NewReader(keys), append([]string{"run", "reset", run}, args...)...); err != nil {
		return err
	}
	h.Reset = time.Since(begun).Seconds()
	if _, err := l.completion(timed, run); err != nil {
		return err
	}
	h.Again = time.Since(begun).Seconds()
	return l.count(ctx, run, generation, h)
}

const countParts = `SELECT count(*)::float8 FROM work_part p JOIN run_step s USING (run_id, step)
WHERE p.run_id = $1 AND p.generation = $2 AND (s.name = $3) = $4 AND p.result IS NOT NULL`

// count asks the database what a generation of the run has brought.
func (l *lab) count(ctx context.Context, run string, generation int, h *holes) error {
	made, err := l.number(ctx, countParts, run, generation, composeEndpoint, true)
	if err != nil {
		return err
	}
	fetched, err := l.number(ctx, countParts, run, generation, composeEndpoint, false)
	h.Made, h.Fetched = int(made), int(fetched)
	return err
}

// keys returns n keys spread over the items, one a line.
func (in items) keys(n int) []byte {
	var text []byte
	for k := range n {
		text = append(in.appendKey(text, k*(in.n/n)), '\n')
	}
	return text
}

func (r *report) refills() *table {
	t := &table{heading: []string{"what is done again", "items", "reset s", "completed after s",
		"items/s", "parts fetched", "composed"}}
	for _, h := range r.Holes {
		t.add(h.What, thousands(float64(h.Holes)), fmt.Sprintf("%.3f", h.Reset), fmt.Sprintf("%.2f", h.Again),
			thousands(float64(h.Holes)/h.Again), thousands(float64(h.Fetched)), thousands(float64(h.Made)))
	}
	return t
}

// old is what a run takes while so many items of finished runs lie in the database, beside the same run on a database
// of its own that has those of one.
type old struct {
	Items    int       `json:"old_items"`
	Bytes    int64     `json:"database_bytes"`
	Seconds  []float64 `json:"seconds"`       // round by round
	Empty    []float64 `json:"empty_seconds"` // of the same rounds, in the database that has had one run
	Deletion float64   `json:"deletion_seconds"`
}

const (
	deletedWithin = 5 * time.Minute
	// restedFor is how long a run has to have ended until it can be deleted.
	restedFor = 61 * time.Second

	isGone  = `(SELECT gone_at IS NOT NULL FROM retention_run WHERE run_id = $1)`
	hasSize = `SELECT pg_database_size(current_database())`
)

// measureOld lets runs lie in a database until there are as many as are asked for, and measures at each of these numbers.
// Both nodes are up all the time, and take turns.
func measureOld(ctx context.Context, cfg config, pg *cluster, rep *report) (err error) {
	aged := cfg
	aged.bed = "old"
	return inLab(ctx, aged, pg, func(l *lab) error {
		if err := l.startService(); err != nil {
			return err
		}
		var ended []finish
		for _, runs := range cfg.oldRuns {
			for len(ended) < runs {
				begun := time.Now()
				done, err := l.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items})
				if err != nil {
					return fmt.Errorf("run %d: %w", len(ended)+1, err)
				}
				ended = append(ended, done)
				fmt.Fprintf(os.Stderr, "old       run %d: %.2f s\n", len(ended), done.at.Sub(begun).Seconds())
			}
			o := old{Items: len(ended) * cfg.items}
			for round := range cfg.rounds {
				done, err := l.besideEmpty(ctx, cfg, &o, round%2 == 0)
				if err != nil {
					return fmt.Errorf("%d old items: %w", o.Items, err)
				}
				ended = append(ended, done)
			}
			size, err := l.number(ctx, hasSize)
			if err != nil {
				return err
			}
			o.Bytes = int64(size)
			if o.Deletion, err = l.delete(ctx, ended[0]); err != nil {
				return err
			}
			ended = ended[1:]
			r := o.ratio()
			fmt.Fprintf(os.Stderr, "old       %d items: %.2f s, %.3f of the time after one run only (%.3f to %.3f); "+
				"one run deleted in %.2f s\n", o.Items, spreadOf(o.Seconds).median, r.median, r.low, r.high, o.Deletion)
			rep.Old = append(rep.Old, o)
		}
		return nil
	})
}

// besideEmpty runs the items here and in a database of its own, one after the other, and returns the run here.
func (l *lab) besideEmpty(ctx context.Context, cfg config, o *old, first bool) (own finish, err error) {
	empty, err := openBed(ctx, cfg, l.pg)
	if err != nil {
		return own, err
	}
	defer func() { err = errors.Join(err, empty.close()) }()
	// The first large run of a database finds no files yet, and takes a fifth longer.
	if _, err := empty.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items}); err != nil {
		return own, err
	}
	for _, here := range []bool{first, !first} {
		b, into := empty, &o.Empty
		if here {
			b, into = l.bed, &o.Seconds
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

// delete deletes a run as a person would, and returns how long its rows were there.
func (l *lab) delete(ctx context.Context, run finish) (seconds float64, err error) {
	if err := rest(ctx, restedFor-time.Since(run.at)); err != nil {
		return 0, err
	}
	begun := time.Now()
	if _, err := l.command(ctx, nil, "run", "delete", run.run, "--reason", "bench"); err != nil {
		return 0, err
	}
	err = l.until(ctx, deletedWithin, "the run is deleted", isGone, run.run)
	return time.Since(begun).Seconds(), err
}

func (o *old) ratio() spread {
	ratios := make([]float64, len(o.Seconds))
	for i := range ratios {
		ratios[i] = o.Seconds[i] / o.Empty[i]
	}
	return spreadOf(ratios)
}

func (r *report) olds() *table {
	t := &table{heading: []string{"old items", "database, GB", "a run, s", "after one run only, s",
		"ratio, round by round: median, min–max", "one run of them deleted, s"}}
	for i := range r.Old {
		o := &r.Old[i]
		q := o.ratio()
		t.add(thousands(float64(o.Items)), fmt.Sprintf("%.1f", float64(o.Bytes)/1e9),
			fmt.Sprintf("%.2f", spreadOf(o.Seconds).median), fmt.Sprintf("%.2f", spreadOf(o.Empty).median),
			fmt.Sprintf("%.3f, %.3f–%.3f", q.median, q.low, q.high), fmt.Sprintf("%.2f", o.Deletion))
	}
	return t
}
