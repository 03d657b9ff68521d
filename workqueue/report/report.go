// Package report says what a run did, and compares runs. It only reads.
package report

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Store is the database for reports. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// RunReport is the account of a run: what became of its items, where its time went and who did the work. Its counts add
// up: Items is Done, Failed and everything in Unprocessed; Failed is the groups of Errors and what they leave out.
type RunReport struct {
	inspect.RunSummary
	Complete       bool               `json:"complete" doc:"every item has an outcome"`
	Unprocessed    []Unprocessed      `json:"unprocessed" doc:"where the items without an outcome are"`
	Errors         inspect.Errors     `json:"errors" doc:"the failed items in groups"`
	Steps          []StepReport       `json:"steps"`
	LoadingSeconds float64            `json:"loading_seconds" doc:"from the first item to the seal; how long it was open"`
	Seconds        float64            `json:"seconds" doc:"over all generations, without the time between them"`
	PausedSeconds  float64            `json:"paused_seconds" doc:"of those"`
	Rate           float64            `json:"rate" doc:"items a second with a final outcome, pauses left out"`
	BestRate       float64            `json:"best_rate" doc:"items answered a second, in the best ten seconds"`
	Generations    []GenerationReport `json:"generations"`
	Requests       RequestReport      `json:"requests"`
	Together       *Together          `json:"together,omitempty" doc:"with the runs that it carries on, as one"`
	Corrected      *CorrectedReport   `json:"corrected,omitempty" doc:"what was made of corrected payloads"`
	Bisections     pace.Bisections    `json:"bisections" doc:"of chunks that failed as a whole"`
	Services       []WorkerReport     `json:"services" doc:"the slowest ten by time for an item"`
	Endpoints      []WorkerReport     `json:"endpoints" doc:"the slowest ten by time for an item"`
	At             time.Time          `json:"at" doc:"the database's clock when it looked"`
}

// reportedRoots bounds the chunks of which a report tells what was wrong.
const reportedRoots = 20

// Unprocessed is how many items without an outcome are in one state. Held ones are behind a canary, scheduled ones wait
// for their next try, and waiting ones for another step.
type Unprocessed struct {
	State string `json:"state" enum:"ready,held,in_flight,scheduled,waiting,cancelled"`
	Items int64  `json:"items"`
}

const reportClock = `
SELECT tranche_now(), greatest(extract(epoch FROM coalesce(sealed_at, tranche_now()) - created_at), 0)::float8,
    sealed_at, hold IS NOT NULL
FROM batchrun WHERE id = $1`

// Report accounts for a run, as of one moment. It reads every failed part and every slice: some 6 s for 1M failed
// items, well under 1 s for 1M that are done. The error wraps ErrNotFound when there is no such run.
func (s Store) Report(ctx context.Context, id workqueue.RunID) (RunReport, error) {
	var r RunReport
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		r = RunReport{}
		if r.RunSummary, err = inspect.ReadSummary(ctx, tx, id); err != nil {
			return err
		}
		r.Complete = r.State == "completed"
		if r.Errors, err = inspect.ReadErrors(ctx, tx, id); err != nil {
			return err
		}
		if r.Unprocessed, err = readUnprocessed(ctx, tx, &r.RunSummary); err != nil {
			return err
		}
		if err := r.readWork(ctx, tx); err != nil {
			return err
		}
		extent, err := inspect.ReadExtent(ctx, tx, id)
		r.Errors.At, r.Errors.ByStep = r.At, extent.ByStep()
		return err
	})
	if err != nil {
		return RunReport{}, fmt.Errorf("report on run %s: %w", id, err)
	}
	return r, nil
}

// readWork fills in where the time went and who did the work.
func (r *RunReport) readWork(ctx context.Context, tx pgx.Tx) error {
	life := lifetime{}
	err := tx.QueryRow(ctx, reportClock, r.ID).Scan(&r.At, &r.LoadingSeconds, &life.sealed, &life.held)
	if err != nil {
		return err
	}
	for _, read := range []func(context.Context, pgx.Tx) error{
		r.readSteps, r.readRequests, r.readTimes, r.readTriedAgain, r.readWorkers,
	} {
		if err := read(ctx, tx); err != nil {
			return err
		}
	}
	if r.Bisections, err = pace.ReadBisections(ctx, tx, r.ID, reportedRoots); err != nil {
		return err
	}
	if r.Corrected, err = readCorrected(ctx, tx, r.ID); err != nil {
		return err
	}
	if r.Together, err = readTogether(ctx, tx, &r.RunSummary); err != nil {
		return err
	}
	if r.Generations, err = readGenerations(ctx, tx, r, life); err != nil {
		return err
	}
	return r.readRates(ctx, tx)
}

// unprocessed sorts the items that are neither done nor failed by the first of these that holds for one of their steps:
// it is with a node or a service, waits for its next try, may go, or is held back by a canary. What is left waits. For
// each block the planes of its steps, and its live slices by work_slice_live.
const unprocessed = `
WITH planes AS (
    SELECT o.block, o.settled | o.failed AS final, p.ready, p.held
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o
    CROSS JOIN LATERAL (
        SELECT bit_or(ready) AS ready, bit_or(coalesce(held, ` + plane.NoBits + `)) AS held FROM run_step s
        JOIN work_block b USING (run_id, step) WHERE b.run_id = r.id AND b.block = o.block
    ) p
    WHERE r.id = $1
), live AS (
    SELECT block, coalesce(bit_or(remaining) FILTER (WHERE state <> 'scheduled'), B'0'::bit(8192)) AS flying,
        coalesce(bit_or(remaining) FILTER (WHERE state = 'scheduled'), B'0'::bit(8192)) AS scheduled
    FROM work_slice WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent') GROUP BY block
), apart AS (
    SELECT ~p.final & coalesce(l.flying, B'0'::bit(8192)) AS flying,
        ~p.final & ~coalesce(l.flying, B'0'::bit(8192)) & coalesce(l.scheduled, B'0'::bit(8192)) AS scheduled,
        ~p.final & ~coalesce(l.flying | l.scheduled, B'0'::bit(8192)) AS rest, p.ready, p.held
    FROM planes p LEFT JOIN live l USING (block)
)
SELECT coalesce(sum(bit_count(flying)), 0)::bigint,
    coalesce(sum(bit_count(scheduled)), 0)::bigint, coalesce(sum(bit_count(rest & ready)), 0)::bigint,
    coalesce(sum(bit_count(rest & ~ready & held)), 0)::bigint
FROM apart`

// readUnprocessed counts the items without an outcome. In a cancelled run nothing is to become of them in any state.
func readUnprocessed(ctx context.Context, tx pgx.Tx, run *inspect.RunSummary) ([]Unprocessed, error) {
	var flying, scheduled, ready, held int64
	missing := run.Missing()
	err := tx.QueryRow(ctx, unprocessed, run.ID).Scan(&flying, &scheduled, &ready, &held)
	if err != nil {
		return nil, err
	}
	states := []Unprocessed{
		{"ready", ready}, {"held", held}, {"in_flight", flying}, {"scheduled", scheduled},
		{"waiting", missing - ready - held - flying - scheduled},
	}
	if run.State == "cancelled" {
		states = []Unprocessed{{"cancelled", missing}}
	}
	found := []Unprocessed{}
	for _, s := range states {
		if s.Items > 0 {
			found = append(found, s)
		}
	}
	return found, nil
}
