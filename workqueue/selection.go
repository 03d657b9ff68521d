package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// Selection says which items of one step of a run are meant. Exactly one of Failed, Keys, Codes and Groups is set.
type Selection struct {
	Step   string   // the step's name; empty: the first
	Failed bool     // all that failed
	Keys   []string // these, whether they failed or succeeded
	Codes  []string // those that failed with one of these codes
	Groups []string // those that failed with a message of one of these groups: see [Store.Errors]
}

func (sel *Selection) validate() error {
	n := 0
	for _, set := range []bool{sel.Failed, len(sel.Keys) > 0, len(sel.Codes) > 0, len(sel.Groups) > 0} {
		if set {
			n++
		}
	}
	if n != 1 {
		return errors.New("choose either all failed items, or keys, or error codes, or groups of messages")
	}
	return nil
}

// NothingToRerunError is returned when a selection holds no item whose outcome is final.
type NothingToRerunError struct {
	Run    RunID
	Select Selection
}

func (e *NothingToRerunError) Error() string {
	what := "no item of it has failed"
	switch {
	case len(e.Select.Keys) > 0:
		what = "the items named are all under way still"
	case len(e.Select.Codes) > 0:
		what = "no item of it failed with code " + strings.Join(e.Select.Codes, " or ")
	case len(e.Select.Groups) > 0:
		what = fmt.Sprintf("no item of it failed with a message of group %s; see: tranche run errors %s",
			strings.Join(e.Select.Groups, " or "), e.Run)
	}
	return fmt.Sprintf("nothing to re-run in run %s: %s", e.Run, what)
}

// UnknownKeysError names keys that a run does not have.
type UnknownKeysError struct {
	Run  RunID
	Keys []string
}

func (e *UnknownKeysError) Error() string {
	shown := make([]string, min(len(e.Keys), 5))
	for i := range shown {
		shown[i] = strconv.Quote(e.Keys[i])
	}
	more := ""
	if n := len(e.Keys) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %s more", grouped(int64(n)))
	}
	return fmt.Sprintf("run %s has no item with key %s%s", e.Run, strings.Join(shown, ", "), more)
}

// Unwrap makes it an ErrNotFound.
func (e *UnknownKeysError) Unwrap() error { return ErrNotFound }

const (
	ordinalsOfKeys = `
SELECT item_key, ordinal FROM work_queue WHERE run_id = $1 AND item_key = ANY($2)`

	// Errors that count: those of an item's newest part. Found by the partial index on error codes. The newest is asked
	// for item by item in the primary key; as an anti-join, over a run that was never analyzed, it is quadratic.
	newestPart = `p.generation = (
    SELECT max(n.generation) FROM work_part n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)`

	ordinalsOfCodes = `
SELECT p.ordinal FROM work_part p
WHERE p.run_id = $1 AND p.step = $2 AND p.error_code = ANY($3) AND ` + newestPart

	ordinalsOfGroups = `
SELECT p.ordinal FROM work_part p
WHERE p.run_id = $1 AND p.step = $2 AND p.error_code IS NOT NULL AND ` + messageGroup + ` = ANY($3) AND ` + newestPart
)

// blockMasks is items, by block.
type blockMasks map[Block]*bitfield.Set

func (m blockMasks) add(o Ordinal) {
	block, bit := o.Block()
	if m[block] == nil {
		m[block] = &bitfield.Set{}
	}
	m[block].Add(bit)
}

// find returns the items that keys, codes or groups name, whatever state they are in; nil for all that failed.
func (sel *Selection) find(ctx context.Context, tx pgx.Tx, run RunID, step Step) (blockMasks, error) {
	switch {
	case sel.Failed:
		return nil, nil
	case len(sel.Codes) > 0:
		return findFailed(ctx, tx, ordinalsOfCodes, run, step, sel.Codes)
	case len(sel.Groups) > 0:
		return findFailed(ctx, tx, ordinalsOfGroups, run, step, sel.Groups)
	default:
		return findKeys(ctx, tx, run, sel.Keys)
	}
}

func findFailed(ctx context.Context, tx pgx.Tx, statement string, run RunID, step Step, by []string,
) (blockMasks, error) {
	masks := blockMasks{}
	rows, err := tx.Query(ctx, statement, run, step, by)
	if err != nil {
		return nil, fmt.Errorf("find failed items: %w", err)
	}
	var o Ordinal
	_, err = pgx.ForEachRow(rows, []any{&o}, func() error { masks.add(o); return nil })
	if err != nil {
		return nil, fmt.Errorf("find failed items: %w", err)
	}
	return masks, nil
}

func findKeys(ctx context.Context, tx pgx.Tx, run RunID, keys []string) (blockMasks, error) {
	masks, missing := blockMasks{}, make(map[string]bool, len(keys))
	for _, k := range keys {
		missing[k] = true
	}
	rows, err := tx.Query(ctx, ordinalsOfKeys, run, keys)
	if err != nil {
		return nil, fmt.Errorf("find items by key: %w", err)
	}
	var key string
	var o Ordinal
	_, err = pgx.ForEachRow(rows, []any{&key, &o}, func() error { masks.add(o); delete(missing, key); return nil })
	if err != nil {
		return nil, fmt.Errorf("find items by key: %w", err)
	}
	if len(missing) > 0 {
		unknown := &UnknownKeysError{Run: run}
		for k := range missing {
			unknown.Keys = append(unknown.Keys, k)
		}
		slices.Sort(unknown.Keys)
		return nil, unknown
	}
	return masks, nil
}

// Blocks with final items, locked in order; the caller narrows the bits.
const lockFinalBlocks = `
SELECT block, size, payload_bytes, done, failed FROM work_block
WHERE run_id = $1 AND step = $2 AND ($3::int[] IS NULL OR block = ANY($3))
  AND (failed <> B'0'::bit(8192) OR ($4 AND done <> B'0'::bit(8192)))
ORDER BY block FOR NO KEY UPDATE`

// again is the items of one block that are to run again.
type again struct {
	block Block
	size  int
	bytes int64        // of the block's payloads
	mask  bitfield.Set // all of them
	held  bitfield.Set // of those, the ones that a canary holds back
}

// final locks the blocks and returns the wanted items whose outcome is final. Only a selection by key takes items that
// succeeded.
func (sel *Selection) final(ctx context.Context, tx pgx.Tx, run RunID, step Step, wanted blockMasks) ([]*again, error) {
	var blocks []Block
	if wanted != nil {
		blocks = []Block{}
		for b := range wanted {
			blocks = append(blocks, b)
		}
	}
	byKey := len(sel.Keys) > 0
	rows, err := tx.Query(ctx, lockFinalBlocks, run, step, blocks, byKey)
	if err != nil {
		return nil, fmt.Errorf("lock blocks: %w", err)
	}
	var found []*again
	var b again
	var done, failed bitfield.Set
	to := []any{&b.block, &b.size, &b.bytes, pgbits.Into(&done), pgbits.Into(&failed)}
	_, err = pgx.ForEachRow(rows, to, func() error {
		b.mask = failed
		if byKey {
			b.mask = b.mask.Or(done)
		}
		if wanted != nil {
			b.mask = b.mask.And(*wanted[b.block])
		}
		if !b.mask.Empty() {
			one := b
			found = append(found, &one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock blocks: %w", err)
	}
	return found, nil
}
