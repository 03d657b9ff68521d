// Package settle records what became of slices: outcomes, releases, and the end of runs. Each is one transaction, from
// the fence to the completion.
package settle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Store is the database for outcomes. It is safe for concurrent use.
type Store struct {
	db    *database.DB
	count func([]Settled) // nil: no one counts
}

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// apply writes the settlement. The slices in it are locked already; what remains is locked in the documented order.
func (s *settlement) apply(ctx context.Context, tx pgx.Tx) error {
	if err := s.writeParts(ctx, tx); err != nil {
		return fmt.Errorf("write %d parts: %w", s.parts.Rows, err)
	}
	if err := s.markLarge(ctx, tx); err != nil {
		return err
	}
	if s.errors.Rows > 0 {
		if err := s.errors.Send(ctx, tx, copyErrors); err != nil {
			return fmt.Errorf("write %d failed attempts: %w", s.errors.Rows, err)
		}
	}
	if err := s.group(ctx, tx); err != nil {
		return err
	}
	if err := s.queueUp(ctx, tx); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	s.queueMasks(batch)
	if len(s.joint) > 0 { // what the outcomes unlock follows from the planes that this reads
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		batch = &pgx.Batch{}
		if err := s.unlock(ctx, tx, batch); err != nil {
			return err
		}
	}
	s.advance(batch)
	return s.acknowledge(ctx, tx, batch)
}

// Rows of results that are kept apart are locked after the slices that they are answers in, and before what else is
// settled; no one who holds one of them waits for anything.
const recordLarge = `
WITH locked AS MATERIALIZED (SELECT id FROM large_result WHERE id = ANY ($1) ORDER BY id FOR UPDATE)
UPDATE large_result l SET recorded_at = tranche_now() FROM locked WHERE l.id = locked.id AND l.recorded_at IS NULL`

// markLarge says of results that are kept apart that they are those of their items.
func (s *settlement) markLarge(ctx context.Context, tx pgx.Tx) error {
	if len(s.large) == 0 {
		return nil
	}
	tag, err := tx.Exec(ctx, recordLarge, s.large)
	if err == nil && tag.RowsAffected() != int64(len(s.large)) {
		err = fmt.Errorf("%d are there: %w", tag.RowsAffected(), workqueue.ErrFence)
	}
	if err != nil {
		return fmt.Errorf("record %d results that are kept apart: %w", len(s.large), err)
	}
	return nil
}

// lockOrder returns the keys of blocks in the order in which their rows are locked.
func lockOrder[V any](blocks map[plane.BlockID]V) []plane.BlockID {
	return slices.SortedFunc(maps.Keys(blocks), plane.BlockID.Compare)
}

// The rows are locked already; the state and the id fence the update anyway.
const updateSlices = `
UPDATE work_slice s
SET remaining = u.remaining, state = u.state, service = coalesce(nullif(u.service, ''), s.service),
    answered = nullif(u.answered, -1), error_code = u.code, error_message = u.message, error_retry = u.retry,
    took = coalesce(nullif(u.took, 0), s.took), worked = coalesce(nullif(u.worked, 0), s.worked),
    ended_at = CASE WHEN u.state IN ('claimed', 'sent') THEN NULL ELSE tranche_now() END
FROM unnest($1::uuid[], $2::bit(8192)[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::bool[],
            $9::float8[], $10::float8[])
     AS u (id, remaining, state, service, answered, code, message, retry, took, worked)
WHERE s.id = u.id AND s.state IN ('scheduled', 'claimed', 'sent')`

// What waits for its time waits at the endpoint that its step has now, where it is looked for: whoever changes that
// locks the slices that this one's transaction holds, and moves those after it.
const insertSlices = `
INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, failures, cause, parent,
                        suspect, session_id, not_before, deadline, root, endpoint)
SELECT u.id, u.run_id, u.step, u.block, u.generation, u.mask, u.mask, u.state, u.attempt, u.failures, u.cause,
       u.parent, u.suspect, u.session_id, tranche_now() + u.delay, tranche_now() + u.timeout, u.root,
       CASE WHEN u.state = 'scheduled' THEN (
           SELECT st.endpoint FROM run_step st WHERE st.run_id = u.run_id AND st.step = u.step) ELSE u.endpoint END
FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::int[], $5::int[], $6::bit(8192)[], $7::text[], $8::int[],
            $9::int[], $10::text[], $11::uuid[], $12::bool[], $13::uuid[], $14::interval[], $15::interval[],
            $16::uuid[], $17::text[])
     AS u (id, run_id, step, block, generation, mask, state, attempt, failures, cause, parent, suspect, session_id,
           delay, timeout, root, endpoint)`

// lockBlocks takes the blocks in order, in a statement of its own: the update after it then sees the newest planes.
const lockBlocks = `
SELECT count(*) FROM (
    SELECT 1 FROM work_block b
    JOIN unnest($1::uuid[], $2::smallint[], $3::int[]) AS u (run_id, step, block) USING (run_id, step, block)
    ORDER BY b.run_id, b.step, b.block FOR NO KEY UPDATE OF b) locked`

// Bits that are ready or final already cannot have been in flight: the condition keeps a fault elsewhere from being
// written over, and the row count tells.
const updateBlocks = `
UPDATE work_block b
SET done = b.done | u.done, failed = b.failed | u.failed
FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bit(8192)[], $5::bit(8192)[])
     AS u (run_id, step, block, done, failed)
WHERE b.run_id = u.run_id AND b.step = u.step AND b.block = u.block
  AND ((b.ready | b.done | b.failed) & (u.done | u.failed)) = B'0'::bit(8192)`

// queueMasks queues the statements about slices and blocks, each of which must touch all its rows. Of runs with several
// steps it only locks the blocks and reads their planes: what becomes of them is for unlock.
func (s *settlement) queueMasks(batch *pgx.Batch) {
	expect := func(what string, want int) func(pgconn.CommandTag) error {
		return func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != int64(want) {
				return fmt.Errorf("settle %s: %d rows of %d: %w", what, tag.RowsAffected(), want, workqueue.ErrFence)
			}
			return nil
		}
	}
	if len(s.ended) > 0 {
		batch.Queue(updateSlices, s.endedArgs()...).Exec(expect("slices", len(s.ended)))
	}
	if len(s.made) > 0 {
		batch.Queue(insertSlices, s.madeArgs()...).Exec(expect("new slices", len(s.made)))
	}
	if len(s.outcomes) > 0 {
		batch.Queue(lockBlocks, plane.Columns(s.locks())...)
	}
	if len(s.unheld) > 0 {
		batch.Queue(unholdBlocks, s.unheldArgs()...).Exec(expect("items held back", len(s.unheld)))
	}
	if len(s.alone) > 0 {
		batch.Queue(updateBlocks, s.blockArgs()...).Exec(expect("blocks", len(s.alone)))
	}
	if len(s.joint) > 0 {
		batch.Queue(readPlanes, plane.Columns(s.rows())...).Query(s.scanPlanes)
	}
}

func (s *settlement) endedArgs() []any {
	n := len(s.ended)
	ids, remaining := make([]workqueue.SliceID, n), make([]bitfield.Set, n)
	states, services, answered := make([]string, n), make([]string, n), make([]int, n)
	codes, messages, retries := make([]*string, n), make([]*string, n), make([]*bool, n)
	took, worked := make([]float64, n), make([]float64, n)
	for i, e := range s.ended {
		ids[i], remaining[i], states[i] = e.slice.ID, e.slice.Remaining, e.state
		services[i], answered[i] = e.service, e.slice.Answered
		took[i], worked[i] = e.slice.Took, e.slice.Worked
		if e.why != nil {
			code, message := pg.Plain(e.why.Code), pg.Plain(e.why.Message)
			codes[i], messages[i], retries[i] = &code, &message, &e.why.Retry
		}
	}
	return []any{ids, pgbits.Slice(remaining), states, services, answered, codes, messages, retries, took, worked}
}

func (s *settlement) madeArgs() []any {
	n := len(s.made)
	ids, runs, parents := make([]workqueue.SliceID, n), make([]workqueue.RunID, n), make([]workqueue.SliceID, n)
	steps, blocks, gens := make([]workqueue.Step, n), make([]workqueue.Block, n), make([]workqueue.Generation, n)
	masks, states, causes := make([]bitfield.Set, n), make([]string, n), make([]string, n)
	roots, endpoints := make([]workqueue.SliceID, n), make([]string, n)
	attempts, failures, suspects := make([]int, n), make([]int, n), make([]bool, n)
	sessions, delays, timeouts := make([]uuid.NullUUID, n), make([]time.Duration, n), make([]*time.Duration, n)
	for i := range s.made {
		m := &s.made[i]
		ids[i], runs[i], parents[i], steps[i], blocks[i], gens[i] = m.ID, m.Run, m.parent, m.Step, m.Block, m.Generation
		masks[i], states[i], causes[i], attempts[i], failures[i] = m.Mask, m.state, string(m.Cause), m.Attempt, m.Failures
		suspects[i], roots[i], endpoints[i] = m.Suspect, m.Root, m.Endpoint
		sessions[i] = uuid.NullUUID{UUID: uuid.UUID(m.session), Valid: m.state == "claimed"}
		delays[i] = m.delay
		if m.state == "claimed" {
			timeouts[i] = &m.timeout
		}
	}
	return []any{ids, runs, steps, blocks, gens, pgbits.Slice(masks), states, attempts, failures, causes, parents,
		suspects, sessions, delays, timeouts, roots, endpoints}
}

func (s *settlement) blockArgs() []any {
	done, failed := make([]bitfield.Set, len(s.alone)), make([]bitfield.Set, len(s.alone))
	for i, id := range s.alone {
		done[i], failed[i] = s.outcomes[id].Done, s.outcomes[id].Failed
	}
	return append(plane.Columns(s.alone), pgbits.Slice(done), pgbits.Slice(failed))
}

// acknowledge tells the tracker which items are final, run by run in the order of their ids and in one round trip with
// what the batch holds already, and completes the runs whose last item that was.
func (s *settlement) acknowledge(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) error {
	var acks []tracker.BatchAcks
	for _, id := range lockOrder(s.final) {
		if last := len(acks) - 1; last < 0 || workqueue.RunID(acks[last].Batch) != id.Run {
			acks = append(acks, tracker.BatchAcks{Batch: uuid.UUID(id.Run), Into: &tracker.Acked{}})
		}
		of := &acks[len(acks)-1]
		of.Items = append(of.Items, tracker.Ack{Group: int(id.Block), Mask: s.final[id]})
	}
	if err := tracker.QueueAcks(batch, acks); err != nil {
		return fmt.Errorf("acknowledge items: %w", err)
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("settle and acknowledge items: %w", err)
	}
	var ended []workqueue.RunID
	for _, of := range acks {
		if of.Into.Completed {
			ended = append(ended, workqueue.RunID(of.Batch))
		}
	}
	err := s.checkFailFast(ctx, tx, ended)
	if err == nil {
		s.finished, err = Complete(ctx, tx, ended...)
	}
	return err
}

const (
	// OutcomeOfRun counts the items of a run r that are done, those that have failed, and of these the accepted ones.
	OutcomeOfRun = `
SELECT coalesce(sum(bit_count(o.settled & ~o.failed)), 0)::bigint AS done,
       coalesce(sum(bit_count(o.failed)), 0)::bigint AS failed,
       coalesce(sum(bit_count(o.accepted)), 0)::bigint AS accepted
FROM (` + plane.OutcomePlanes + `) o`

	// completeRuns goes from run to run, in the order given, and finds each by its key, in a transaction that
	// acknowledges items also by a plan made while there was none: the LIMIT and = ANY leave nothing out, and the state
	// as it is written is in no index of runs in progress.
	completeRuns = `
UPDATE batchrun r
SET state = 'completed', finished_at = tranche_now(), done = c.done, failed = c.failed,
    accepted = c.accepted
FROM (SELECT r.id, o.* FROM (SELECT * FROM unnest($1::uuid[]) AS u (id) LIMIT cardinality($1::uuid[])) r
      CROSS JOIN LATERAL (` + OutcomeOfRun + `) o) c
WHERE r.id = c.id AND r.id = ANY ($1::uuid[]) AND r.state || '' = 'running'
RETURNING r.id, r.generation, r.done, r.failed, r.finished_at`
)

// Complete closes the generation of runs, in ascending order, in the transaction in which their trackers reported the
// last acknowledgement.
func Complete(ctx context.Context, tx pgx.Tx, runs ...workqueue.RunID) ([]Completion, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, completeRuns, runs)
	if err != nil {
		return nil, fmt.Errorf("complete %d runs: %w", len(runs), err)
	}
	var at []time.Time
	completed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Completion, err error) {
		at = append(at, time.Time{})
		err = row.Scan(&c.Run, &c.Generation, &c.Done, &c.Failed, &at[len(at)-1])
		return c, err
	})
	if err == nil && len(completed) != len(runs) {
		err = workqueue.ErrFence
	}
	if err != nil {
		return nil, fmt.Errorf("complete runs %v: %w", runs, err)
	}
	for i := range completed {
		c := &completed[i]
		c.Event, err = ledger.AddEventAt(ctx, tx, c.Run, c.Generation, workqueue.EventCompleted, at[i],
			map[string]any{"done": c.Done, "failed": c.Failed})
		if err != nil {
			return nil, err
		}
	}
	return completed, nil
}

// Settled counts what one transaction settled of one endpoint: items that came to their end at a step, and requests, or
// chunks that nodes worked on, that ended.
type Settled struct {
	Endpoint     string // or what else paces a step, like http:HOST
	Done, Failed int64  // items, permanently
	Answered     int64  // requests
	Refused      int64  // requests that failed as a whole, or of which every item is to be retried
	Expired      int64  // requests whose time was over
	Lost         int64  // requests that are reissued for no fault of theirs: a node, a stream or a message was lost
}

// Counting returns a store that tells count of what its transactions settled, each after its commit.
func (s Store) Counting(count func([]Settled)) Store {
	s.count = count
	return s
}

// tell is called after a commit.
func (s Store) tell(set *settlement) {
	if s.count != nil && set != nil && len(set.settled) > 0 {
		s.count(set.settled)
	}
}

// of returns the counts of an endpoint. A transaction is about few; most often it is the one before.
func (s *settlement) of(endpoint string) *Settled {
	for i := len(s.settled) - 1; i >= 0; i-- {
		if s.settled[i].Endpoint == endpoint {
			return &s.settled[i]
		}
	}
	s.settled = append(s.settled, Settled{Endpoint: endpoint})
	return &s.settled[len(s.settled)-1]
}

// answered counts a request that a reply has ended.
func (s *settlement) answered(endpoint string, why *workqueue.SlotError) {
	if why == nil {
		s.of(endpoint).Answered++
	} else {
		s.of(endpoint).Refused++
	}
}

// released counts a request that ended without a reply.
func (s *settlement) released(endpoint string, cause workqueue.Cause) {
	if cause == workqueue.CauseDeadline || cause == workqueue.CauseSilence {
		s.of(endpoint).Expired++
	} else {
		s.of(endpoint).Lost++
	}
}
