package start

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// insertBlocks inserts the blocks of every step. Items of a step that needs others wait: they are in no plane.
// LATERAL … OFFSET 0 forces a lookup of each run by its key, and LIMIT a plan that stays cached.
const insertBlocks = `
INSERT INTO work_block (run_id, step, block, size, payload_bytes, ready, held, endpoint, turn, auto)
SELECT u.run, st.step, u.block, u.size, u.bytes, CASE WHEN st.needs = '{}' THEN u.ready ELSE B'0'::bit(8192) END,
       CASE WHEN st.needs = '{}' THEN u.held END, st.endpoint, -st.priority, st.in_flight_auto
FROM (SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[], $5::bit(8192)[], $6::bit(8192)[])
          AS u (run, block, size, bytes, ready, held) LIMIT cardinality($1::uuid[])) u
CROSS JOIN LATERAL (
    SELECT s.step, s.needs, s.endpoint, s.in_flight_auto, r.priority
    FROM run_step s JOIN batchrun r ON r.id = s.run_id WHERE s.run_id = u.run OFFSET 0) st`

const sealRun = `
UPDATE batchrun
SET state = 'running', items = $2, skipped = $3, failed_limit = $4, canary_state = CASE WHEN $5 THEN 'sampling' END,
    canary_generation = CASE WHEN $5 THEN generation END, sealed_at = tranche_now(), started_at = tranche_now()
WHERE id = $1 AND state = 'loading'`

// seal inserts the blocks, with all items ready or a canary's sample; seals the tracker batch and starts the run.
func (l *loader) seal(ctx context.Context, tx pgx.Tx) error {
	sizes, ready, held := l.blocks()
	if l.req.Order != nil {
		heads, err := headsFirst(ctx, tx, l.run, 0, l.items)
		if err != nil {
			return err
		}
		ready, held = inLine(sizes, heads)
	}
	if err := makeBlocks(ctx, tx, l.run, 0, sizes, l.sizes, ready, held); err != nil {
		return err
	}
	if err := l.sealTracker(ctx, tx, sizes); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if !l.whole || !l.paced() {
		batch.Queue(pace.MakePaces, l.run)
	}
	if l.items >= int64(l.req.FailFast.Failures) {
		l.req.queueFailFast(batch, l.run)
	}
	if content := l.content(); content != nil {
		batch.Queue(keepContent, l.run, content)
	}
	if err := pg.Leave(ctx, tx, batch); err != nil {
		return fmt.Errorf("seal run %s: %w", l.run, err)
	}
	if err := l.setGoing(ctx, tx); err != nil {
		return err
	}
	err := ledger.AuditChange(ctx, tx, ledger.Action{Actor: l.req.CreatedBy, Name: "start", Run: l.run,
		After: l.settings()})
	if err != nil {
		return err
	}
	err = ledger.AddEvent(ctx, tx, l.run, 1, workqueue.EventStarted, map[string]any{"plan": l.req.Plan, "items": l.items})
	if err == nil {
		err = l.failInvalid(ctx, tx)
	}
	if err == nil && l.req.Sealing != nil {
		err = l.req.Sealing(ctx, tx, l.run)
	}
	return err
}

func (l *loader) sealTracker(ctx context.Context, tx pgx.Tx, sizes []int) error {
	batch := &pgx.Batch{}
	if err := tracker.QueueSealed(batch, uuid.UUID(l.run), "run", sizes); err != nil {
		return err
	}
	return pg.Join(ctx, tx, batch)
}

const (
	version = `SELECT erased + generation - 1 FROM batchrun WHERE id = $1`
	// A later erasure finds the items in this run; a later resume finds the run.
	versionUntilCommit = version + ` FOR SHARE`
)

// Version counts the erasures and later generations of a run. It is read before items are taken over from the run.
func (s Store) Version(ctx context.Context, run workqueue.RunID) (int, error) {
	n, err := pg.One(ctx, s.db.Pool, pgx.RowTo[int], version, run)
	return n, pg.Wrap(err, "read the version of run %s", run)
}

// refuseOutdated refuses a start if the run that it continues had an erasure or a new generation since its items were
// read.
func (l *loader) refuseOutdated(ctx context.Context, tx pgx.Tx) error {
	if l.req.FromRun == (workqueue.RunID{}) {
		return nil
	}
	n, err := pg.One(ctx, tx, pgx.RowTo[int], versionUntilCommit, l.req.FromRun)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // deleted
		return nil
	case err != nil:
		return fmt.Errorf("read the version of run %s: %w", l.req.FromRun, err)
	case n != l.req.FromVersion:
		return &workqueue.StateError{Run: l.req.FromRun, State: "one that was reopened meanwhile, or whose items " +
			"were erased", Op: "continue", Fix: "nothing was started; start again"}
	}
	return nil
}

// makeFailFast starts the fail-fast limits of the steps that are not optional.
const makeFailFast = `
INSERT INTO run_fail_fast (run_id, step, failures, within)
SELECT run_id, step, $2, $3 FROM run_step WHERE run_id = $1 AND NOT optional`

func (r *LoadRequest) queueFailFast(batch *pgx.Batch, run workqueue.RunID) {
	if r.FailFast != (workqueue.FailFast{}) {
		batch.Queue(makeFailFast, run, r.FailFast.Failures, r.FailFast.Within)
	}
}

// paced reports whether the endpoints of all steps have known paces. A claim inserts a lost one.
func (l *loader) paced() bool {
	return !slices.ContainsFunc(l.req.Steps, func(step workqueue.StepSpec) bool {
		_, known := database.Kept[knownPaces](l.store).Load(step.Endpoint)
		return !known
	})
}

func inLine(sizes []int, heads []bitfield.Set) (ready []bitfield.Set, held []pgtype.Bits) {
	for b, size := range sizes {
		rest := pgtype.Bits{}
		if back := bitfield.Full(size).AndNot(heads[b]); !back.Empty() {
			rest = pgbits.Of(back)
		}
		ready, held = append(ready, heads[b]), append(held, rest)
	}
	return ready, held
}

// makeBlocks inserts consecutive blocks of a run at every step, with their sizes and payload bytes. At steps that
// need no other, ready and held apply: a canary or lanes hold items.
func makeBlocks(ctx context.Context, tx pgx.Tx, run workqueue.RunID, first workqueue.Block, sizes []int, bytes []int64,
	ready []bitfield.Set, held []pgtype.Bits,
) error {
	numbers := make([]workqueue.Block, len(sizes))
	for i := range numbers {
		numbers[i] = first + workqueue.Block(i)
	}
	err := pg.JoinOne(ctx, tx, insertBlocks, slices.Repeat([]workqueue.RunID{run}, len(sizes)), numbers, sizes, bytes,
		pgbits.Slice(ready), held)
	return pg.Wrap(err, "insert %d blocks", len(sizes))
}

func (l *loader) settings() map[string]any {
	var d ledger.Difference
	d.Add("version", 0, l.req.PlanVersion)
	d.Add("skipped", int64(0), l.skipped)
	d.Add("invalid", 0, len(l.invalid))
	d.Add("priority", 0, l.req.Priority)
	if l.req.FromRun != (workqueue.RunID{}) {
		d.Add("from_run", "", l.req.FromRun.String())
	}
	if by := l.req.DoneBy; by != nil {
		d.Add("done_by", "", by.UTC().Format(time.RFC3339))
	}
	d.Add("gentle", false, l.req.Gentle)
	d.Add("max_failed", "", l.req.MaxFailed)
	d.Add("fail_fast", workqueue.FailFastOff, l.req.FailFast.String())
	d.Add("canary", 0, l.req.Canary)
	d.Add("canary_auto_approve", false, l.req.CanaryAutoApprove)
	if o := l.req.Order; o != nil {
		d.Add("order_by", "", o.Rule.By)
		d.Add("partitions", 0, o.Rule.Partitions)
		d.Add("values", "", strings.Join(o.Rule.Values, workqueue.CodeComma))
		d.Add("stop", false, o.Stop)
	}
	if len(l.req.Steps) == 1 {
		settingsOf(&l.req.Steps[0], &d)
	}
	if d.After == nil {
		d.After = map[string]any{}
	}
	d.After["plan"], d.After["items"] = l.req.Plan, l.items
	if len(l.req.Steps) > 1 {
		steps := map[string]any{}
		for i := range l.req.Steps {
			var of ledger.Difference
			settingsOf(&l.req.Steps[i], &of)
			steps[l.req.Steps[i].Name] = of.After
		}
		d.After["steps"] = steps
	}
	return d.After
}

func settingsOf(st *workqueue.StepSpec, d *ledger.Difference) {
	d.Add("kind", workqueue.KindEndpoint, st.EffectiveKind())
	control.StepDifference(d, &control.StepSettings{},
		&control.StepSettings{Endpoint: st.Endpoint, StepSettings: st.StepSettings})
}

func (l *loader) setGoing(ctx context.Context, tx pgx.Tx) error {
	if err := l.refuseOutdated(ctx, tx); err != nil {
		return err
	}
	if l.counted {
		return nil // insertRun has
	}
	failedLimit, err := workqueue.FailedLimit(l.req.MaxFailed, l.items)
	if err != nil {
		return err
	}
	args := []any{l.run, l.items, l.skipped, failedLimit, l.sampled()}
	if l.whole { // no other transaction has seen the row
		return pg.Later(ctx, tx, sealRun, args...)
	}
	tag, err := tx.Exec(ctx, sealRun, args...)
	if err != nil {
		return fmt.Errorf("seal run %s: %w", l.run, err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("seal run %s: %w: its load was abandoned", l.run, workqueue.ErrSessionLost)
	}
	return nil
}

// sampled reports whether a sample goes first. A canary of all items does not count.
func (l *loader) sampled() bool { return l.req.Canary > 0 && int64(l.req.Canary) < l.items }

func (l *loader) blocks() (sizes []int, ready []bitfield.Set, held []pgtype.Bits) {
	for b := range l.sizes {
		size := int(min(bitfield.Size, l.items-int64(b)*bitfield.Size))
		all := bitfield.Full(size)
		first, rest := all, pgtype.Bits{}
		if l.sampled() {
			first = plane.NewSample(l.req.Canary, l.items).OfBlock(workqueue.Block(b), size)
			if back := all.AndNot(first); !back.Empty() {
				rest = pgbits.Of(back)
			}
		}
		sizes, ready, held = append(sizes, size), append(ready, first), append(held, rest)
	}
	return sizes, ready, held
}

type knownPaces struct{ sync.Map }

// SealRequest closes an open run to new items.
type SealRequest struct {
	Run    workqueue.RunID
	Expect *int64 // required number of items; nil: any
	Actor  string
	Reason string
}

// Sealed is the outcome of a seal.
type Sealed struct {
	Run       workqueue.RunID `json:"run"`
	Items     int64           `json:"items"`
	Skipped   int64           `json:"skipped" doc:"duplicates that were left out"`
	Already   bool            `json:"already" doc:"it was sealed before; nothing was changed"`
	Completed bool            `json:"completed" doc:"nothing was left to do"`

	Completions []settle.Completion `json:"-"` // of the run, if it was completed
}

// sealOpen closes the run to new items. A threshold in percent becomes a number.
const sealOpen = `
UPDATE batchrun SET sealed_at = tranche_now(), failed_limit = $2
WHERE id = $1 AND opened AND state = 'running' AND sealed_at IS NULL`

// SealRun closes an open run to new items: its remaining items become ready, and the run completes when all are
// final. Sealing again changes nothing. A run without items completes immediately.
func (s Store) SealRun(ctx context.Context, req SealRequest) (Sealed, error) {
	var out Sealed
	err := s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.seal(ctx, tx)
		return err
	})
	return out, pg.Wrap(err, "seal run %s", req.Run)
}

func (req *SealRequest) seal(ctx context.Context, tx pgx.Tx) (Sealed, error) {
	o, err := holdOpen(ctx, tx, req.Run, "seal")
	if err != nil {
		return Sealed{}, err
	}
	out := Sealed{Run: o.id, Items: o.items, Skipped: o.skipped, Already: o.sealedAt != nil}
	switch {
	case o.state == "cancelled":
		return out, o.cancelled("seal")
	case req.Expect != nil && *req.Expect != o.items:
		fix := "it stays open. Add what is missing, or seal it without an expected number"
		if out.Already {
			fix = "it was sealed before, and stays so"
		}
		return out, workqueue.Conflict("run %s has %s items, and %s were expected; %s", o.id, control.Grouped(o.items),
			control.Grouped(*req.Expect), fix)
	case out.Already:
		return out, nil
	}
	if err := o.fill(ctx, tx, o.items/bitfield.Size*bitfield.Size, o.items); err != nil {
		return out, err
	}
	out.Completed, err = tracker.Seal(ctx, tx, uuid.UUID(o.id))
	if _, ended := errors.AsType[*tracker.StateError](err); ended {
		return out, o.cancelled("seal")
	}
	if err != nil {
		return out, err
	}
	if err := o.setSealed(ctx, tx, req); err != nil || !out.Completed {
		return out, err
	}
	out.Completions, err = settle.Complete(ctx, tx, o.id)
	return out, err
}

// lockThresholdOf reads the threshold under the lock of the run: it may just have been set.
const lockThresholdOf = `SELECT max_failed FROM batchrun WHERE id = $1 FOR NO KEY UPDATE`

func (o *openState) setSealed(ctx context.Context, tx pgx.Tx, req *SealRequest) error {
	var maxFailed string
	if err := tx.QueryRow(ctx, lockThresholdOf, o.id).Scan(&maxFailed); err != nil {
		return fmt.Errorf("read the threshold: %w", err)
	}
	failedLimit, err := workqueue.FailedLimit(maxFailed, o.items)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, sealOpen, o.id, failedLimit)
	if err != nil {
		return fmt.Errorf("end the adding: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return o.cancelled("seal")
	}
	detail := map[string]any{"items": o.items}
	ledger.AddReason(detail, req.Reason)
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: req.Actor, Name: "seal", Run: o.id, Detail: detail,
		Before: map[string]any{"sealed": false}, After: map[string]any{"sealed": true, "items": o.items}})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, tx, o.id, o.generation, workqueue.EventSealed, detail)
}
