package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Runnable is a step of a running run that a node may claim work of.
type Runnable struct {
	Run      RunID
	Step     Step
	Endpoint string
	Params   []byte // of the run: a JSON object of strings; nil when it has none
}

// Steps with items that are ready, or with slices whose time has come; the most urgent run first, then the oldest.
const runnable = `
SELECT r.id, st.step, st.endpoint, nullif(r.params, '{}')::text
FROM batchrun r JOIN run_step st ON st.run_id = r.id
WHERE r.state = 'running' AND (
    EXISTS (SELECT 1 FROM work_block b WHERE b.run_id = r.id AND b.step = st.step AND b.has_ready)
    OR EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = r.id AND s.step = st.step AND s.state = 'scheduled'
                 AND s.not_before <= clock_timestamp()))
ORDER BY r.priority DESC, r.id, st.step`

// RunnableSteps returns the steps that have work to claim now.
func (s *Store) RunnableSteps(ctx context.Context) ([]Runnable, error) {
	rows, err := s.pool.Query(ctx, runnable)
	if err != nil {
		return nil, fmt.Errorf("look for work: %w", err)
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Runnable])
	if err != nil {
		return nil, fmt.Errorf("look for work: %w", err)
	}
	return steps, nil
}

// ClaimRequest says what a node would take.
type ClaimRequest struct {
	Session   SessionID
	Run       RunID
	Step      Step
	MaxSlices int   // at the most
	MaxBytes  int64 // wanted size of a request; blocks of large items are cut in smaller slices
	// TTL is how long the slices may stay claimed without being marked as sent; 0 means DefaultClaimTTL. It covers what
	// a session does not: a claim whose commit its node never heard of.
	TTL time.Duration
}

// DefaultClaimTTL is how long a slice may stay claimed.
const DefaultClaimTTL = 30 * time.Second

const (
	// lockStep makes claims of one step take turns, so that the in-flight limit is exact over all nodes. It also shuts
	// out a cancel, which takes the same lock. A claim waits for its turn, not for a long re-run: claimPatience.
	lockStep = `
SELECT chunk, in_flight, endpoint FROM run_step WHERE run_id = $1 AND step = $2 FOR NO KEY UPDATE`

	// A statement of its own after the lock, so that it sees what the lock waited for.
	stepLoad = `
SELECT r.state, r.generation,
       (SELECT count(*) FROM work_slice s
        WHERE s.run_id = r.id AND s.step = $2 AND s.state IN ('claimed', 'sent'))
FROM batchrun r WHERE r.id = $1`

	// claimScheduled takes slices that wait for their time. The subquery is materialized, since a plain one may be run
	// again and overshoot its limit; rows locked by others are left to them.
	claimScheduled = `
WITH due AS MATERIALIZED (
    SELECT id FROM work_slice
    WHERE run_id = $1 AND step = $2 AND state = 'scheduled' AND not_before <= clock_timestamp()
    ORDER BY not_before, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE work_slice s
SET state = 'claimed', session_id = $4, deadline = clock_timestamp() + $5, endpoint = $6
FROM due WHERE s.id = due.id AND s.state = 'scheduled'
RETURNING s.id, s.block, s.generation, s.mask, s.attempt, s.failures, s.cause, s.suspect, coalesce(s.root, s.id)`

	// readyBlocks picks blocks that nobody else holds; readyBlocksWait is for when all of them are held, by recorders
	// that will be gone in a moment: no claim comes back empty while work is ready.
	readyBlocks     = readyBlocksWait + ` SKIP LOCKED`
	readyBlocksWait = `
SELECT block, size, payload_bytes, ready FROM work_block
WHERE run_id = $1 AND step = $2 AND has_ready
ORDER BY block LIMIT $3 FOR NO KEY UPDATE`

	// cutBlock takes bits out of the ready plane; the condition that chose them stands again in the update.
	cutBlock = `
UPDATE work_block SET ready = ready & ~$4::bit(8192)
WHERE run_id = $1 AND step = $2 AND block = $3 AND (ready & $4::bit(8192)) = $4::bit(8192)`

	insertCuts = `
INSERT INTO work_slice
    (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, session_id, deadline, root, endpoint)
SELECT u.id, $1, $2, u.block, $3, u.mask, u.mask, 'claimed', 1, 'cut', $4, clock_timestamp() + $5, u.id, $9
FROM unnest($6::uuid[], $7::int[], $8::bit(8192)[]) AS u (id, block, mask)`
)

// claimPatience bounds the wait for another claim of the step. A re-run or a cancel may hold it longer; other runs do
// not wait for that.
const claimPatience = `SET LOCAL lock_timeout = '200ms'`

// errStepGone tells that a step is no longer to be worked on.
var errStepGone = errors.New("the step is no longer running")

// Claim takes slices of one step for a session: first those whose time to be tried again has come, then new cuts of
// ready items, in order, up to the step's in-flight limit over all nodes. The slices are the session's until they are
// marked as sent. It returns none when the step is at its limit, has no work or is no longer running, ErrBusy when the
// step is held by something longer than a claim, and ErrSessionLost when the session is over.
func (s *Store) Claim(ctx context.Context, req ClaimRequest) ([]Slice, error) {
	if req.TTL <= 0 {
		req.TTL = DefaultClaimTTL
	}
	var claimed []Slice
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		claimed = nil
		c := &claim{ClaimRequest: req, tx: tx}
		if err := c.begin(ctx); err != nil || c.free <= 0 {
			return err
		}
		due, err := c.scheduled(ctx)
		if err != nil {
			return err
		}
		cut, err := c.cut(ctx, c.free-len(due))
		claimed = slices.Concat(due, cut)
		return err
	})
	switch {
	case errors.Is(err, errStepGone):
		return nil, nil
	case isLockTimeout(err):
		return nil, fmt.Errorf("claim of run %s step %d: %w", req.Run, req.Step, ErrBusy)
	case err != nil:
		return nil, fmt.Errorf("claim of run %s step %d: %w", req.Run, req.Step, err)
	}
	return claimed, nil
}

// claim is one claim transaction under way.
type claim struct {
	ClaimRequest
	tx         pgx.Tx
	chunk      int
	endpoint   string
	generation Generation
	free       int // slices that may be taken
}

func (c *claim) begin(ctx context.Context) error {
	var inFlight, live int
	var state string
	batch := &pgx.Batch{}
	batch.Queue(claimPatience)
	batch.Queue(lockStep, c.Run, c.Step).QueryRow(func(row pgx.Row) error {
		return row.Scan(&c.chunk, &inFlight, &c.endpoint)
	})
	batch.Queue(stepLoad, c.Run, c.Step).QueryRow(func(row pgx.Row) error {
		return row.Scan(&state, &c.generation, &live)
	})
	if err := c.tx.SendBatch(ctx, batch).Close(); errors.Is(err, pgx.ErrNoRows) {
		return errStepGone
	} else if err != nil {
		return err
	}
	if state != "running" {
		return errStepGone
	}
	c.free = min(inFlight-live, c.MaxSlices)
	return requireSession(ctx, c.tx, c.Session)
}

func (c *claim) scheduled(ctx context.Context) ([]Slice, error) {
	rows, err := c.tx.Query(ctx, claimScheduled, c.Run, c.Step, c.free, c.Session, c.TTL, c.endpoint)
	if err != nil {
		return nil, fmt.Errorf("take scheduled slices: %w", err)
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Slice, error) {
		t := Slice{Run: c.Run, Step: c.Step, Endpoint: c.endpoint}
		err := row.Scan(&t.ID, &t.Block, &t.Generation, pgbits.Into(&t.Mask), &t.Attempt, &t.Failures, &t.Cause,
			&t.Suspect, &t.Root)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("take scheduled slices: %w", err)
	}
	return due, nil
}

// readyBlock is a block with ready items, locked.
type readyBlock struct {
	block Block
	size  int
	bytes int64
	ready bitfield.Set
}

func (c *claim) blocks(ctx context.Context, statement string, limit int) ([]readyBlock, error) {
	rows, err := c.tx.Query(ctx, statement, c.Run, c.Step, limit)
	if err != nil {
		return nil, fmt.Errorf("lock ready blocks: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (readyBlock, error) {
		var b readyBlock
		err := row.Scan(&b.block, &b.size, &b.bytes, pgbits.Into(&b.ready))
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock ready blocks: %w", err)
	}
	return found, nil
}

// cut takes up to n slices from ready items.
func (c *claim) cut(ctx context.Context, n int) ([]Slice, error) {
	if n <= 0 {
		return nil, nil
	}
	// Enough blocks for n slices of full chunks, one more for a begun block in front.
	limit := n*c.chunk/bitfield.Size + 2
	blocks, err := c.blocks(ctx, readyBlocks, limit)
	if err == nil && len(blocks) == 0 {
		blocks, err = c.blocks(ctx, readyBlocksWait, 1)
	}
	if err != nil {
		return nil, err
	}
	var cuts []Slice
	batch := &pgx.Batch{}
	for _, b := range blocks {
		if len(cuts) == n {
			break
		}
		var taken bitfield.Set
		for _, mask := range b.ready.Split(c.chunkFor(b)) {
			if len(cuts) == n {
				break
			}
			taken = taken.Or(mask)
			id := NewSliceID()
			cuts = append(cuts, Slice{ID: id, Run: c.Run, Step: c.Step, Block: b.block, Generation: c.generation, Mask: mask,
				Attempt: 1, Cause: CauseCut, Root: id, Endpoint: c.endpoint})
		}
		batch.Queue(cutBlock, c.Run, c.Step, b.block, pgbits.Of(taken))
	}
	return cuts, c.insert(ctx, batch, cuts)
}

// chunkFor is the step's chunk, or as many items of the block's mean size as the wanted request size takes.
func (c *claim) chunkFor(b readyBlock) int {
	const envelope = 64 // bytes of an item in a request beside its payload, roughly
	perItem := b.bytes/int64(b.size) + envelope
	return int(max(1, min(int64(c.chunk), c.MaxBytes/perItem)))
}

func (c *claim) insert(ctx context.Context, batch *pgx.Batch, cuts []Slice) error {
	if len(cuts) == 0 {
		return nil
	}
	updates := batch.Len()
	ids, blocks := make([]SliceID, len(cuts)), make([]Block, len(cuts))
	masks := make([]bitfield.Set, len(cuts))
	for i := range cuts {
		ids[i], blocks[i], masks[i] = cuts[i].ID, cuts[i].Block, cuts[i].Mask
	}
	batch.Queue(insertCuts, c.Run, c.Step, c.generation, c.Session, c.TTL, ids, blocks, pgbits.Slice(masks),
		c.endpoint)
	results := c.tx.SendBatch(ctx, batch)
	for range updates {
		tag, err := results.Exec()
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("cut a block: %w", errFence)
		}
		if err != nil {
			_ = results.Close() // the first error is the one to tell
			return err
		}
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("insert %d slices: %w", len(cuts), err)
	}
	return nil
}

// markSent is fenced by state: a slice whose reply came first stays recorded.
const markSent = `
UPDATE work_slice s
SET state = 'sent', sent_at = clock_timestamp(), stream_seq = u.seq, pipe_epoch = u.epoch,
    deadline = clock_timestamp() + st.slice_timeout
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS u (id, seq, epoch), run_step st
WHERE s.id = u.id AND s.state = 'claimed' AND st.run_id = s.run_id AND st.step = s.step`

// Sent is a slice whose request JetStream has acknowledged.
type Sent struct {
	ID        SliceID
	StreamSeq int64
	PipeEpoch int64
}

// MarkSent notes that requests are in the stream. It need not be durable at once: a mark that is lost in a crash of the
// database leaves a claimed slice, which is issued again.
func (s *Store) MarkSent(ctx context.Context, sent []Sent) error {
	ids, seqs, epochs := make([]SliceID, len(sent)), make([]int64, len(sent)), make([]int64, len(sent))
	for i, t := range sent {
		ids[i], seqs[i], epochs[i] = t.ID, t.StreamSeq, t.PipeEpoch
	}
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SET LOCAL synchronous_commit = off`)
		batch.Queue(lockSliceIDs, ids)
		batch.Queue(markSent, ids, seqs, epochs)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("mark %d slices as sent: %w", len(sent), err)
	}
	return nil
}
