package settle

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// settlement collects what one transaction decides about its locked slices and writes it together: parts, failed
// attempts, slices, planes, the tracker, completions. Replies and releases differ only in its contents.
type settlement struct {
	parts    *pg.CopyRows
	failed   pg.CopyRows // errors that are final
	errors   pg.CopyRows // errors that another attempt follows
	ended    []sliceUpdate
	made     []madeSlice
	outcomes map[plane.BlockID]*plane.Outcome
	finished []Completion

	graphs        *plane.GraphCache
	alone         []plane.BlockID                  // blocks with outcomes of runs of one step, in order
	joint         map[plane.BlockID]*joint         // and of runs of several, by gate
	final         map[plane.BlockID]bitfield.Set   // items now final, under step 0 of their block
	ordered       map[workqueue.RunID]*plane.Graph // runs with lanes
	lanes         map[workqueue.RunID][]*LaneRow   // their lanes whose heads may now be final
	unheld        map[plane.BlockID]bitfield.Set   // held items that end here
	barriers      []workqueue.RunID                // where a barrier may have been reached
	unlocked      bool                             // items became ready
	settled       []Settled                        // one for each endpoint
	firstOutcomes map[failFastStep]*outcomes       // of steps with fail-fast limits
	large         []uuid.UUID                      // results that are stored separately
	seals         map[workqueue.RunID]*database.Seal
}

type sliceUpdate struct {
	slice   *plane.HeldSlice
	state   string
	service string
	why     *workqueue.SlotError // of the whole slice; nil for a successful reply
}

type madeSlice struct {
	workqueue.Slice
	parent  workqueue.SliceID
	state   string // scheduled, or claimed for pieces that stay with their node
	session workqueue.SessionID
	delay   time.Duration
	timeout time.Duration // of a claimed piece
}

// Completion is a generation of a run that a transaction completed.
type Completion struct {
	Run        workqueue.RunID
	Generation workqueue.Generation
	Done       int64
	Failed     int64
	Accepted   int64           // of the failed
	Event      workqueue.Event // the event about it, as in the outbox
}

func newSettlement(parts *pg.CopyRows, graphs *plane.GraphCache) *settlement {
	s := &settlement{parts: parts, outcomes: map[plane.BlockID]*plane.Outcome{}, graphs: graphs,
		joint: map[plane.BlockID]*joint{}, final: map[plane.BlockID]bitfield.Set{},
		ordered: map[workqueue.RunID]*plane.Graph{},
		lanes:   map[workqueue.RunID][]*LaneRow{}, firstOutcomes: map[failFastStep]*outcomes{}}
	s.parts.Reset()
	s.failed.Reset()
	s.errors.Reset()
	return s
}

func (s *settlement) outcomeOf(h *plane.HeldSlice) *plane.Outcome {
	id := plane.BlockID{Run: h.Run, Step: h.Step, Block: h.Block}
	o := s.outcomes[id]
	if o == nil {
		o = &plane.Outcome{}
		s.outcomes[id] = o
	}
	return o
}

func (s *settlement) done(h *plane.HeldSlice, bit int, slot *Slot) {
	part(s.parts, 8, h, bit)
	result := slot.Result
	if seal := s.seals[h.Run]; seal != nil && slot.Large == nil {
		result = seal.Bytes(database.ResultOf(h.Step, h.Block.Ordinal(bit)), result)
	}
	s.parts.Bytes(result)
	if slot.ContentType == "" {
		s.parts.Null()
	} else {
		s.parts.Text(slot.ContentType)
	}
	size := int64(len(slot.Result))
	if slot.Large == nil {
		s.parts.Null()
	} else {
		s.parts.UUID(slot.Large.ID)
		s.large = append(s.large, slot.Large.ID)
		size = slot.Large.Bytes
	}
	h.Remaining.Remove(bit)
	o := s.outcomeOf(h)
	o.Done.Add(bit)
	s.of(h.Endpoint).Done++
	h.Done++
	s.watch(h, "")
	o.Bytes += size
}

func (s *settlement) fail(h *plane.HeldSlice, bit int, e workqueue.SlotError) {
	part(&s.failed, 7, h, bit)
	s.failed.Text(pg.Plain(e.Code))
	s.failed.Text(pg.Plain(e.Message))
	h.Remaining.Remove(bit)
	s.outcomeOf(h).Failed.Add(bit)
	s.of(h.Endpoint).Failed++
	h.Failed++
	if h.Policy.Retries(e) {
		e.Code = "" // only its attempts ended
	}
	s.watch(h, e.Code)
}

// copyParts and part must match; so must they and insertFailed.
const copyParts = `COPY work_result
(run_id, slice_id, ordinal, generation, step, result, content_type, large_id)
FROM STDIN (FORMAT binary)`

// insertParts is copyParts for a few parts: it can share a round trip.
const insertParts = `
INSERT INTO work_result
    (run_id, slice_id, ordinal, generation, step, result, content_type, large_id)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::smallint[], $6::bytea[], $7::text[], $8::uuid[])`

// Errors are stored with the text for grouping, so that grouping a million of them needs no lookup of keys.
const insertFailed = `
INSERT INTO work_result
    (run_id, slice_id, ordinal, generation, step, error_code, error_message, error_keyed)
SELECT p.*, ` + plane.ErrorKeyed + `
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::smallint[], $6::text[], $7::text[])
    AS p (run_id, slice_id, ordinal, generation, step, error_code, error_message)
` + plane.KeyOfPart

func (s *settlement) writeParts(ctx context.Context, tx pgx.Tx) error {
	if s.failed.Rows > 0 {
		rows := s.failed.Columns(7)
		args := append(partArgs(rows), texts(rows[5]), texts(rows[6]))
		if err := pg.Later(ctx, tx, insertFailed, args...); err != nil {
			return err
		}
	}
	switch n := s.parts.Rows; {
	case n == 0:
		return nil
	case pg.TooFewForCopy(int(n), len(s.parts.Buf)):
		rows := s.parts.Columns(8)
		return pg.Later(ctx, tx, insertParts, append(partArgs(rows), rows[5], texts(rows[6]), uuids(rows[7]))...)
	}
	return s.parts.Send(ctx, tx, copyParts)
}

func partArgs(rows [][][]byte) []any {
	n := len(rows[0])
	runs, slices := make([]workqueue.RunID, n), make([]workqueue.SliceID, n)
	ordinals, gens, steps := make([]int32, n), make([]int32, n), make([]int16, n)
	for i := range n {
		runs[i], slices[i] = workqueue.RunID(rows[0][i]), workqueue.SliceID(rows[1][i])
		ordinals[i], gens[i] = int32(binary.BigEndian.Uint32(rows[2][i])), int32(binary.BigEndian.Uint32(rows[3][i]))
		steps[i] = int16(binary.BigEndian.Uint16(rows[4][i]))
	}
	return []any{runs, slices, ordinals, gens, steps}
}

func uuids(fields [][]byte) []uuid.NullUUID {
	list := make([]uuid.NullUUID, len(fields))
	for i, id := range fields {
		if id != nil {
			list[i] = uuid.NullUUID{UUID: uuid.UUID(id), Valid: true}
		}
	}
	return list
}

func texts(fields [][]byte) []*string {
	list := make([]*string, len(fields))
	for i, field := range fields {
		if field != nil {
			text := string(field)
			list[i] = &text
		}
	}
	return list
}

func part(to *pg.CopyRows, columns int, h *plane.HeldSlice, bit int) {
	to.Row(columns)
	to.UUID(h.Run)
	to.UUID(h.ID)
	to.Int4(int32(h.Block.Ordinal(bit)))
	to.Int4(int32(h.Generation))
	to.Int2(int16(h.Step))
}

// copyErrors and attemptFailed must match.
const copyErrors = `COPY work_error
(run_id, slice_id, ordinal, step, error_code, error_message)
FROM STDIN (FORMAT binary)`

func (s *settlement) attemptFailed(h *plane.HeldSlice, bit int, e workqueue.SlotError) {
	s.errors.Row(6)
	s.errors.UUID(h.Run)
	s.errors.UUID(h.ID)
	s.errors.Int4(int32(h.Block.Ordinal(bit)))
	s.errors.Int2(int16(h.Step))
	s.errors.Text(pg.Plain(e.Code))
	s.errors.Text(pg.Plain(e.Message))
}

// pass passes items of a slice on after an error that concerns all of them: to new slices while they have attempts,
// else to the failed plane. See [plane.Policy.Succeed].
func (s *settlement) pass(h *plane.HeldSlice, bits bitfield.Set, cause workqueue.Cause, e workqueue.SlotError) {
	next, final := h.Policy.Succeed(plane.Ending{Attempt: h.Attempt, Failures: h.Failures, Origin: h.Cause, Cause: cause,
		Hopeless: !h.Policy.Retries(e)}, bits)
	if final {
		for bit := range bits.All() {
			s.fail(h, bit, e)
		}
		return
	}
	h.Remaining = h.Remaining.AndNot(bits)
	suspect := cause == workqueue.CauseExhausted || h.Suspect && !cause.Answered()
	for _, n := range next {
		s.made = append(s.made, madeSlice{
			Slice: workqueue.Slice{ID: workqueue.NewSliceID(), Run: h.Run, Step: h.Step, Block: h.Block,
				Generation: h.Generation, Mask: n.Mask,
				Attempt: n.Attempt, Failures: n.Failures, Cause: n.Cause, Suspect: suspect, Root: h.Root,
				Endpoint: h.Endpoint},
			parent: h.ID, state: "scheduled", delay: n.Delay,
		})
	}
}

func (s *settlement) due() (in []time.Duration) {
	for i := range s.made {
		if s.made[i].delay > 0 {
			in = append(in, s.made[i].delay)
		}
	}
	return in
}

// end ends a slice, or keeps it live with fewer items if state is its current one.
func (s *settlement) end(h *plane.HeldSlice, state, service string, why *workqueue.SlotError) {
	s.ended = append(s.ended, sliceUpdate{slice: h, state: state, service: pg.Plain(service), why: why})
}
