package workqueue

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// settlement collects what one transaction decides about slices it has locked, and writes all of it at once: parts,
// attempts that failed, slices, planes, the tracker, the completion of runs. Recording a reply and releasing a lost
// slice differ only in what they put into it.
type settlement struct {
	parts    *copyRows
	errors   copyRows
	ended    []sliceUpdate
	made     []madeSlice
	outcomes map[blockID]*outcome
	finished []Completion

	graphs   *graphCache
	alone    []blockID                // blocks with outcomes of runs of one step, in order
	joint    map[blockID]*joint       // and of runs of several, under the gate
	final    map[blockID]bitfield.Set // items that are final now, under step 0 of their block
	ordered  map[RunID]*graph         // runs that have lines
	lanes    map[RunID][]*laneRow     // lines of these whose heads may be final now
	unheld   map[blockID]bitfield.Set // items that are held back no more, because they come to their end here
	barriers []RunID                  // of which a step may have what it waited for
	unlocked bool                     // items became ready
}

type blockID struct {
	run   RunID
	step  Step
	block Block
}

// outcome is what items of one block got at one step.
type outcome struct {
	done, failed bitfield.Set
	bytes        int64 // of the results
}

func (o *outcome) all() bitfield.Set { return o.done.Or(o.failed) }

type sliceUpdate struct {
	slice   *heldSlice
	state   string
	service string
	took    float64    // seconds that the service worked on it; 0: it did not say
	why     *SlotError // of the slice as a whole; nil for a reply without a failure
}

type madeSlice struct {
	Slice
	parent  SliceID
	state   string // scheduled, or claimed for pieces of a slice that stay with their node
	session SessionID
	delay   time.Duration
	timeout time.Duration // of a claimed piece
}

// Completion says that a transaction completed a generation of a run.
type Completion struct {
	Run        RunID
	Generation Generation
	Done       int64
	Failed     int64
	Event      Event // that tells of it, as it is in the outbox
}

func newSettlement(parts *copyRows, graphs *graphCache) *settlement {
	s := &settlement{parts: parts, outcomes: map[blockID]*outcome{}, graphs: graphs,
		joint: map[blockID]*joint{}, final: map[blockID]bitfield.Set{}, ordered: map[RunID]*graph{},
		lanes: map[RunID][]*laneRow{}}
	s.parts.reset()
	s.errors.reset()
	return s
}

func (s *settlement) outcomeOf(h *heldSlice) *outcome {
	id := blockID{h.Run, h.Step, h.Block}
	o := s.outcomes[id]
	if o == nil {
		o = &outcome{}
		s.outcomes[id] = o
	}
	return o
}

// done accepts a result.
func (s *settlement) done(h *heldSlice, bit int, result []byte, contentType string) {
	s.part(h, bit)
	s.parts.bytes(result)
	if contentType == "" {
		s.parts.null()
	} else {
		s.parts.text(contentType)
	}
	s.parts.null()
	s.parts.null()
	h.remaining.Remove(bit)
	o := s.outcomeOf(h)
	o.done.Add(bit)
	o.bytes += int64(len(result))
}

// fail accepts an error as the item's final outcome.
func (s *settlement) fail(h *heldSlice, bit int, e SlotError) {
	s.part(h, bit)
	s.parts.null()
	s.parts.null()
	s.parts.text(plain(e.Code))
	s.parts.text(plain(e.Message))
	h.remaining.Remove(bit)
	s.outcomeOf(h).failed.Add(bit)
}

// copyParts and part go together.
const copyParts = `COPY work_part
(run_id, slice_id, ordinal, generation, step, result, content_type, error_code, error_message)
FROM STDIN (FORMAT binary)`

// insertParts is copyParts for a few: it need not travel alone.
const insertParts = `
INSERT INTO work_part
    (run_id, slice_id, ordinal, generation, step, result, content_type, error_code, error_message)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::smallint[], $6::bytea[], $7::text[], $8::text[],
                     $9::text[])`

// writeParts leaves a few parts to the next statement, and writes many at once.
func (s *settlement) writeParts(ctx context.Context, tx pgx.Tx) error {
	switch n := s.parts.rows; {
	case n == 0:
		return nil
	case few(int(n), len(s.parts.buf)):
		return later(ctx, tx, insertParts, s.partArgs()...)
	}
	return s.parts.send(ctx, tx, copyParts)
}

func (s *settlement) partArgs() []any {
	rows := s.parts.columns(9)
	n := len(rows[0])
	runs, slices := make([]RunID, n), make([]SliceID, n)
	ordinals, gens, steps := make([]int32, n), make([]int32, n), make([]int16, n)
	for i := range n {
		runs[i], slices[i] = RunID(rows[0][i]), SliceID(rows[1][i])
		ordinals[i], gens[i] = int32(binary.BigEndian.Uint32(rows[2][i])), int32(binary.BigEndian.Uint32(rows[3][i]))
		steps[i] = int16(binary.BigEndian.Uint16(rows[4][i]))
	}
	return []any{runs, slices, ordinals, gens, steps, rows[5], texts(rows[6]), texts(rows[7]), texts(rows[8])}
}

// texts are texts that may be NULL.
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

func (s *settlement) part(h *heldSlice, bit int) {
	s.parts.row(9)
	s.parts.uuid(h.Run)
	s.parts.uuid(h.ID)
	s.parts.int4(int32(h.Block.Ordinal(bit)))
	s.parts.int4(int32(h.Generation))
	s.parts.int2(int16(h.Step))
}

// copyErrors and attemptFailed go together.
const copyErrors = `COPY work_error
(run_id, slice_id, ordinal, step, error_code, error_message)
FROM STDIN (FORMAT binary)`

// attemptFailed keeps the error of an attempt that will be followed by another.
func (s *settlement) attemptFailed(h *heldSlice, bit int, e SlotError) {
	s.errors.row(6)
	s.errors.uuid(h.Run)
	s.errors.uuid(h.ID)
	s.errors.int4(int32(h.Block.Ordinal(bit)))
	s.errors.int2(int16(h.Step))
	s.errors.text(plain(e.Code))
	s.errors.text(plain(e.Message))
}

// pass hands bits of a slice on, because of an error that concerns all of them: to new slices while they have attempts,
// else to the failed plane. See [policy.succeed].
func (s *settlement) pass(h *heldSlice, bits bitfield.Set, cause Cause, e SlotError) {
	next, final := h.policy.succeed(ending{attempt: h.Attempt, failures: h.Failures, origin: h.Cause, cause: cause,
		hopeless: !h.policy.retries(e)}, bits)
	if final {
		for bit := range bits.All() {
			s.fail(h, bit, e)
		}
		return
	}
	h.remaining = h.remaining.AndNot(bits)
	suspect := cause == CauseExhausted || h.Suspect && !cause.answered()
	for _, n := range next {
		s.made = append(s.made, madeSlice{
			Slice: Slice{ID: NewSliceID(), Run: h.Run, Step: h.Step, Block: h.Block, Generation: h.Generation, Mask: n.mask,
				Attempt: n.attempt, Failures: n.failures, Cause: n.cause, Suspect: suspect, Root: h.Root,
				Endpoint: h.Endpoint},
			parent: h.ID, state: "scheduled", delay: n.delay,
		})
	}
}

// due is in how long the slices come due that have to wait.
func (s *settlement) due() (in []time.Duration) {
	for i := range s.made {
		if s.made[i].delay > 0 {
			in = append(in, s.made[i].delay)
		}
	}
	return in
}

// end closes a slice, or keeps it open with fewer bits when state is the one it is in.
func (s *settlement) end(h *heldSlice, state, service string, why *SlotError) {
	s.ended = append(s.ended, sliceUpdate{slice: h, state: state, service: plain(service), took: h.took, why: why})
}
