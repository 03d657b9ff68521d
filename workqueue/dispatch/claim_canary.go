package dispatch

import (
	"encoding/binary"
	"math"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

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
