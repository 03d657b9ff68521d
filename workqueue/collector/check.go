package collector

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

func (k *OpKeying) same(other *OpKeying) bool {
	if k == nil || other == nil {
		return k == other
	}
	return k.Field == other.Field && k.Partitions == other.Partitions && slices.Equal(k.Values, other.Values)
}

// RefusalNoted is how often a node records that adds to a collector are refused, while they are.
const RefusalNoted = time.Minute

const (
	noteRefused = `
UPDATE collector
SET refused_since = coalesce(refused_since, tranche_now()), refused_at = tranche_now(), refused_for = $2
WHERE name = $1 AND state <> 'deleting'`

	// noteTaken clears the refusal unless another node has lately repeated it. Mostly none exists.
	noteTaken = `
UPDATE collector SET refused_since = NULL
WHERE name = $1 AND state <> 'deleting' AND refused_since IS NOT NULL
  AND ($2 OR refused_at < tranche_now() - $3::interval)`
)

// NoteRefused records that adds to a collector are refused because their enrichment is unavailable.
func (s Store) NoteRefused(ctx context.Context, name, problem string) error {
	_, err := s.db.Pool.Exec(ctx, noteRefused, name, pg.Plain(problem))
	return pg.Wrap(err, "note that adds to collector %s are refused", name)
}

// NoteTaken records that adds succeed. mine: this node recorded the refusal; another node's stays while repeated.
func (s Store) NoteTaken(ctx context.Context, name string, mine bool) error {
	_, err := s.db.Pool.Exec(ctx, noteTaken, name, mine, 2*RefusalNoted)
	return pg.Wrap(err, "note that adds to collector %s are taken", name)
}

// explain says why adds are refused and why operations wait: first what affects all, then some.
func (v *CollectorView) explain() {
	if v.RefusedSince != nil && v.RefusedAt != nil {
		v.because("source", nil, "adds are refused since %s, last at %s, because enrich fails: %.300s; "+
			"fix the source, query, service or function, and add again",
			stamp(*v.RefusedSince), stamp(*v.RefusedAt), v.RefusedFor)
	}
	if v.Waiting+v.Backoff == 0 {
		if v.Parked > 0 {
			v.because("parked", nil, "all %d operations are parked: requeue them, or drop them", v.Parked)
		}
		return
	}
	if v.State == workqueue.DocumentPaused {
		v.because("paused", nil, "%s paused the collector; resume it", cmp.Or(v.PausedBy, "an operator"))
	}
	if v.BackoffUntil != nil {
		v.because("failing", v.BackoffUntil, "flushes fail, the last of %d with %s: %.200s; the next is tried at %s",
			v.Failures, v.FailureCode, v.FailureMessage, stamp(*v.BackoffUntil))
	}
	v.explainEndpoint()
	if wait := v.after(v.callsIn); v.Due > 0 && wait != nil {
		v.because("rate", wait, "the collector may make %s calls; the next is due at %s", v.Spec.Rate, stamp(*wait))
	}
	v.explainFlushing()
	if v.Older > 0 {
		v.because("key_version", nil, "%d operations were added under earlier keys; they go first", v.Older)
	}
	if v.Due == 0 && v.NextDue != nil {
		v.because("waiting", v.NextDue, "no key has %d operations, an old enough one or one that is due for its next try; "+
			"the first key is due at %s", v.Spec.MinSize, stamp(*v.NextDue))
	}
}

// explainFlushing says what waits for flushes in progress: further keys, and operations of the same keys.
func (v *CollectorView) explainFlushing() {
	if v.Due > 0 && v.Flushing > 0 {
		v.explainTurns()
	}
	if nodes, most := crowded(v.nodes, v.Name); nodes > 0 {
		v.because("nodes_busy", nil, "the places for flushes are taken on all nodes that run, which are %d; collector %s "+
			"has the most of them, %d: see why it takes so long, or start another node", nodes, most.Collector, most.Keys)
	}
	if v.Flushing > 0 && v.flushedAt != nil && v.flushUntil != nil {
		v.because("flushing", v.flushUntil, "keys that are being flushed: %d, the first since %s; what waits for these keys "+
			"is flushed after that; unanswered operations are retried by %s", v.Flushing, stamp(*v.flushedAt),
			stamp(*v.flushUntil))
	}
}

func (v *CollectorView) explainTurns() {
	switch {
	case v.Flushing >= v.Spec.InFlight:
		v.because("in_flight", nil, "%d keys are being flushed, which is as many as may be", v.Flushing)
	case v.endpoint.open:
		v.because("one_at_a_time", nil, "keys are flushed one at a time while the breaker is open, and one is in progress")
	case v.Failures >= restAfter:
		v.because("one_at_a_time", nil, "the last %d flushes came to nothing: keys are flushed one at a time until a flush "+
			"comes through, and one is in progress", v.Failures)
	}
}

func (v *CollectorView) explainEndpoint() {
	e := &v.endpoint
	if e.open {
		since := v.At
		if e.since != nil {
			since = *e.since
		}
		v.because("breaker", e.probeAt, "the breaker of endpoint %s is open since %s, and passes only a probe "+
			"now and then: %s", v.Spec.Endpoint, stamp(since), e.reason)
	}
	if v.Due == 0 {
		return
	}
	if wait := v.after(e.callsIn); wait != nil {
		v.because("endpoint_request_rate", wait, "endpoint %s may be called again at %s, by its call rate", v.Spec.Endpoint,
			stamp(*wait))
	}
	if wait := v.after(e.itemsIn); wait != nil {
		v.because("endpoint_rate", wait, "endpoint %s may be asked again at %s, by its rate of items", v.Spec.Endpoint,
			stamp(*wait))
	}
	if e.budget > 0 && e.busy >= e.budget {
		v.because("endpoint_in_flight", nil, "endpoint %s has %d requests in progress, which is as many as may be",
			v.Spec.Endpoint, e.busy)
	}
}

func (v *CollectorView) because(code string, until *time.Time, format string, args ...any) {
	v.Why = append(v.Why, CollectorReason{Code: code, Text: fmt.Sprintf(format, args...), Until: until})
}

// after is a time from now, or nil for 0 and less.
func (v *CollectorView) after(seconds float64) *time.Time {
	if seconds <= 0 {
		return nil
	}
	return new(v.At.Add(time.Duration(seconds * float64(time.Second))))
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }
