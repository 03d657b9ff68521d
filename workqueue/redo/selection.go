package redo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Selection selects items of one step of a run. At most one of All, Failed, Keys, Codes, Groups and Ranges is set,
// except that Ranges may narrow Failed, Codes and Groups. Evidence narrows them all, or selects alone; a rerun then
// leaves out accepted failures.
type Selection struct {
	Step   string   // empty: the only step, or failures at any step
	All    bool     // every item; only for resets
	Failed bool     // all failed items; for reruns, except accepted failures
	Keys   []string // in any final state; for several steps without Step, only failed ones
	Codes  []string // failed with one of these codes
	Groups []string // failed with a message of one of these groups: see [inspect.Store.Errors]
	At     string   // the step of the failure; empty: Step. At another step, the part of Step may be a result
	Ranges []Range  // of ordinals: like Keys if nothing else is set

	Evidence

	unaccepted bool  // for a rerun
	seen       *seen // what the evidence matched, if it was already evaluated
}

// named reports whether items are named regardless of their outcome.
func (sel *Selection) named() bool {
	return len(sel.Keys) > 0 || len(sel.Ranges) > 0 && !sel.Failed && len(sel.Codes)+len(sel.Groups) == 0 ||
		sel.alone() && !sel.ofParts()
}

func (sel *Selection) alone() bool {
	return !sel.All && !sel.Failed && len(sel.Keys)+len(sel.Codes)+len(sel.Groups)+len(sel.Ranges) == 0
}

func (sel *Selection) validate() error {
	n := 0
	for _, set := range []bool{sel.All, sel.Failed, len(sel.Keys) > 0, len(sel.Codes) > 0, len(sel.Groups) > 0} {
		if set {
			n++
		}
	}
	ranged := len(sel.Ranges) > 0
	if n > 1 || n == 0 && !ranged && sel.empty() || ranged && (sel.All || len(sel.Keys) > 0) {
		return errors.New("choose either all failed items, or keys, or error codes, or groups of messages, or ranges, " +
			"or evidence")
	}
	if sel.At != "" && (!sel.byError() || sel.Step == "") {
		return workqueue.BadSetting("failed_at is %.64q; it needs codes or groups of that step, and step, the one whose "+
			"result is recomputed", sel.At)
	}
	return sel.Evidence.validate()
}

// UnknownKeysError names keys that a run does not have.
type UnknownKeysError struct {
	Run  workqueue.RunID
	Keys []string

	more int // beyond those in Keys
}

const shownKeys = 20

func (e *UnknownKeysError) note(key string) {
	if len(e.Keys) == shownKeys {
		e.more++
		return
	}
	e.Keys = append(e.Keys, key)
}

func (e *UnknownKeysError) Error() string {
	shown := make([]string, min(len(e.Keys), shownKeys))
	for i := range shown {
		shown[i] = strconv.Quote(e.Keys[i])
	}
	more := ""
	if n := len(e.Keys) - len(shown) + e.more; n > 0 {
		more = fmt.Sprintf(" and %s more", control.Grouped(int64(n)))
	}
	return fmt.Sprintf("run %s has no item with key %s%s", e.Run, strings.Join(shown, ", "), more)
}

// Unwrap makes it an ErrNotFound.
func (e *UnknownKeysError) Unwrap() error { return workqueue.ErrNotFound }

const (
	ordinalsOfKeys = `
SELECT item_key, ordinal FROM work_queue WHERE run_id = $1 AND item_key = ANY($2)`

	// Errors count in an item's newest part only. The partial index on error codes finds them. The newest part is
	// looked up item by item in the primary key; as an anti-join it is quadratic over a run without statistics.
	newestPart = `p.generation = (
    SELECT max(n.generation) FROM work_result n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)`

	ordinalsOfCodes = `
SELECT p.step, p.ordinal FROM work_result p
WHERE p.run_id = $1 AND p.step = ANY($2) AND p.error_code = ANY($3)
  AND ($4::int[] IS NULL OR p.ordinal / 8192 = ANY($4)) AND ` + newestPart

	// Shapes are most of the cost: each distinct message has its shape computed once, as in inspect.
	ordinalsOfGroups = `
WITH parts AS MATERIALIZED (
    SELECT p.step, p.ordinal, p.error_code, ` + plane.MessageAlike + ` AS keyed
    FROM work_result p
    WHERE p.run_id = $1 AND p.step = ANY($2) AND p.error_code IS NOT NULL
      AND ($4::int[] IS NULL OR p.ordinal / 8192 = ANY($4)) AND ` + newestPart + `
), alike AS (
    SELECT p.*, ` + plane.KeyedGroup + ` = ANY($3) AS chosen FROM (SELECT DISTINCT step, error_code, keyed FROM parts) p
)
SELECT step, ordinal
FROM (SELECT step, p.ordinal, a.chosen FROM parts p FULL JOIN alike a USING (step, error_code, keyed) OFFSET 0) p
WHERE chosen`
)

type blockMasks map[workqueue.Block]*bitfield.Set

func (m blockMasks) add(o workqueue.Ordinal) {
	block, bit := o.Block()
	if m[block] == nil {
		m[block] = &bitfield.Set{}
	}
	m[block].Add(bit)
}

// find returns the items selected at each of some steps, before locks. items is the run's number of items.
func (sel *Selection) find(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items int64, steps []workqueue.Step,
) (found map[workqueue.Step]blockMasks, err error) {
	found, err = sel.findRanged(ctx, tx, run, items, steps)
	if err != nil || sel.empty() {
		return found, err
	}
	return sel.narrow(ctx, tx, run, steps, found)
}

// where names the step of the failures, and how to name another one.
func (sel *Selection) where() string {
	switch {
	case sel.At != "":
		return " at step " + sel.At
	case sel.Step != "":
		return fmt.Sprintf(" at step %s; of what failed at another step, name that: --failed-at STEP", sel.Step)
	default:
		return ""
	}
}

// findRanged is find without the evidence.
func (sel *Selection) findRanged(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items int64,
	steps []workqueue.Step,
) (found map[workqueue.Step]blockMasks, err error) {
	if len(sel.Ranges) == 0 {
		return sel.look(ctx, tx, run, items, steps)
	}
	within, err := masksOfRanges(sel.Ranges, items)
	if err != nil {
		return nil, err
	}
	found = map[workqueue.Step]blockMasks{}
	if sel.named() {
		for _, s := range steps {
			found[s] = within
		}
		return found, nil
	}
	wider, err := sel.look(ctx, tx, run, items, steps)
	for s, masks := range wider {
		found[s] = masks.and(within)
	}
	return found, err
}

func (sel *Selection) look(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items int64, steps []workqueue.Step,
) (found map[workqueue.Step]blockMasks, err error) {
	switch {
	case sel.Failed:
		return findFailed(ctx, tx, run, steps, sel.unaccepted)
	case sel.At != "":
		return sel.findFailedAt(ctx, tx, run, steps)
	case sel.byError():
		return sel.findErrors(ctx, tx, run, steps, nil)
	case sel.alone() && sel.unaccepted:
		found, err = planesAt(pg.Rows(ctx, tx, unacceptedPlanes, run, steps))
		return found, pg.Wrap(err, "find accepted items")
	}
	masks := everyItem(items)
	if !sel.All && len(sel.Keys) > 0 {
		if masks, err = findKeys(ctx, tx, run, sel.Keys); err != nil {
			return nil, err
		}
	}
	found = map[workqueue.Step]blockMasks{}
	for _, s := range steps {
		found[s] = masks
	}
	return found, nil
}

func everyItem(items int64) blockMasks {
	masks := blockMasks{}
	for first := int64(0); first < items; first += bitfield.Size {
		all := bitfield.Full(int(min(bitfield.Size, items-first)))
		masks[workqueue.Block(first/bitfield.Size)] = &all
	}
	return masks
}

// failedPlanes reads failed items, without a lock.
const failedPlanes = `
SELECT step, block, CASE WHEN $3 THEN failed & ~coalesce(accepted, B'0'::bit(8192)) ELSE failed END FROM work_block
WHERE run_id = $1 AND step = ANY($2) AND failed <> B'0'::bit(8192)`

// unacceptedPlanes have bits beyond a block's size, which the evidence takes out.
const unacceptedPlanes = `
SELECT step, block, ~coalesce(accepted, B'0'::bit(8192)) FROM work_block WHERE run_id = $1 AND step = ANY($2)`

func findFailed(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, unaccepted bool,
) (map[workqueue.Step]blockMasks, error) {
	found, err := planesAt(pg.Rows(ctx, tx, failedPlanes, run, steps, unaccepted))
	return found, pg.Wrap(err, "find failed items")
}

func planesAt(rows pgx.Rows) (map[workqueue.Step]blockMasks, error) {
	found := map[workqueue.Step]blockMasks{}
	var step workqueue.Step
	var block workqueue.Block
	var bits bitfield.Set
	err := pg.Each(rows, []any{&step, &block, pgbits.Into(&bits)}, func() {
		one := bits
		masksOf(found, step)[block] = &one
	})
	return found, err
}

func masksAt(rows pgx.Rows) (map[workqueue.Step]blockMasks, error) {
	found := map[workqueue.Step]blockMasks{}
	var step workqueue.Step
	var o workqueue.Ordinal
	err := pg.Each(rows, []any{&step, &o}, func() { masksOf(found, step).add(o) })
	return found, err
}

func masksOf(found map[workqueue.Step]blockMasks, step workqueue.Step) blockMasks {
	if found[step] == nil {
		found[step] = blockMasks{}
	}
	return found[step]
}

func (sel *Selection) byError() bool { return len(sel.Codes)+len(sel.Groups) > 0 }

const stepOfName = `SELECT step FROM run_step WHERE run_id = $1 AND name = $2`

func (sel *Selection) findFailedAt(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
) (map[workqueue.Step]blockMasks, error) {
	var at workqueue.Step
	err := tx.QueryRow(ctx, stepOfName, run, sel.At).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, &workqueue.SettingError{
			Detail: fmt.Sprintf("failed_at is %.64q, and run %s has no such step", sel.At, run)}
	}
	if err != nil {
		return nil, fmt.Errorf("find step %s: %w", sel.At, err)
	}
	failed, err := findFailed(ctx, tx, run, []workqueue.Step{at}, sel.unaccepted)
	if err != nil {
		return nil, err
	}
	said, err := sel.findErrors(ctx, tx, run, []workqueue.Step{at}, nil)
	if err != nil {
		return nil, err
	}
	found := map[workqueue.Step]blockMasks{}
	for _, s := range steps {
		found[s] = said[at].and(failed[at])
	}
	return found, nil
}

func (sel *Selection) findErrors(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	blocks []workqueue.Block,
) (map[workqueue.Step]blockMasks, error) {
	statement, by := ordinalsOfCodes, sel.Codes
	if len(sel.Groups) > 0 {
		statement, by = ordinalsOfGroups, sel.Groups
	}
	found, err := masksAt(pg.Rows(ctx, tx, statement, run, steps, by, blocks))
	return found, pg.Wrap(err, "find failed items")
}

func findKeys(ctx context.Context, tx pgx.Tx, run workqueue.RunID, keys []string) (blockMasks, error) {
	masks, missing := blockMasks{}, make(map[string]bool, len(keys))
	for _, k := range keys {
		missing[k] = true
	}
	var key string
	var o workqueue.Ordinal
	err := pg.Each(pg.Rows(ctx, tx, ordinalsOfKeys, run, keys),
		[]any{&key, &o}, func() { masks.add(o); delete(missing, key) })
	if err != nil {
		return nil, fmt.Errorf("find items by key: %w", err)
	}
	if len(missing) > 0 {
		return nil, &UnknownKeysError{Run: run, Keys: slices.Sorted(maps.Keys(missing))}
	}
	return masks, nil
}

// Range is consecutive ordinals, both ends included.
type Range struct{ From, To workqueue.Ordinal }

// MaxRanges bounds the ranges of a selection.
const MaxRanges = 1000

func (r Range) problem(i int, items int64) error {
	at := fmt.Sprintf("ranges[%d] is %d to %d", i, r.From, r.To)
	switch {
	case r.From > r.To:
		return workqueue.BadSetting("%s; give the smaller ordinal first", at)
	case items == 0:
		return workqueue.BadSetting("%s, and the run has no items", at)
	case r.From < 0 || int64(r.To) >= items:
		return workqueue.BadSetting("%s, and the ordinals of the run go from 0 to %d", at, items-1)
	}
	return nil
}

// masksOfRanges is the items of ranges, which may overlap. Its cost is bounded by the run's number of blocks.
func masksOfRanges(ranges []Range, items int64) (blockMasks, error) {
	if len(ranges) > MaxRanges {
		return nil, workqueue.BadSetting("there are %d ranges; give at most %d", len(ranges), MaxRanges)
	}
	for i, r := range ranges {
		if err := r.problem(i, items); err != nil {
			return nil, err
		}
	}
	masks := blockMasks{}
	for _, r := range apart(ranges) {
		first, from := r.From.Block()
		last, to := r.To.Block()
		for b := first; b <= last; b++ {
			lo, hi := 0, bitfield.Size
			if b == first {
				lo = from
			}
			if b == last {
				hi = to + 1
			}
			part := bitfield.Range(lo, hi)
			if masks[b] != nil {
				part = part.Or(*masks[b])
			}
			masks[b] = &part
		}
	}
	return masks, nil
}

func apart(ranges []Range) []Range {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	all := sorted[:0]
	for _, r := range sorted {
		if n := len(all); n > 0 && r.From <= all[n-1].To {
			all[n-1].To = max(all[n-1].To, r.To)
			continue
		}
		all = append(all, r)
	}
	return all
}

func (m blockMasks) and(other blockMasks) blockMasks {
	both := blockMasks{}
	for b, mask := range m {
		if other[b] == nil {
			continue
		}
		if common := mask.And(*other[b]); !common.Empty() {
			both[b] = &common
		}
	}
	return both
}

const auditedRanges = 100

func (sel *Selection) audit(detail map[string]any) {
	sel.Evidence.audit(detail)
	if len(sel.Ranges) == 0 {
		return
	}
	var told [][2]workqueue.Ordinal
	for _, r := range sel.Ranges[:min(len(sel.Ranges), auditedRanges)] {
		told = append(told, [2]workqueue.Ordinal{r.From, r.To})
	}
	detail["ranges"] = told
	if more := len(sel.Ranges) - len(told); more > 0 {
		detail["more_ranges"] = more
	}
}
