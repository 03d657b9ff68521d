package collector

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

func (k *OpKeying) same(other *OpKeying) bool {
	if k == nil || other == nil {
		return k == other
	}
	return k.Field == other.Field && k.Partitions == other.Partitions && slices.Equal(k.Values, other.Values)
}

// validate checks what the store relies on, and returns the rate in requests a second.
func (c *Text) validate() (rate float64, err error) {
	s := &c.Spec
	switch {
	case !validCollectorName(c.Name):
		return 0, workqueue.BadSetting("invalid collector name %.80q; use 1 to 64 of A-Z a-z 0-9 _ -", c.Name)
	case s.Endpoint == "" || !pg.ValidText(s.Endpoint):
		return 0, c.wrong("endpoint is %.80q; name the endpoint that takes the operations", s.Endpoint)
	case !pg.ValidText(c.Source) || len(c.Source) > maxCollectorText:
		return 0, c.wrong("its text must be UTF-8 without NUL of at most %d bytes", maxCollectorText)
	case s.Order != OrderFIFO && s.Order != OrderPriority:
		return 0, c.wrong("order is %.40q; give %s or %s", s.Order, OrderFIFO, OrderPriority)
	case s.MinSize > s.MaxSize:
		return 0, c.wrong("min_size is %d, which is more than max_size, %d", s.MinSize, s.MaxSize)
	case s.MaxBackoff < s.Backoff:
		return 0, c.wrong("max_backoff is %s, which is less than backoff, %s", s.MaxBackoff, s.Backoff)
	}
	if kind, _ := workqueue.TargetKind(s.Endpoint); kind != workqueue.KindEndpoint {
		return 0, c.wrong("endpoint is %.80q; only endpoints of services take operations", s.Endpoint)
	}
	if err := c.checkNumbers(); err != nil {
		return 0, err
	}
	if err := cmp.Or(c.checkKeying(), c.checkFold()); err != nil {
		return 0, err
	}
	return ParseRequestRate(s.Rate)
}

func (c *Text) wrong(format string, args ...any) error {
	return workqueue.BadSetting("collector %s: %s", c.Name, fmt.Sprintf(format, args...))
}

func (c *Text) checkNumbers() error {
	s := &c.Spec
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"min_size", s.MinSize, MaxFlushSize},
		{"max_size", s.MaxSize, MaxFlushSize},
		{"in_flight", s.InFlight, MaxFlushes},
		{"max_attempts", s.MaxAttempts, MaxFlushAttempts},
	} {
		if n.value < 1 || n.value > n.max {
			return c.wrong("%s is %d; give 1 to %d", n.name, n.value, n.max)
		}
	}
	for _, d := range []struct {
		name       string
		value      Span
		least, max time.Duration
	}{
		{"max_age", s.MaxAge, 0, MaxCollectorSpan},
		{"backoff", s.Backoff, 0, MaxCollectorSpan},
		{"max_backoff", s.MaxBackoff, 0, MaxCollectorSpan},
		{"dedupe", s.Dedupe, 0, MaxCollectorSpan},
		{"timeout", s.Timeout, time.Millisecond, MaxFlushTimeout},
	} {
		if v := time.Duration(d.value); v < d.least || v > d.max {
			return c.wrong("%s is %s; give %s to %s", d.name, d.value, d.least, d.max)
		}
	}
	return nil
}

func (c *Text) checkKeying() error {
	k := c.Spec.OrderBy
	switch {
	case k == nil:
		return nil
	case k.Field == "" || !pg.ValidText(k.Field):
		return c.wrong("order_by.field is %.80q; name a field of the payload", k.Field)
	case len(k.Values) > 0 && k.Partitions != 0:
		return c.wrong("order_by has values and partitions; give one of them")
	case k.Partitions < 0 || k.Partitions > maxCollectorParts:
		return c.wrong("order_by.partitions is %d; give 1 to %d", k.Partitions, maxCollectorParts)
	}
	return nil
}

// checkFold rejects folding with an order that would let older data override newer data.
func (c *Text) checkFold() error {
	s := &c.Spec
	switch {
	case s.Fold == "" && s.FoldBy != "":
		return c.wrong("fold_by is %.80q, and fold is missing; give %s or %s", s.FoldBy, FoldLast, FoldMerge)
	case s.Fold == "":
		return nil
	case s.Fold != FoldLast && s.Fold != FoldMerge:
		return c.wrong("fold is %.40q; give %s or %s", s.Fold, FoldLast, FoldMerge)
	case !pg.ValidText(s.FoldBy):
		return c.wrong("fold_by is %.80q; name a field of the payload", s.FoldBy)
	case !s.Strict || s.Order != OrderFIFO:
		return c.wrong("fold goes with strict, and with order %s: else an older operation would go after a newer one",
			OrderFIFO)
	}
	return nil
}

// validCollectorName accepts one token of a NATS subject, which also fits in a URL path.
func validCollectorName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}

func (o *Op) check() error {
	switch {
	case len(o.ID) > MaxOpID || !pg.ValidText(o.ID):
		return workqueue.BadSetting("the id %.60q of an operation is no UTF-8 without NUL of at most %d bytes", o.ID, MaxOpID)
	case o.Key == "" || len(o.Key) > MaxOpKey || !pg.ValidText(o.Key):
		return workqueue.BadSetting("operation %.60q has the key %.60q; give UTF-8 without NUL of 1 to %d bytes", o.ID, o.Key,
			MaxOpKey)
	case len(o.Payload) > MaxOpPayload:
		return workqueue.BadSetting("the payload of operation %.60q has %d bytes; at most %d are taken", o.ID, len(o.Payload),
			MaxOpPayload)
	case len(o.Payload) > 0 && !jsontext.Value(o.Payload).IsValid():
		return workqueue.BadSetting("the payload of operation %.60q is not JSON", o.ID)
	case len(o.Fold) > MaxOpKey || !pg.ValidText(o.Fold):
		return workqueue.BadSetting("what operation %.60q is folded by, %.60q, is no UTF-8 without NUL of at most %d bytes",
			o.ID, o.Fold, MaxOpKey)
	case o.Priority < 0 || o.Priority > MaxOpPriority:
		return workqueue.BadSetting("the priority of operation %.60q is %d; give 0 to %d, the highest first", o.ID,
			o.Priority, MaxOpPriority)
	}
	return nil
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
		v.because("paused", nil, "%s paused the collector; resume it", cmp.Or(v.PausedBy, "somebody"))
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
		v.because("key_version", nil, "%d operations were added before the keys were made otherwise: they go first", v.Older)
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
