package dispatch

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// rivalsCounted bounds how many other runs a claim counts: beyond that the share is small enough.
	rivalsCounted = 64
	// shareWait is when a run at its share claims again: others may not need theirs by then.
	shareWait = 50 * time.Millisecond
)

// rivals is the steps that could use a slot of an endpoint now, including $1, $2: claimable, of running runs, below
// their own limit and rate. It is read only if there is something to share: a limit found by nodes, a budget or a
// rate. If all requests of an endpoint go to its canary, they are at the canary. By the indexes work_block_turn and
// work_slice_waiting, $3 of each.
const (
	contender = `
SELECT r.id, st.step, r.priority, st.in_flight_auto, st.share, r.namespace FROM ` + plane.RunAndStep + `
WHERE ` + plane.Unheld + `
  AND (st.rate IS NULL OR st.tokens_at IS NULL
       OR st.tokens + st.rate * extract(epoch FROM tranche_now() - st.tokens_at) > 0)
  AND (SELECT count(*) FROM ` + plane.StepSlices + `) < least(st.in_flight, st.in_flight_cap)`

	rivals = `
SELECT e.at, c.* FROM (
    SELECT n.endpoint AS at, f.endpoint, false AS down, array_remove(ARRAY[f.endpoint, f.canary], NULL) AS targets
    FROM (` + endpointsOfSteps + `) n
    LEFT JOIN LATERAL (SELECT * FROM endpoint_setting o WHERE o.endpoint = n.endpoint OFFSET 0) s ON true
    CROSS JOIN LATERAL (
        SELECT n.endpoint, s.canary UNION ALL
        SELECT o.endpoint, o.canary FROM endpoint_setting o WHERE o.canary = n.endpoint AND o.canary_share = 100) f
    LEFT JOIN LATERAL (SELECT * FROM endpoint_pace o WHERE o.endpoint = n.endpoint OFFSET 0) p ON true
    WHERE (n.auto OR s.max_in_flight > 0 OR s.rate > 0) AND p.breaker IS DISTINCT FROM 'open') e
CROSS JOIN LATERAL (
    (SELECT rival.* FROM ` + plane.ReadyAuto + ` t CROSS JOIN LATERAL (` + contender + `) rival LIMIT $3)
    UNION
    (SELECT rival.* FROM ` + plane.ReadyFixed + ` t CROSS JOIN LATERAL (` + contender + `) rival LIMIT $3)
    UNION
    (SELECT rival.* FROM ` + plane.DueAt + ` t CROSS JOIN LATERAL (` + contender + `) rival LIMIT $3)) c`
)

type contending struct {
	StepRef
	priority  int
	auto      bool
	share     int
	namespace string
}

func (c *claims) scanRivals(rows pgx.Rows) error {
	var r contending
	var endpoint string
	return pg.Each(rows, []any{&endpoint, &r.Run, &r.Step, &r.priority, &r.auto, &r.share, &r.namespace}, func() {
		if pace := c.paces[endpoint]; pace != nil {
			pace.rivals = append(pace.rivals, r)
		}
	})
}

// against weighs a step's rivals of some kind: other steps of its namespace of at least its priority, and other
// namespaces. Shares count among equal priorities: next to a more urgent step, both have one.
func (c *claim) against(counts func(*contending) bool) int {
	l, own, counted, elsewhere := &c.load, 0, 0, map[string]bool{}
	for i := range l.pace.rivals {
		r := &l.pace.rivals[i]
		switch {
		case !counts(r):
		case r.namespace != l.namespace:
			elsewhere[r.namespace] = true
		case r.StepRef == StepRef{c.Run, c.Step} || r.priority < l.priority || counted == rivalsCounted:
		default:
			counted++
			if own += r.share; r.priority > l.priority {
				own += l.share - r.share
			}
		}
	}
	return Rivals(l.share, own, len(elsewhere))
}

// Rivals returns the weight of the rivals of a share ([Portion]): the other shares of its own namespace, and those of
// other namespaces, each as heavy as that one.
func Rivals(share, own, elsewhere int) int { return (1+elsewhere)*(share+own) - share }

// allow computes how many slices, of how many items, the claim may get, and what bounds it.
func (c *claim) allow() {
	l := &c.load
	switch {
	case c.left <= 0:
		c.deny(BoundEnough, 0)
		return
	case !l.found || !l.running && l.held:
		c.deny(BoundStep, 0)
		return
	case !l.held:
		c.deny(BoundBusy, 0)
		return
	}
	p := l.pace
	c.free = c.MaxSlices
	c.limit(c.left, BoundEnough)
	c.limit(l.inFlight-l.live, BoundStep)
	if q := l.quota; q != nil {
		c.limit(q.max-q.busy, BoundNamespace)
	}
	if p.budget > 0 {
		c.limit(p.budget-p.busy, BoundEndpoint)
	}
	if l.auto {
		c.limit(p.limit-p.busyAuto, BoundAuto)
	}
	if p.down {
		c.allowProbe()
	}
	c.rates()
	if c.free > 0 && !p.down && c.contended() {
		c.share()
	}
	if c.bound == BoundShare || c.bound == BoundNamespace {
		c.wait = shareWait
	}
	c.chunk = c.chunkSize()
}

func (c *claim) limit(n int, bound pace.Bound) {
	if n < c.free {
		c.free, c.bound = n, bound
	}
}

// deny claims nothing and sets when to try again.
func (c *claim) deny(bound pace.Bound, wait time.Duration) { c.free, c.bound, c.wait = 0, bound, wait }

// contended reports whether others could want it: over half of the endpoint's limit, or the endpoint has a rate.
func (c *claim) contended() bool {
	p := c.load.pace
	return p.budget > 0 && 2*(p.busy+c.free) > p.budget || c.load.auto && 2*(p.busyAuto+c.free) > p.limit ||
		c.endpointBucket() != nil
}

// share limits the claim to its run's share of the endpoint: the limit divided among the namespaces whose runs could
// use a slot now, and in a namespace among those runs, each as often as its share says, rounded up. Unused shares are
// not reserved: a run without claimable work, or at its own limit, is no rival. A run above its share gets nothing
// until the rest have theirs, so freed slots go to those with the least.
func (c *claim) share() {
	l, p := &c.load, c.load.pace
	stuck := p.busyAuto >= p.limit || p.learnedRateSpent() // no automatic step can use a slot
	all := c.against(func(r *contending) bool { return !r.auto || !stuck })
	auto := c.against(func(r *contending) bool { return r.auto && !stuck })
	if p.budget > 0 && all > 0 {
		c.limit(Portion(p.budget, l.share, all)-l.live, BoundShare)
	}
	if l.auto && auto > 0 {
		c.limit(Portion(p.limit, l.share, auto)-l.live, BoundShare)
	}
	if b := c.endpointBucket(); b != nil && all > 0 {
		b.Keep(l.share, all)
	}
}

// Portion is a share's part of a limit that others have shares of too, at least 1.
func Portion(limit, share, others int) int {
	return (limit*share + share + others - 1) / (share + others)
}

func (c *claim) chunkSize() int {
	l := &c.load
	p := l.pace
	of := plane.Chunking{Chunk: l.chunk, Auto: l.chunkAuto, Learned: p.chunk, Limit: p.chunkCap}
	of.Rates = [...]float64{l.step.Rate, p.rate, 0}
	if l.auto {
		of.Rates[2] = p.learned
	}
	return of.Size()
}

const (
	drainStep = `UPDATE run_step SET tokens = $3, tokens_at = $4 WHERE run_id = $1 AND step = $2`
	drainPace = `UPDATE endpoint_pace SET tokens = $2, tokens_at = $3 WHERE endpoint = $1`
)

// rates sets the buckets that apply. An endpoint's two rates, the operator's and the learned one, share a bucket.
func (c *claim) rates() {
	l := &c.load
	if l.step.Rate > 0 {
		l.step.Bound = BoundStep
		c.buckets = append(c.buckets, &l.step)
	}
	p := l.pace
	b := &pace.Bucket{Rate: p.rate, Tokens: p.tokens, Bound: BoundEndpoint}
	if l.auto && p.learned > 0 && (b.Rate == 0 || p.learned < b.Rate) {
		b.Rate, b.Bound = p.learned, BoundAuto
	}
	if b.Rate > 0 {
		b.Fill(p.age)
		c.buckets = append(c.buckets, b)
	}
	if p.calls.Rate > 0 {
		p.calls.Bound = BoundEndpoint
		c.buckets = append(c.buckets, &p.calls)
	}
	c.stopAtRateLimit()
}

// learnedRateSpent reports whether automatic steps must wait for the rate learned from throttling.
func (p *paceLoad) learnedRateSpent() bool {
	b := pace.Bucket{Rate: p.learned, Tokens: p.tokens}
	b.Fill(p.age)
	return b.Rate > 0 && !b.Open()
}

// endpointBucket is the bucket of the endpoint's rate of items, which runs share; nil if it has none.
func (c *claim) endpointBucket() *pace.Bucket {
	for _, b := range c.buckets {
		if b.Bound != BoundStep && !b.Calls {
			return b
		}
	}
	return nil
}

// flowing reports whether every rate permits another slice.
func (c *claim) flowing() bool {
	return !slices.ContainsFunc(c.buckets, func(b *pace.Bucket) bool { return !b.Open() })
}

func (c *claim) spend(items int) {
	for _, b := range c.buckets {
		if b.Calls {
			b.Tokens--
		} else {
			b.Tokens -= float64(items)
		}
	}
}

// stopAtRateLimit ends the claim when a rate limit is reached, keeping the longest wait.
func (c *claim) stopAtRateLimit() {
	for _, b := range c.buckets {
		if !b.Open() && (c.wait < b.Wait() || c.bound == BoundNone) {
			c.deny(b.Bound, b.Wait())
		}
	}
}

// drain saves the buckets, also for the claim's later steps.
func (c *claim) drain() {
	p := c.load.pace
	for _, b := range c.buckets {
		switch {
		case b.Calls:
			c.queue(1, pace.DrainPaceCalls, c.load.endpoint, b.Tokens, p.now)
		case b.Bound == BoundStep:
			c.queue(1, drainStep, c.Run, c.Step, b.Tokens, c.load.now)
		default:
			p.tokens, p.age = b.Tokens, new(float64)
			c.queue(1, drainPace, c.load.endpoint, b.Tokens, p.now)
		}
	}
}
