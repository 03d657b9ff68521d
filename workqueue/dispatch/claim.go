package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// ClaimRequest is a node's request for slices of a step.
type ClaimRequest struct {
	Session   workqueue.SessionID
	Run       workqueue.RunID
	Step      workqueue.Step
	MaxSlices int
	MaxBytes  int64 // wanted size of a request; blocks of large items are cut into smaller slices
	// LimitBytes is the largest request that can be sent, which bounds the step's wanted size; 0: no bound.
	LimitBytes int64
	// TTL is how long the slices may stay claimed without being marked as sent, in case their node never learned of the
	// commit; 0: DefaultClaimTTL. Work done by nodes stays claimed until recorded, for the step's timeout plus TTL.
	TTL time.Duration
}

// DefaultClaimTTL is how long a slice may stay claimed.
const DefaultClaimTTL = 30 * time.Second

// Claimed is the result of a claim of a step.
type Claimed struct {
	Slices []workqueue.Slice
	Work   workqueue.StepWork // of the step, if there are slices
	Params []byte             // of the run, if there are slices: see [database.DB.OpenParams]
	Bound  pace.Bound         // what kept the claim from more
	Wait   time.Duration      // when to claim again; 0: only after an event, not after a time
}

// The bounds of a claim.
const (
	BoundNone     pace.Bound = ""         // it got all that it requested, or all there was
	BoundStep     pace.Bound = "step"     // the step's own limit or rate, or the run is held or ended
	BoundShare    pace.Bound = "share"    // other runs have work for the endpoint, and this one has its share
	BoundAuto     pace.Bound = "auto"     // the limit that nodes found for the endpoint's automatic steps
	BoundEndpoint pace.Bound = "endpoint" // the endpoint's budget or rate, or it is down

	BoundNamespace pace.Bound = "namespace" // the namespace's quota of requests in flight
	// the step, its endpoint or all its ready items are locked
	BoundBusy   pace.Bound = "busy"
	BoundEnough pace.Bound = "enough" // the claim got all it may from other steps
)

// ClaimTimeout bounds the wait for another claim of the step or endpoint. A rerun or cancel may lock a step for
// longer; other runs must not wait for that.
const ClaimTimeout = `SET LOCAL lock_timeout = '200ms'`

// Claim claims slices of one step for a session: first due retries, merged where possible, then ready items in
// order. The slices are the session's until they are marked as sent.
//
// Limits are exact over all runs and nodes, since claims of a step, and of an endpoint, are serialized. They are the
// step's limit in flight, the endpoint's budget, the limit that nodes found for automatic steps, and both rates.
// While other runs have work for an endpoint, a run gets at most its share. At an endpoint that is down a claim gets
// one item, when a probe is due.
//
// It returns no slices if the step is at a limit, idle, held or not running; ErrBusy if the step is locked for
// longer than a claim takes, and ErrSessionLost if the session ended.
func (s Store) Claim(ctx context.Context, req ClaimRequest) (Claimed, error) {
	out, err := s.claim(ctx, []ClaimRequest{req}, req.MaxSlices)
	if pg.IsLockTimeout(err) {
		err = workqueue.ErrBusy
	}
	if err != nil {
		return Claimed{}, fmt.Errorf("claim of run %s step %d: %w", req.Run, req.Step, err)
	}
	return out[0], nil
}

// ClaimAll is [Store.Claim] for steps of different runs, at any endpoints, in one transaction that costs little more
// than for one step: as if claimed one at a time for the same session, with up to most slices in total. It
// waits for no lock: what is locked is skipped (BoundBusy).
func (s Store) ClaimAll(ctx context.Context, reqs []ClaimRequest, most int) ([]Claimed, error) {
	if len(reqs) == 1 {
		reqs[0].MaxSlices = min(reqs[0].MaxSlices, most)
		one, err := s.Claim(ctx, reqs[0])
		return []Claimed{one}, err
	}
	out, err := s.claim(ctx, reqs, most)
	if err != nil {
		return nil, fmt.Errorf("claim of %d steps: %w", len(reqs), err)
	}
	return out, nil
}

func (s Store) claim(ctx context.Context, reqs []ClaimRequest, most int) (out []Claimed, err error) {
	begun := time.Now()
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		c := &claims{session: reqs[0].Session, left: most, tx: tx, graphs: database.Kept[plane.GraphCache](s.db)}
		for _, req := range reqs {
			if req.TTL <= 0 {
				req.TTL = DefaultClaimTTL
			}
			c.steps = append(c.steps, &claim{ClaimRequest: req, claims: c})
		}
		out, err = c.run(ctx)
		return err
	})
	return out, database.Slow(pg.Fenced(err), "a claim of work", begun)
}

type claims struct {
	session workqueue.SessionID
	left    int // slices that it may still claim
	tx      pgx.Tx
	graphs  *plane.GraphCache
	steps   []*claim // in the order of claiming
	paces   map[string]*paceLoad
	cuts    cutting
	write   pgx.Batch // the claim's changes
}

// claim is a claim transaction's part about one step.
type claim struct {
	ClaimRequest
	*claims
	load    claimLoad
	due     []dueSlice
	ready   []readyBlock
	ttl     time.Duration
	chunk   int            // most items of a slice
	free    int            // slices that may be claimed
	buckets []*pace.Bucket // of the rates that apply
	bound   pace.Bound
	wait    time.Duration
}

// run locks and reads, decides step by step what to claim, each after what earlier ones got, and writes the claim.
func (c *claims) run(ctx context.Context) ([]Claimed, error) {
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	out := make([]Claimed, len(c.steps))
	for i, step := range c.steps {
		taken, err := step.run(ctx)
		if err != nil {
			return nil, err
		}
		c.left -= len(taken)
		out[i] = Claimed{Slices: taken, Params: step.load.params, Bound: step.bound, Wait: step.wait}
	}
	c.cuts.write(c)
	if err := pg.Leave(ctx, c.tx, &c.write); err != nil {
		return nil, fmt.Errorf("take slices: %w", err)
	}
	for i, step := range c.steps {
		if len(out[i].Slices) == 0 {
			continue
		}
		var err error
		if out[i].Work, err = step.work(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *claim) run(ctx context.Context) ([]workqueue.Slice, error) {
	if c.allow(); c.free <= 0 {
		return nil, nil
	}
	taken, err := c.take(ctx)
	if err == nil && len(taken) > 0 {
		c.drain()
		c.load.pace.took(c, len(taken))
		if q := c.load.quota; q != nil {
			q.busy += len(taken)
		}
	}
	return taken, err
}

// work describes how to do the slices' work.
func (c *claim) work(ctx context.Context) (workqueue.StepWork, error) {
	l := &c.load
	w := workqueue.StepWork{Kind: l.kind, Name: l.name, Config: l.config, NoItem: !l.item, Timeout: l.timeout,
		Rate: l.step.Rate}
	if l.steps == 1 {
		g := plane.NewGraph([]plane.GraphStep{{Name: l.name, Kind: l.kind}})
		g.Lines = plane.Lines{Ordered: l.stop != nil, Stops: l.stop != nil && *l.stop}
		c.graphs.Put(c.Run, g) // so that recordings need not read it
		return w, nil
	}
	g, err := c.graphs.Of(ctx, c.tx, c.Run)
	if err == nil {
		w.Inputs = g.Inputs(c.Step)
	}
	return w, err
}

func (c *claim) take(ctx context.Context) (taken []workqueue.Slice, err error) {
	if c.load.pace.down {
		return c.probe(ctx)
	}
	again := c.again(c.due)
	if n := c.free - len(again); n > 0 && c.flowing() && len(c.ready) == 0 && c.alone() {
		// Recorders may briefly lock all ready blocks: no claim is empty while work is ready.
		if c.ready, err = c.firstReady(ctx, firstReadyWait); err != nil {
			return nil, err
		}
	}
	taken = slices.Concat(again, c.cut(c.ready, c.free-len(again)))
	switch {
	case len(taken) == 0 && c.load.works && !c.alone():
		c.deny(BoundBusy, 0)
	case len(taken) < c.free:
		c.bound = BoundNone // nothing is left, unless a rate ended it
	}
	c.stopAtRateLimit()
	return taken, nil
}

// alone reports whether the claim is of one step, and so may wait for locks.
func (c *claims) alone() bool { return len(c.steps) == 1 }

// queue adds a statement that must affect that many rows. It travels with the COMMIT.
func (c *claims) queue(rows int, sql string, args ...any) { pg.QueueRows(&c.write, rows, sql, args...) }

const stillClaimed = `
SELECT id FROM work_slice WHERE id = ANY($1) AND session_id = $2 AND state = 'claimed'`

// StillClaimed returns those of some slices that a session still has claimed: not cancelled, reset or expired.
func (s Store) StillClaimed(
	ctx context.Context, session workqueue.SessionID, ids []workqueue.SliceID,
) ([]workqueue.SliceID, error) {
	claimed, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.SliceID], stillClaimed, ids, session)
	if err != nil {
		return nil, fmt.Errorf("check which of %d slices are claimed: %w", len(ids), err)
	}
	return claimed, nil
}
