package workqueue

import (
	"context"
	"fmt"
	"time"
)

const (
	// rivalsCounted bounds how many other runs a claim looks for: with so many, the share is small enough.
	rivalsCounted = 64
	// rivalsSeen bounds the runs that it looks at.
	rivalsSeen = 1000
	// shareWait is in how long a run that has its share asks again: others may have taken theirs without needing more.
	shareWait = 50 * time.Millisecond
)

// rivals counts the other steps that could use a slot of the endpoint now: of running runs as urgent or more, with
// something to claim, and neither at their own limit nor at their rate; and of automatic ones, what is out of them all.
const rivals = `
SELECT count(*), count(*) FILTER (WHERE in_flight_auto),
       (SELECT count(*) FROM work_slice s JOIN run_step o USING (run_id, step)
        WHERE s.endpoint = $1 COLLATE "C" AND s.state IN ('claimed', 'sent') AND o.in_flight_auto)
FROM (
    SELECT st.in_flight_auto
    FROM (SELECT id FROM batchrun WHERE state = 'running' AND hold IS NULL AND priority >= $4
          ORDER BY priority DESC, id LIMIT $6) r
    JOIN run_step st ON st.run_id = r.id
    WHERE st.endpoint = $1 AND NOT (st.run_id = $2 AND st.step = $3) AND (NOT st.barrier OR st.barrier_passed)
      AND (st.rate IS NULL OR st.tokens_at IS NULL
           OR st.tokens + st.rate * extract(epoch FROM clock_timestamp() - st.tokens_at) > 0)
      AND (SELECT count(*) FROM work_slice s
           WHERE s.run_id = st.run_id AND s.step = st.step AND s.state IN ('claimed', 'sent')) < st.in_flight
      AND (` + hasReady + ` OR ` + hasDue + `)
    LIMIT $5) rival`

// allow finds how many slices the claim may take, of how many items, and what kept it from more.
func (c *claim) allow(ctx context.Context) error {
	l := &c.load
	if !l.found || !l.running {
		c.shut(BoundStep, 0)
		return nil
	}
	c.free = c.MaxSlices
	c.limit(l.inFlight-l.live, BoundStep)
	if l.budget > 0 {
		c.limit(l.budget-l.busy, BoundEndpoint)
	}
	if l.auto {
		c.limit(l.paceLimit-l.busyAuto, BoundAuto)
	}
	if l.down {
		c.allowProbe()
	}
	c.rates()
	if c.free > 0 && !l.down && c.contended() {
		if err := c.share(ctx); err != nil {
			return err
		}
	}
	c.chunk = c.chunkSize()
	return nil
}

// limit takes no more than n slices.
func (c *claim) limit(n int, bound Bound) {
	if n < c.free {
		c.free, c.bound = n, bound
	}
}

// shut takes nothing, and asks again after a while.
func (c *claim) shut(bound Bound, wait time.Duration) { c.free, c.bound, c.wait = 0, bound, wait }

// contended reports whether what the claim may take could be wanted by others: it would use up more than half of what
// the endpoint allows, or the endpoint has a rate.
func (c *claim) contended() bool {
	l := &c.load
	return l.budget > 0 && 2*(l.busy+c.free) > l.budget || l.auto && 2*(l.busyAuto+c.free) > l.paceLimit ||
		c.endpointBucket() != nil
}

// share keeps the claim to its run's share of the endpoint: the limit by the number of runs that could use a slot now,
// rounded up. What others do not use is not kept for them: a run with nothing to claim, or at its own limit, is no
// rival. One that has more than its share gets nothing until the others have theirs, so what becomes free goes to those
// who have the least.
func (c *claim) share(ctx context.Context) error {
	l := &c.load
	var all, auto, autoLive int
	err := c.tx.QueryRow(ctx, rivals, l.endpoint, c.Run, c.Step, l.priority, rivalsCounted, rivalsSeen).
		Scan(&all, &auto, &autoLive)
	if err != nil {
		return fmt.Errorf("count the endpoint's other runs: %w", err)
	}
	if autoLive >= l.paceLimit || l.learnedRateSpent() { // none of them can use a slot
		all, auto = all-auto, 0
	}
	if l.budget > 0 && all > 0 {
		c.limit(portion(l.budget, all)-l.live, BoundShare)
	}
	if l.auto && auto > 0 {
		c.limit(portion(l.paceLimit, auto)-l.live, BoundShare)
	}
	if b := c.endpointBucket(); b != nil && all > 0 {
		b.keep(all)
	}
	if c.bound == BoundShare {
		c.wait = shareWait
	}
	return nil
}

// portion is one's part of a limit beside a number of others, at least 1.
func portion(limit, others int) int { return (limit + others) / (others + 1) }

// chunkSize is how many items a slice may have at the moment.
func (c *claim) chunkSize() int {
	l := &c.load
	of := chunking{chunk: l.chunk, auto: l.chunkAuto, learned: l.paceChunk, limit: l.chunkCap}
	of.rates = [...]float64{l.step.rate, l.rate, 0}
	if l.auto {
		of.rates[2] = l.paceRate
	}
	return of.size()
}
