package inspect

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// ItemRow is an item in the list of a range.
type ItemRow struct {
	Ordinal  workqueue.Ordinal `json:"ordinal"`
	Key      string            `json:"key"`
	State    string            `json:"state" enum:"waiting,held,ready,scheduled,in_flight,done,failed,skipped,stale"`
	Attempts int               `json:"attempts" doc:"requests since it was last ready; at most 255"`
	Error    *ItemError        `json:"error,omitempty" doc:"of the step, or of the first step that failed it"`
	Accepted bool              `json:"accepted,omitempty" doc:"its failures are accepted"`
}

// ItemRange selects items; without a step, their state over all steps.
type ItemRange struct {
	Run    workqueue.RunID   `json:"-"`
	From   workqueue.Ordinal `query:"from" minimum:"0" doc:"the first ordinal"`
	To     workqueue.Ordinal `query:"to" minimum:"0" default:"2147483647" doc:"the last ordinal, included; absent: to the end"`
	Step   string            `query:"step" doc:"its name; absent: the items over all steps"`
	States []string          `query:"state,explode" enum:"waiting,held,ready,scheduled,in_flight,done,failed,skipped,stale" doc:"repeatable; absent: all"`
	After  workqueue.Ordinal `query:"after" minimum:"-1" default:"-1" doc:"an ordinal: only items after it"`
	Limit  int               `query:"limit" minimum:"1" maximum:"1000" default:"100"` // 0 means DefaultItemRows
}

// ItemRows is a page of a range. Next is the After of the next page; nil on the last.
type ItemRows struct {
	Items []ItemRow          `json:"items"`
	Next  *workqueue.Ordinal `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// The number of items on a page.
const (
	DefaultItemRows = 100
	MaxItemRows     = 1000
)

const (
	// keysOf are point reads of work_queue's primary key.
	keysOf = `SELECT ordinal, item_key FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

	// failuresOf are point reads of work_result's primary key. The newest part of a step counts, and the first of
	// several steps. An item is accepted if each of its failures is; work_block is read by its primary key.
	failuresOf = `
SELECT DISTINCT ON (ordinal) ordinal, error_code, coalesce(error_message, ''),
    coalesce((SELECT bool_and(coalesce(get_bit(b.accepted, ordinal % 8192), 0) = 1) FROM work_block b
        WHERE b.run_id = $1 AND b.step = ANY ($2) AND b.block = ordinal / 8192
            AND get_bit(b.failed, ordinal % 8192) = 1), false)
FROM (
    SELECT DISTINCT ON (ordinal, step) ordinal, step, error_code, error_message FROM work_result
    WHERE run_id = $1 AND step = ANY ($2) AND ordinal = ANY ($3)
    ORDER BY ordinal, step, generation DESC) newest
WHERE error_code IS NOT NULL ORDER BY ordinal, step`
)

func stateNames() []string {
	return []string{"waiting", "held", "ready", "scheduled", "in_flight", "done", "failed", "skipped", "stale"}
}

// ItemsIn lists the items of a range of ordinals, as of one moment.
func (s Store) ItemsIn(ctx context.Context, r ItemRange) (*ItemRows, error) {
	r.Limit = pg.Limit(r.Limit, DefaultItemRows, MaxItemRows)
	out := &ItemRows{Items: []ItemRow{}}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error { return s.itemsIn(ctx, tx, &r, out) })
	return out, pg.Wrap(err, "list items of run %s", r.Run)
}

func (s Store) itemsIn(ctx context.Context, tx pgx.Tx, r *ItemRange, out *ItemRows) error {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, r.Run)
	if err != nil {
		return err
	}
	view, err := g.View(r.Step)
	if err != nil {
		return err
	}
	found, err := s.findInRange(ctx, tx, r)
	if err != nil || len(found) == 0 {
		return err
	}
	found, out.Next = pg.Cut(found, r.Limit, func(i *ItemRow) *workqueue.Ordinal { return &i.Ordinal })
	out.Items = found
	if err := s.countAttempts(ctx, tx, r, found); err != nil {
		return err
	}
	if err := readKeysOf(ctx, tx, r.Run, found); err != nil {
		return err
	}
	steps := []workqueue.Step{view.Step}
	if view.Step == plane.OverAll {
		steps = g.Mandatory()
	}
	return readFailuresOf(ctx, tx, r.Run, steps, found)
}

func (s Store) findInRange(ctx context.Context, tx pgx.Tx, r *ItemRange) (found []ItemRow, err error) {
	var wanted [ItemStale + 1]bool
	for state, name := range stateNames() {
		wanted[state] = len(r.States) == 0 || slices.Contains(r.States, name)
	}
	if r.After == math.MaxInt32 { // nothing is after it
		return nil, nil
	}
	first := max(r.From, r.After+1, 0)
	for int64(first) <= int64(r.To) {
		block, bit := first.Block()
		last, _ := r.To.Block()
		page, err := s.planes(ctx, tx, &PlanesRequest{
			Run: r.Run, Step: r.Step, From: block, Blocks: min(int(last-block)+1, MaxPlaneBlocks),
		})
		if err != nil || len(page.Bytes) <= bit {
			return found, err
		}
		start := block.Ordinal(0)
		for at, state := range page.Bytes[bit:min(len(page.Bytes), int(r.To-start)+1)] {
			if !wanted[state] {
				continue
			}
			found = append(found, ItemRow{Ordinal: first + workqueue.Ordinal(at), State: stateNames()[state]})
			if len(found) > r.Limit {
				return found, nil
			}
		}
		first = start + workqueue.Ordinal(len(page.Bytes))
	}
	return found, nil
}

func (s Store) countAttempts(ctx context.Context, tx pgx.Tx, r *ItemRange, items []ItemRow) error {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, r.Run)
	if err != nil {
		return err
	}
	view, err := g.View(r.Step)
	if err != nil {
		return err
	}
	counts := map[workqueue.Block][]byte{}
	var blocks []workqueue.Block
	for i := range items {
		if block, _ := items[i].Ordinal.Block(); counts[block] == nil {
			counts[block] = make([]byte, bitfield.Size)
			blocks = append(blocks, block)
		}
	}
	req := &PlanesRequest{Run: r.Run, Layer: LayerAttempts}
	err = readTrails(ctx, tx, req, g, view, blocks, func(b workqueue.Block) []byte { return counts[b] })
	if err != nil {
		return err
	}
	for i := range items {
		block, bit := items[i].Ordinal.Block()
		items[i].Attempts = int(counts[block][bit])
	}
	return nil
}

func ordinalsOf(items []ItemRow) []workqueue.Ordinal {
	all := make([]workqueue.Ordinal, len(items))
	for i := range items {
		all[i] = items[i].Ordinal
	}
	return all
}

func itemAt(items []ItemRow, o workqueue.Ordinal) *ItemRow {
	i, _ := slices.BinarySearchFunc(items, o,
		func(r ItemRow, o workqueue.Ordinal) int { return cmp.Compare(r.Ordinal, o) })
	return &items[i]
}

func readKeysOf(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items []ItemRow) error {
	var o workqueue.Ordinal
	var key string
	return pg.Each(pg.Rows(ctx, tx, keysOf, run, ordinalsOf(items)),
		[]any{&o, &key}, func() { itemAt(items, o).Key = key })
}

func readFailuresOf(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step, items []ItemRow,
) error {
	failed := slices.DeleteFunc(slices.Clone(items), func(r ItemRow) bool { return r.State != "failed" })
	if len(failed) == 0 {
		return nil
	}
	var o workqueue.Ordinal
	var e ItemError
	var accepted bool
	return pg.Each(pg.Rows(ctx, tx, failuresOf, run, steps, ordinalsOf(failed)),
		[]any{&o, &e.Code, &e.Message, &accepted}, func() {
			found := e
			row := itemAt(items, o)
			row.Error, row.Accepted = &found, accepted
		})
}
