package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// ClaimRequest says what a node would take.
type ClaimRequest struct {
	Session   SessionID
	Run       RunID
	Step      Step
	MaxSlices int   // at the most
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

// Claimed is what a claim brought, and why it brought no more.
type Claimed struct {
	Slices []Slice
	Work   StepWork      // of the step, when slices came
	Params []byte        // of the run, when they were asked for: a JSON object of strings; nil when it has none
	Bound  Bound         // what kept the claim from more
	Wait   time.Duration // in how long it is worth asking again; 0: no time brings more, but something that happens
}

// Bound says what kept a claim from taking more.
type Bound string

// The bounds of a claim.
const (
	BoundNone     Bound = ""         // nothing: it took what it asked for, or all there was
	BoundStep     Bound = "step"     // the step's own limit or rate, or the run is held or over
	BoundShare    Bound = "share"    // other runs have work for the endpoint, and this one has its share
	BoundAuto     Bound = "auto"     // the limit that nodes found for the endpoint's automatic steps
	BoundEndpoint Bound = "endpoint" // the endpoint's budget or rate, or it is down
)

// claimPatience bounds the wait for another claim of the step or of the endpoint. A re-run or a cancel may hold a step
// longer; other runs do not wait for that.
const claimPatience = `SET LOCAL lock_timeout = '200ms'`

// Claim takes slices of one step for a session: first those whose time to be tried again has come, put together where
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
func (s *Store) Claim(ctx context.Context, req ClaimRequest) (Claimed, error) {
	if req.TTL <= 0 {
		req.TTL = DefaultClaimTTL
	}
	var out Claimed
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		c := &claim{ClaimRequest: req, tx: tx, graphs: &s.graphs}
		out, err = c.run(ctx)
		return err
	})
	switch {
	case isLockTimeout(err):
		return Claimed{}, fmt.Errorf("claim of run %s step %d: %w", req.Run, req.Step, ErrBusy)
	case err != nil:
		return Claimed{}, fmt.Errorf("claim of run %s step %d: %w", req.Run, req.Step, err)
	}
	return out, nil
}

// claim is one claim transaction under way.
type claim struct {
	ClaimRequest
	tx      pgx.Tx
	graphs  *graphCache
	load    claimLoad
	ttl     time.Duration
	chunk   int       // items of a slice at the most
	free    int       // slices that may be taken
	buckets []*bucket // of the rates that apply
	bound   Bound
	wait    time.Duration
	write   pgx.Batch // what the claim changes
	rows    []int64   // how many rows each statement of write is to touch; -1: any
}

// run decides under the locks what may be taken, looks what there is, and writes what it takes.
func (c *claim) run(ctx context.Context) (Claimed, error) {
	if err := c.begin(ctx); err != nil {
		return Claimed{}, err
	}
	if err := c.allow(ctx); err != nil || c.free <= 0 {
		return Claimed{Bound: c.bound, Wait: c.wait}, err
	}
	taken, err := c.take(ctx)
	out := Claimed{Slices: taken, Params: c.load.params, Bound: c.bound, Wait: c.wait}
	if err == nil && len(taken) > 0 {
		c.drain()
		if err = c.flush(ctx); err == nil {
			out.Work, err = c.work(ctx)
		}
	}
	return out, err
}

// work says what there is to do with the slices.
func (c *claim) work(ctx context.Context) (StepWork, error) {
	l := &c.load
	w := StepWork{Kind: l.kind, Name: l.name, Config: l.config, NoItem: !l.item, Timeout: l.timeout, Rate: l.step.rate}
	if l.steps == 1 {
		g := newGraph([]graphStep{{name: l.name, kind: l.kind}})
		g.lines = lines{ordered: l.stop != nil, stops: l.stop != nil && *l.stop}
		c.graphs.put(c.Run, g) // so that no recording has to read it
		return w, nil
	}
	g, err := c.graphs.of(ctx, c.tx, c.Run)
	if err == nil {
		w.Inputs = g.inputs(c.Step)
	}
	return w, err
}

func (c *claim) take(ctx context.Context) ([]Slice, error) {
	if c.load.down {
		return c.probe(ctx)
	}
	due, blocks, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	again := c.again(due)
	if n := c.free - len(again); n > 0 && c.flowing() && len(blocks) == 0 {
		// All ready blocks may be held by recorders, who will be gone in a moment: no claim comes back empty while work
		// is ready.
		if blocks, err = c.blocks(ctx, readyBlocksWait, 1); err != nil {
			return nil, err
		}
	}
	taken := slices.Concat(again, c.cut(blocks, c.free-len(again)))
	if len(taken) < c.free {
		c.bound = BoundNone // there was no more, unless a rate ended it
	}
	c.ebb()
	return taken, nil
}

// look locks what may be taken, slices before blocks as everywhere: due ones, and enough ready blocks for slices of
// full chunks, and one more for a begun block in front.
func (c *claim) look(ctx context.Context) (due []dueSlice, blocks []readyBlock, err error) {
	batch := &pgx.Batch{}
	batch.Queue(dueSlices, c.Run, c.Step, c.load.item, c.load.inputs, c.dueLimit()).Query(func(rows pgx.Rows) error {
		due, err = pgx.CollectRows(rows, c.scanDue)
		return err
	})
	batch.Queue(readyBlocks, c.Run, c.Step, c.load.item, c.load.inputs, c.free*c.chunk/bitsOfBlock+2).Query(func(
		rows pgx.Rows,
	) error {
		blocks, err = pgx.CollectRows(rows, scanReady)
		return err
	})
	if err := c.tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, nil, fmt.Errorf("look for slices: %w", err)
	}
	return due, blocks, nil
}

// queue adds a statement to what the claim writes.
func (c *claim) queue(rows int64, sql string, args ...any) {
	c.write.Queue(sql, args...)
	c.rows = append(c.rows, rows)
}

// flush writes in one round trip and checks that each statement touched the rows it was meant for.
func (c *claim) flush(ctx context.Context) error {
	results := c.tx.SendBatch(ctx, &c.write)
	for i, want := range c.rows {
		tag, err := results.Exec()
		if err == nil && want >= 0 && tag.RowsAffected() != want {
			err = fmt.Errorf("statement %d touched %d rows of %d: %w", i, tag.RowsAffected(), want, errFence)
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
