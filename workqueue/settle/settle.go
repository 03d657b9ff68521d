// Package settle records the outcomes and releases of slices and the end of runs. Each is one transaction, from the
// fence to the completion. Rows are locked in one order everywhere: slices, lanes, blocks, each sorted.
package settle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Store records outcomes. It is safe for concurrent use.
type Store struct {
	db    *database.DB
	count func([]Settled) // nil: no counting
}

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// apply writes the settlement. Its slices are already locked; the rest is locked in the documented order.
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
	if len(s.joint) > 0 { // what the outcomes unlock depends on the planes read here
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

// Large results are locked after the slices that they answer, before all else. A holder waits for nothing.
const recordLarge = `
WITH locked AS MATERIALIZED (SELECT id FROM large_result WHERE id = ANY ($1) ORDER BY id FOR UPDATE)
UPDATE large_result l SET recorded_at = tranche_now() FROM locked WHERE l.id = locked.id AND l.recorded_at IS NULL`

func (s *settlement) markLarge(ctx context.Context, tx pgx.Tx) error {
	if len(s.large) == 0 {
		return nil
	}
	err := pg.CheckRows(len(s.large))(tx.Exec(ctx, recordLarge, s.large))
	return pg.Wrap(err, "record %d results that are kept apart", len(s.large))
}

// lockOrder returns blocks in the order in which their rows are locked.
func lockOrder[V any](blocks map[plane.BlockID]V) []plane.BlockID {
	return slices.SortedFunc(maps.Keys(blocks), plane.BlockID.Compare)
}

// The rows are already locked; state and ID fence the update anyway.
const updateSlices = `
UPDATE work_slice s
SET remaining = nullif(u.remaining, B'0'::bit(8192)), state = u.state,
    service = coalesce(nullif(u.service, ''), s.service),
    answered = nullif(u.answered, -1), error_code = u.code, error_message = u.message, error_retry = u.retry,
    done_items = s.done_items + u.done, failed_items = s.failed_items + u.failed,
    took = coalesce(nullif(u.took, 0), s.took), worked = coalesce(nullif(u.worked, 0), s.worked),
    ended_at = CASE WHEN u.state IN ('claimed', 'sent') THEN NULL ELSE tranche_now() END
FROM unnest($1::uuid[], $2::bit(8192)[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::bool[],
            $9::float8[], $10::float8[], $11::int[], $12::int[])
     AS u (id, remaining, state, service, answered, code, message, retry, took, worked, done, failed)
WHERE s.id = u.id AND s.state IN ('scheduled', 'claimed', 'sent')`

// A scheduled slice waits at its step's current endpoint, where claims find it. A change of the endpoint locks
// this transaction's slices first, so it moves new ones afterwards.
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

// lockBlocks locks the blocks in order, in a separate statement: the update after it then sees the newest planes.
const lockBlocks = `
SELECT count(*) FROM (
    SELECT 1 FROM work_block b
    JOIN unnest($1::uuid[], $2::smallint[], $3::int[]) AS u (run_id, step, block) USING (run_id, step, block)
    ORDER BY b.run_id, b.step, b.block FOR NO KEY UPDATE OF b) locked`

// Ready or final bits cannot have been in flight: the condition and row count reveal a bug elsewhere.
const updateBlocks = `
UPDATE work_block b
SET done = b.done | u.done, failed = b.failed | u.failed
FROM unnest($1::uuid[], $2::smallint[], $3::int[], $4::bit(8192)[], $5::bit(8192)[])
     AS u (run_id, step, block, done, failed)
WHERE b.run_id = u.run_id AND b.step = u.step AND b.block = u.block
  AND ((b.ready | b.done | b.failed) & (u.done | u.failed)) = B'0'::bit(8192)`

// queueMasks queues the statements for slices and blocks; each must affect all its rows. For runs with several steps
// it only locks the blocks and reads their planes: unlock changes them.
func (s *settlement) queueMasks(batch *pgx.Batch) {
	if len(s.ended) > 0 {
		batch.Queue(updateSlices, s.endedArgs()...).Exec(pg.CheckBatchRows(len(s.ended), "settle slices"))
	}
	if len(s.made) > 0 {
		batch.Queue(insertSlices, s.madeArgs()...).Exec(pg.CheckBatchRows(len(s.made), "settle new slices"))
	}
	if len(s.outcomes) > 0 {
		batch.Queue(lockBlocks, plane.Columns(s.locks())...)
	}
	if len(s.unheld) > 0 {
		batch.Queue(unholdBlocks, s.unheldArgs()...).Exec(pg.CheckBatchRows(len(s.unheld), "settle items held back"))
	}
	if len(s.alone) > 0 {
		batch.Queue(updateBlocks, s.blockArgs()...).Exec(pg.CheckBatchRows(len(s.alone), "settle blocks"))
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
	done, failed := make([]int, n), make([]int, n)
	for i, e := range s.ended {
		ids[i], remaining[i], states[i] = e.slice.ID, e.slice.Remaining, e.state
		services[i], answered[i] = e.service, e.slice.Answered
		took[i], worked[i], done[i], failed[i] = e.slice.Took, e.slice.Worked, e.slice.Done, e.slice.Failed
		if e.why != nil {
			code, message := pg.Plain(e.why.Code), pg.Plain(e.why.Message)
			codes[i], messages[i], retries[i] = &code, &message, &e.why.Retry
		}
	}
	return []any{ids, pgbits.Slice(remaining), states, services, answered, codes, messages, retries, took, worked,
		done, failed}
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

// acknowledge reports final items to the tracker by run ID, in the batch's round trip, and completes finished runs.
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
	together := len(acks) > 0 && len(s.firstOutcomes) == 0 // else limits are locked before the runs
	if together {
		runs := make([]workqueue.RunID, len(acks))
		for i := range acks {
			runs[i] = workqueue.RunID(acks[i].Batch)
		}
		queueCompletions(batch, runs, &s.finished)
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
	if together {
		return addCompleted(ctx, tx, s.finished, ended)
	}
	err := s.checkFailFast(ctx, tx, ended)
	if err == nil {
		s.finished, err = Complete(ctx, tx, ended...)
	}
	return err
}

const (
	// completeRuns completes those runs whose batches are completed, in the given order, and finds each by its key. That
	// holds even for a plan cached while the table was empty: the LIMIT and = ANY change nothing, and no partial index
	// matches.
	completeRuns = `
UPDATE batchrun r
SET state = 'completed', finished_at = tranche_now(), done = c.done, failed = c.failed,
    accepted = c.accepted
FROM (SELECT r.id, o.* FROM (
          SELECT * FROM unnest($1::uuid[]) AS u (id)
          WHERE (SELECT b.state FROM tracker_batch b WHERE b.id = u.id) = 'completed' LIMIT cardinality($1::uuid[])) r
      CROSS JOIN LATERAL (` + plane.OutcomeOfRun + `) o) c
WHERE r.id = c.id AND r.id = ANY ($1::uuid[]) AND r.state || '' = 'running'
RETURNING r.id, r.generation, r.started_at, r.done, r.failed, r.accepted, r.finished_at`
)

// Complete completes the generation of runs, in ascending order, in the transaction of their last acknowledgement.
func Complete(ctx context.Context, tx pgx.Tx, runs ...workqueue.RunID) (completed []Completion, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	batch := &pgx.Batch{}
	queueCompletions(batch, runs, &completed)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("complete runs %v: %w", runs, err)
	}
	return completed, addCompleted(ctx, tx, completed, runs)
}

// queueCompletions completes those of some runs, in ascending order, that the transaction's acknowledgements complete.
// A database that lost recent commits may complete the same start or rerun again: readers must recognize that event.
func queueCompletions(batch *pgx.Batch, runs []workqueue.RunID, completed *[]Completion) {
	batch.Queue(completeRuns, runs).Query(func(rows pgx.Rows) (err error) {
		*completed, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Completion, err error) {
			var started time.Time
			err = row.Scan(&c.Run, &c.Generation, &started, &c.Done, &c.Failed, &c.Accepted, &c.Event.At)
			c.Event.ID = uuid.NewSHA1(uuid.UUID(c.Run), fmt.Appendf(nil, "%d.%d", c.Generation, started.UnixMicro()))
			return c, err
		})
		return err
	})
}

// addCompleted adds the events of runs, all completed.
func addCompleted(ctx context.Context, tx pgx.Tx, completed []Completion, runs []workqueue.RunID) (err error) {
	if len(completed) != len(runs) {
		return fmt.Errorf("complete runs %v: %w", runs, workqueue.ErrFence)
	}
	for i := range completed {
		c := &completed[i]
		c.Event.Run, c.Event.Generation, c.Event.Kind = c.Run, c.Generation, workqueue.EventCompleted
		c.Event, err = ledger.AddEventAs(ctx, tx, c.Event,
			map[string]any{"done": c.Done, "failed": c.Failed, "accepted": c.Accepted})
		if err != nil {
			return err
		}
	}
	return nil
}

// Settled counts what one transaction settled for one endpoint: items at a step, and requests or local chunks.
type Settled struct {
	Endpoint     string // or another target, like http:HOST
	Done, Failed int64  // items, permanently
	Answered     int64  // requests
	Refused      int64  // requests that failed entirely, or whose items are all to be retried
	Expired      int64  // requests past their deadline
	Lost         int64  // requests reissued without fault: a node, stream or message was lost
}

// Counting returns a store that calls count after each commit with what was settled.
func (s Store) Counting(count func([]Settled)) Store {
	s.count = count
	return s
}

func (s Store) tell(set *settlement) {
	if s.count != nil && set != nil && len(set.settled) > 0 {
		s.count(set.settled)
	}
}

// of returns the counts of an endpoint, searching from the end: few endpoints, mostly the last.
func (s *settlement) of(endpoint string) *Settled {
	for i := len(s.settled) - 1; i >= 0; i-- {
		if s.settled[i].Endpoint == endpoint {
			return &s.settled[i]
		}
	}
	s.settled = append(s.settled, Settled{Endpoint: endpoint})
	return &s.settled[len(s.settled)-1]
}

func (s *settlement) answered(endpoint string, why *workqueue.SlotError) {
	if why == nil {
		s.of(endpoint).Answered++
	} else {
		s.of(endpoint).Refused++
	}
}
