package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// GateView is what somebody looks at who has to let a step begin.
type GateView struct {
	Gate
	Items   int64       `json:"items" doc:"those that go on"`
	LeftOut int64       `json:"left_out" doc:"those that do not: a step before has failed for them"`
	Before  []GateStep  `json:"before" nullable:"false" doc:"the steps that it needs, and how they ended"`
	Sample  []GateItem  `json:"sample" nullable:"false" doc:"some items that go on, others each time"`
	Earlier *EarlierRun `json:"earlier,omitempty" doc:"the run of the plan that completed last before this one was made"`
}

// GateStep is a step before a gate, as far as it has come.
type GateStep struct {
	Step    string `json:"step"`
	Done    int64  `json:"done"`
	Failed  int64  `json:"failed"`
	Skipped int64  `json:"skipped"`
}

// GateItem is an item of the sample, with what the steps made of it that the next one needs.
type GateItem struct {
	Ordinal workqueue.Ordinal `json:"ordinal"`
	Key     string            `json:"key"`
	Results []GateResult      `json:"results" nullable:"false" doc:"to be had from GET /runs/{run}/items/{key}/result"`
}

// GateResult is a result of an item of the sample.
type GateResult struct {
	Step        string `json:"step"`
	ContentType string `json:"content_type,omitempty" doc:"absent: application/json"`
	Bytes       int64  `json:"bytes"`
}

// EarlierRun is a run to compare with.
type EarlierRun struct {
	Run        workqueue.RunID `json:"run"`
	Name       string          `json:"name,omitempty"`
	FinishedAt time.Time       `json:"finished_at"`
	Items      int64           `json:"items"`
	Done       int64           `json:"done"`
	Failed     int64           `json:"failed"`
}

// MaxGateSample bounds the items of a sample.
const MaxGateSample = 100

const (
	gatePlanes = `
SELECT b.block, b.ready | b.done | b.failed, coalesce(bit_count(b.skipped), 0)
FROM work_block b WHERE b.run_id = $1 AND b.step = $2 ORDER BY b.block`

	gateBefore = `
SELECT st.name, coalesce(sum(bit_count(b.done)), 0)::bigint, coalesce(sum(bit_count(b.failed)), 0)::bigint,
    coalesce(sum(bit_count(b.skipped)), 0)::bigint
FROM run_step st LEFT JOIN work_block b USING (run_id, step)
WHERE st.run_id = $1 AND st.step = ANY ($2) GROUP BY st.step, st.name ORDER BY st.step`

	gateKeys = `SELECT ordinal, item_key FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

	// Points of work_part's primary key, the newest generation of each.
	gateResults = `
SELECT u.ordinal, st.name, coalesce(p.content_type, ''),
    CASE WHEN p.large_id IS NULL THEN octet_length(p.result)::bigint
        ELSE (SELECT l.bytes FROM work_large l WHERE l.id = p.large_id) END
FROM run_step g JOIN run_step st ON st.run_id = g.run_id AND st.step = ANY (g.needs)
CROSS JOIN unnest($3::int[]) AS u (ordinal)
CROSS JOIN LATERAL (SELECT result, content_type, large_id FROM work_part
    WHERE run_id = g.run_id AND step = st.step AND ordinal = u.ordinal ORDER BY generation DESC LIMIT 1) p
WHERE g.run_id = $1 AND g.step = $2 AND p.result IS NOT NULL
ORDER BY u.ordinal, st.step`

	// By batchrun_plan where the plan is on record; the steps have to be there to be compared.
	gateEarlier = `
SELECT e.id, coalesce(e.name, ''), e.finished_at, e.items, e.done, e.failed
FROM batchrun r JOIN batchrun e ON e.plan = r.plan AND e.id < r.id AND e.state = 'completed'
WHERE r.id = $1 AND EXISTS (SELECT FROM run_step st WHERE st.run_id = e.id AND st.name = $2)
ORDER BY e.id DESC LIMIT 1`
)

// View shows what waits for somebody at a step, with a sample of so many items. Without a name it is the gate that
// waits, or the only one. The error wraps ErrNotFound when there is no such run, or is a *control.NoGateError.
func (s Store) View(ctx context.Context, run workqueue.RunID, step string, sample int) (*GateView, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, run)
	if err != nil {
		return nil, fmt.Errorf("view a gate of run %s: %w", run, err)
	}
	view := &GateView{Before: []GateStep{}, Sample: []GateItem{}}
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		gates, err := Gates(ctx, tx, run)
		if err != nil {
			return err
		}
		gate, err := GateOf(run, gates, step)
		if err != nil {
			return err
		}
		view.Gate = *gate
		return view.read(ctx, tx, g.Before[gate.Step], min(sample, MaxGateSample))
	})
	if err != nil {
		return nil, fmt.Errorf("view a gate of run %s: %w", run, err)
	}
	return view, nil
}

func (v *GateView) read(ctx context.Context, tx pgx.Tx, before []workqueue.Step, sample int) error {
	chosen, err := v.choose(ctx, tx, sample)
	if err != nil {
		return err
	}
	v.Before, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[GateStep], gateBefore, v.Run, before)
	if err != nil {
		return fmt.Errorf("count the steps before: %w", err)
	}
	if err := v.readSample(ctx, tx, chosen); err != nil {
		return fmt.Errorf("read the sample: %w", err)
	}
	var e EarlierRun
	err = tx.QueryRow(ctx, gateEarlier, v.Run, v.Name).Scan(&e.Run, &e.Name, &e.FinishedAt, &e.Items, &e.Done, &e.Failed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for an earlier run: %w", err)
	}
	v.Earlier = &e
	return nil
}

// choose counts the items that go on, and takes some of them by chance: each has the same (Vitter's algorithm R). The
// planes are read one after the other.
func (v *GateView) choose(ctx context.Context, tx pgx.Tx, sample int) (chosen []workqueue.Ordinal, err error) {
	rows := pg.Rows(ctx, tx, gatePlanes, v.Run, v.Step)
	var block workqueue.Block
	var going bitfield.Set
	var skipped int64
	_, err = pgx.ForEachRow(rows, []any{&block, pgbits.Into(&going), &skipped}, func() error {
		v.LeftOut += skipped
		for bit := range going.All() {
			v.Items++
			if len(chosen) < sample {
				chosen = append(chosen, block.Ordinal(bit))
			} else if at := rand.Int64N(v.Items); at < int64(sample) {
				chosen[at] = block.Ordinal(bit)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the planes: %w", err)
	}
	return chosen, nil
}

func (v *GateView) readSample(ctx context.Context, tx pgx.Tx, chosen []workqueue.Ordinal) error {
	rows := pg.Rows(ctx, tx, gateKeys, v.Run, chosen)
	at := map[workqueue.Ordinal]int{}
	item := GateItem{Results: []GateResult{}}
	_, err := pgx.ForEachRow(rows, []any{&item.Ordinal, &item.Key}, func() error {
		at[item.Ordinal] = len(v.Sample)
		v.Sample = append(v.Sample, item)
		return nil
	})
	if err != nil {
		return err
	}
	rows = pg.Rows(ctx, tx, gateResults, v.Run, v.Step, chosen)
	var ordinal workqueue.Ordinal
	var r GateResult
	_, err = pgx.ForEachRow(rows, []any{&ordinal, &r.Step, &r.ContentType, &r.Bytes}, func() error {
		of := &v.Sample[at[ordinal]]
		of.Results = append(of.Results, r)
		return nil
	})
	return err
}
