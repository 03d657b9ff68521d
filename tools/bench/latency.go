package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

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
