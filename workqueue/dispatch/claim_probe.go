package dispatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// anyScheduled finds a probe if nothing is ready. It need not be due: a probe counts no attempt.
	anyScheduled = `
SELECT s.id, s.block, s.generation, s.remaining, s.attempt, s.failures, s.cause, s.suspect, s.root, s.item_bytes
FROM (SELECT $1::uuid AS run_id, $2::smallint AS step) u
CROSS JOIN LATERAL (` + scheduled + ` ORDER BY s.not_before, s.id LIMIT 1 FOR NO KEY UPDATE OF s SKIP LOCKED) s`

	// carveSlice removes an item from a scheduled slice.
	carveSlice = `
UPDATE work_slice SET mask = mask & ~$2::bit(8192), remaining = remaining & ~$2::bit(8192)
WHERE id = $1 AND state = 'scheduled' AND (remaining & $2::bit(8192)) = $2::bit(8192)`

	// insertProbe gives the probe the parent of the slice it is taken from, which was not sent and may yet be merged.
	insertProbe = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, failures, cause, parent,
                        suspect, session_id, deadline, root, endpoint)
SELECT $2, run_id, step, block, generation, $3, $3, 'claimed', attempt, failures, 'probe', parent, suspect, $4,
       tranche_now() + $5, coalesce(root, id), $6
FROM work_slice WHERE id = $1`

	// takeProbe claims a slice of a single item as the probe.
	takeProbe = `
UPDATE work_slice
SET state = 'claimed', cause = 'probe', session_id = $2, deadline = tranche_now() + $3, endpoint = $4,
    error_code = NULL, error_message = NULL
WHERE id = $1 AND state = 'scheduled'`

	// goodReady reports whether a running run at endpoint $1 has a ready item that was never tried.
	goodReady = `
SELECT coalesce((SELECT true FROM (SELECT $1::text AS endpoint) e CROSS JOIN LATERAL (
    SELECT * FROM ` + plane.ReadyAuto + ` a UNION ALL SELECT * FROM ` + plane.ReadyFixed + ` f) t
    CROSS JOIN ` + plane.RunAndStep + ` WHERE ` + plane.Unheld + ` AND r.generation = 1 LIMIT 1), false)`

	// noteProbe postpones the next probe, in case the outcome of this one is lost.
	noteProbe = `
UPDATE endpoint_pace
SET probe_slice = $2, probe_at = tranche_now() + $3, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'open'`
)

const (
	// leastProbePause is the shortest time between two probes.
	leastProbePause = time.Second
	// goodProbe is how long a due probe is left to other runs with items that never failed.
	goodProbe = time.Second
	// downWait is when a claim at a down endpoint with a probe in flight is repeated.
	downWait = time.Second
)

// allowProbe permits one slice of one item if a probe is due, and nothing else.
func (c *claim) allowProbe() {
	l := c.load.pace
	switch {
	case l.probing:
		c.deny(BoundEndpoint, downWait)
	case l.probeIn > 0:
		c.deny(BoundEndpoint, time.Duration(l.probeIn*float64(time.Second))+time.Millisecond)
	default:
		c.free = min(c.free, 1) // the limits hold for probes, too
	}
}

// probe claims one item. Ready and scheduled ones alternate in going first, so that neither kind alone keeps an
// endpoint down. For a while a step leaves the probe to other runs' untried items if its own may have failed.
func (c *claim) probe(ctx context.Context) ([]workqueue.Slice, error) {
	c.bound, c.wait = BoundEndpoint, downWait
	first, second := c.probeReady, c.probeWaiting
	p := c.load.pace
	if p.probes%2 == 1 {
		first, second = second, first
	} else if (c.load.generation > 1 || len(c.ready) == 0) && -p.probeIn < goodProbe.Seconds() {
		good := false
		if err := c.tx.QueryRow(ctx, goodReady, c.load.endpoint).Scan(&good); err != nil {
			return nil, fmt.Errorf("find a good item to probe with: %w", err)
		}
		if good {
			c.deny(BoundStep, goodProbe)
			return nil, nil
		}
	}
	if probe, err := first(ctx); err != nil || len(probe) > 0 {
		return probe, err
	}
	return second(ctx)
}

func (c *claim) probeReady(ctx context.Context) ([]workqueue.Slice, error) {
	blocks, err := c.firstReady(ctx, firstReady)
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	b := blocks[0]
	probe := c.newSlice(b.block, b.ready.Take(1), workqueue.CauseProbe)
	c.cuts.take(plane.BlockID{Run: c.Run, Step: c.Step, Block: b.block}, probe.Mask)
	c.cuts.add([]workqueue.Slice{probe}, c.ttl)
	return c.probed(probe), nil
}

func (c *claim) probeWaiting(ctx context.Context) ([]workqueue.Slice, error) {
	rows := pg.Rows(ctx, c.tx, anyScheduled, c.Run, c.Step)
	waiting, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t dueSlice, err error) {
		err = row.Scan(t.into()...)
		return c.owned(t), err
	})
	if err != nil {
		return nil, fmt.Errorf("find an item to probe with: %w", err)
	}
	if len(waiting) == 0 {
		return nil, nil
	}
	return c.probed(c.carve(waiting[0].Slice)), nil
}

// carve makes a probe of the first item of a scheduled slice.
func (c *claim) carve(from workqueue.Slice) workqueue.Slice {
	probe := from
	probe.Cause, probe.Mask = workqueue.CauseProbe, from.Mask.Take(1)
	if probe.Mask == from.Mask {
		c.queue(1, takeProbe, from.ID, c.Session, c.ttl, c.load.endpoint)
		return probe
	}
	probe.ID = workqueue.NewSliceID()
	c.queue(1, carveSlice, from.ID, pgbits.Of(probe.Mask))
	c.queue(1, insertProbe, from.ID, probe.ID, pgbits.Of(probe.Mask), c.Session, c.ttl, c.load.endpoint)
	return probe
}

func (c *claim) probed(probe workqueue.Slice) []workqueue.Slice {
	c.spend(1)
	c.load.pace.probing = true
	c.queue(1, noteProbe, c.load.endpoint, probe.ID, leastProbePause)
	return []workqueue.Slice{probe}
}

// canaryClaim is the part of a claim that goes to the canary of its endpoint: a share of the new requests, within the
// canary's limits. What the canary cannot take stays at the endpoint, whose limits count all of it; so do retries.
// While the canary's breaker is open, only probes go there. Its methods do nothing if nil.
type canaryClaim struct {
	*claim

	to    *paceLoad // of the canary, as other steps of the transaction see it
	taken int
}

// newCanaryClaim returns nil if nothing may go to a canary. At most half of the step's requests in flight are there, so
// that one which never answers leaves the run the rest.
func (c *claim) newCanaryClaim() *canaryClaim {
	l := c.load
	to := c.paces[l.canary]
	if l.canaryShare <= 0 || l.canaryShare == pace.WholeShare || to == nil || !to.paced || !to.held {
		return nil
	}
	of := *to
	of.limit = max(to.limit, int(math.Ceil(float64(l.pace.limit)*l.canaryShare/pace.WholeShare)))
	of.chunk = l.pace.chunk // sizes stay comparable
	l.endpoint, l.pace, l.step = l.canary, &of, pace.Bucket{}
	l.inFlight, l.live = (l.inFlight+1)/2, l.canaryLive
	d := &canaryClaim{claim: &claim{ClaimRequest: c.ClaimRequest, claims: c.claims, load: l, ttl: c.ttl}, to: to}
	d.allow()
	return d
}

// take diverts a new slice, which may become smaller, if it is in the share and the canary's limits permit.
func (d *canaryClaim) take(s *workqueue.Slice) {
	if d == nil || d.free <= 0 || !d.flowing() || !inShare(s, d.load.canaryShare) {
		return
	}
	s.Endpoint = d.load.endpoint
	s.Mask = s.Mask.Take(d.chunk)
	if d.load.pace.down {
		s.Mask, s.Cause = s.Mask.Take(1), workqueue.CauseProbe
		d.probed(*s)
	} else {
		d.spend(s.Mask.Count())
	}
	d.free--
	d.taken++
}

// end saves what was taken.
func (d *canaryClaim) end() {
	if d == nil || d.taken == 0 {
		return
	}
	d.drain()
	of := d.load.pace
	of.limit, of.chunk = d.to.limit, d.to.chunk
	of.took(d.claim, d.taken)
	*d.to = *of
}

// inShare reports whether a slice is in the share. It depends only on the run, its generation and the first item, so it
// is the same on every node.
func inShare(s *workqueue.Slice, share float64) bool {
	first, _ := s.Mask.Bounds()
	n := binary.BigEndian.Uint64(s.Run[8:]) ^ uint64(s.Step)<<56 ^ uint64(s.Generation)<<32 ^
		uint64(s.Block.Ordinal(first))
	return float64(plane.Scatter(n)>>11)/(1<<53) < share/pace.WholeShare
}
