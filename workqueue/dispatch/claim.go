package dispatch

import (
	"context"
	"errors"
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

// ClaimRequest says what a node would take of a step.
type ClaimRequest struct {
	Session   workqueue.SessionID
	Run       workqueue.RunID
	Step      workqueue.Step
	MaxSlices int   // at most
	MaxBytes  int64 // wanted size of a request; blocks of large items are cut in smaller slices
	// LimitBytes is the largest request that can be sent, which bounds what a step wants; 0 means no bound.
	LimitBytes int64
	// TTL is how long the slices may stay claimed without being marked as sent; 0 means DefaultClaimTTL. It covers what
	// a session does not: a claim whose commit its node never heard of. What nodes do themselves is never sent: its
	// slices stay claimed until they are recorded, for the time that the step allows and TTL on top.
	TTL    time.Duration
	Params bool // bring the run's parameters too
}

// DefaultClaimTTL is how long a slice may stay claimed.
const DefaultClaimTTL = 30 * time.Second

// Claimed is what a claim brought of a step, and why it brought no more.
type Claimed struct {
	Slices []workqueue.Slice
	Work   workqueue.StepWork // of the step, when slices came
	Params []byte             // of the run, when they were asked for: a JSON object of strings; nil when it has none
	Bound  pace.Bound         // what kept the claim from more
	Wait   time.Duration      // in how long it is worth asking again; 0: no time brings more, but something that happens
}

// The bounds of a claim.
const (
	BoundNone     pace.Bound = ""         // nothing: it took what it asked for, or all there was
	BoundStep     pace.Bound = "step"     // the step's own limit or rate, or the run is held or over
	BoundShare    pace.Bound = "share"    // other runs have work for the endpoint, and this one has its share
	BoundAuto     pace.Bound = "auto"     // the limit that nodes found for the endpoint's automatic steps
	BoundEndpoint pace.Bound = "endpoint" // the endpoint's budget or rate, or it is down
	// someone else holds the step, its endpoint or all that it has ready at the moment
	BoundBusy   pace.Bound = "busy"
	BoundEnough pace.Bound = "enough" // the claim has all that it was to take, of other steps
)

// ClaimTimeout bounds the wait for another claim of the step or of the endpoint. A re-run or a cancel may hold a step
// longer; other runs do not wait for that.
const ClaimTimeout = `SET LOCAL lock_timeout = '200ms'`

// Claim takes slices of one step for a session: first those whose time to be retried has come, put together where
// they belong together, then new cuts of ready items, in order. The slices are the session's until they are marked as
// sent.
//
// Limits are exact over all runs and nodes: claims of a step, and claims for an endpoint, take turns. They are the
// step's limit in flight, the endpoint's budget, what nodes found to be good for the endpoint (for automatic steps),
// and the rates of both; while other runs have work for an endpoint, a run takes no more than its share of it. At an
// endpoint that is down a claim takes one item at a time, when a probe is due.
//
// It returns no slices when the step is at a limit, has no work, is held or no longer running; ErrBusy when the step is
// held by something longer than a claim, and ErrSessionLost when the session is over.
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

// ClaimAll is [Store.Claim] for several steps of different runs, at whatever endpoints, in one transaction that costs
// little more than that of one step: as if they had been claimed of one at a time, in their order, for the same
// session, and no more than most slices of all. It waits for no one: what someone else holds is passed by (BoundBusy).
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
	return out, database.Slow(err, "a claim of work", begun)
}

// claims is one claim transaction in progress.
type claims struct {
	session workqueue.SessionID
	left    int // slices that it may still take
	tx      pgx.Tx
	graphs  *plane.GraphCache
	steps   []*claim // in the order of their turn
	paces   map[string]*paceLoad
	cuts    cutting
	write   pgx.Batch // what the claim changes
	rows    []int64   // how many rows each statement of write is to touch; -1: any
}

// claim is what a claim transaction takes of one step.
type claim struct {
	ClaimRequest
	*claims
	load    claimLoad
	due     []dueSlice
	ready   []readyBlock
	ttl     time.Duration
	chunk   int            // items of a slice at most
	free    int            // slices that may be taken
	buckets []*pace.Bucket // of the rates that apply
	bound   pace.Bound
	wait    time.Duration
}

// run locks, reads and looks what there is; decides step by step what may be taken, each seeing what those before it
// took; and writes what it takes.
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
	if c.write.Len() == 0 {
		return out, nil
	}
	if err := c.flush(ctx); err != nil {
		return nil, err
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
	}
	return taken, err
}

// work says what there is to do with the slices.
func (c *claim) work(ctx context.Context) (workqueue.StepWork, error) {
	l := &c.load
	w := workqueue.StepWork{Kind: l.kind, Name: l.name, Config: l.config, NoItem: !l.item, Timeout: l.timeout,
		Rate: l.step.Rate}
	if l.steps == 1 {
		g := plane.NewGraph([]plane.GraphStep{{Name: l.name, Kind: l.kind}})
		g.Lines = plane.Lines{Ordered: l.stop != nil, Stops: l.stop != nil && *l.stop}
		c.graphs.Put(c.Run, g) // so that no recording has to read it
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
	if n := c.free - len(again); n > 0 && c.flowing() && len(c.ready) == 0 {
		// All ready blocks may be held by recorders, who will be gone in a moment: no claim comes back empty while work
		// is ready.
		if c.ready, err = c.awaitReady(ctx); err != nil {
			return nil, err
		}
	}
	taken = slices.Concat(again, c.cut(c.ready, c.free-len(again)))
	switch {
	case len(taken) == 0 && c.load.works && !c.alone():
		c.deny(BoundBusy, 0)
	case len(taken) < c.free:
		c.bound = BoundNone // there was no more, unless a rate ended it
	}
	c.stopAtRateLimit()
	return taken, nil
}

// alone reports whether the claim is of one step, and so may wait for others.
func (c *claims) alone() bool { return len(c.steps) == 1 }

// queue adds a statement to what the claim writes.
func (c *claims) queue(rows int64, sql string, args ...any) {
	c.write.Queue(sql, args...)
	c.rows = append(c.rows, rows)
}

// flush writes in one round trip and checks that each statement touched the rows it was meant for.
func (c *claims) flush(ctx context.Context) error {
	results := c.tx.SendBatch(ctx, &c.write)
	for i, want := range c.rows {
		tag, err := results.Exec()
		if err == nil && want >= 0 && tag.RowsAffected() != want {
			err = fmt.Errorf("statement %d touched %d rows of %d: %w", i, tag.RowsAffected(), want, workqueue.ErrFence)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("take slices: %w", err), results.Close())
		}
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("take slices: %w", err)
	}
	return nil
}

const stillClaimed = `
SELECT id FROM work_slice WHERE id = ANY($1) AND session_id = $2 AND state = 'claimed'`

// StillClaimed returns those of some slices that a session has claimed and that no one has taken from it: by a cancel,
// a reset of all their items, or because their time was over.
func (s Store) StillClaimed(
	ctx context.Context, session workqueue.SessionID, ids []workqueue.SliceID,
) ([]workqueue.SliceID, error) {
	claimed, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.SliceID], stillClaimed, ids, session)
	if err != nil {
		return nil, fmt.Errorf("look which of %d slices are claimed: %w", len(ids), err)
	}
	return claimed, nil
}
