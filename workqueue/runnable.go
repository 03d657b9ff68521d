package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// StepRef names a step of a run.
type StepRef struct {
	Run  RunID
	Step Step
}

// Runnable is a step of a running run that a node may claim work of.
type Runnable struct {
	Run      RunID
	Step     Step
	Endpoint string
	Kind     Kind
	Auto     bool // its limit in flight is the one that nodes find for the endpoint
	Priority int  // of its run
	Live     int  // its slices that are out
}

// Ref returns the step's name.
func (r *Runnable) Ref() StepRef { return StepRef{r.Run, r.Step} }

// RunnablePage is how many steps a look for work brings, unless it says otherwise.
const RunnablePage = 64

// Search narrows a look for work. The zero Search is for all there is, a page of it.
type Search struct {
	Limit    int       // steps at the most; 0 means RunnablePage
	Skip     []StepRef // steps to leave out
	Shut     []string  // endpoints to leave out
	ShutAuto []string  // endpoints whose automatic steps to leave out
	Locals   []string  // the local functions that the claimer has; steps of others are left out
	NoRoom   []string  // what paces steps that nodes do themselves and that the claimer has no room for
}

const (
	// hasReady and hasDue are conditions on a run_step st: there is something to claim of it. Both are a look into a
	// partial index.
	hasReady = `
    EXISTS (SELECT 1 FROM work_block b WHERE b.run_id = st.run_id AND b.step = st.step AND b.has_ready)`
	hasDue = `
    EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = st.run_id AND s.step = st.step AND s.state = 'scheduled'
              AND s.not_before <= (SELECT clock_timestamp()))`

	// claimable is a condition on a run_step st and its endpoint_pace p, which may be missing. While the endpoint's
	// breaker is open there is a probe to be sent at most, and any item will do for that.
	claimable = `
CASE WHEN p.breaker = 'open' THEN
    p.probe_at <= clock_timestamp()
    AND NOT EXISTS (SELECT 1 FROM work_slice s WHERE s.id = p.probe_slice AND s.state IN ('claimed', 'sent'))
    AND (` + hasReady + ` OR
    EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = st.run_id AND s.step = st.step AND s.state = 'scheduled'))
ELSE ` + hasReady + ` OR ` + hasDue + ` END`

	// eligible is what every row of both halves below has to be. $2 and $3 are steps, $4, $5
	// and $7 endpoints to leave out, $6 the local functions there are.
	eligible = `
r.state = 'running' AND r.hold IS NULL
AND NOT st.endpoint COLLATE "C" = ANY($4::text[])
AND NOT (st.in_flight_auto AND st.endpoint COLLATE "C" = ANY($5::text[]))
AND (st.kind <> 'local' OR st.endpoint = ANY($6::text[])) AND (NOT st.barrier OR st.barrier_passed)
AND (st.kind = 'endpoint' OR NOT st.endpoint COLLATE "C" = ANY($7::text[]))
AND (r.id, st.step) NOT IN (SELECT * FROM unnest($2::uuid[], $3::smallint[])) AND ` + claimable

	// runnable goes over the runs in two halves, so that a page costs a page even with thousands of runs. Those with
	// slices out are as many as there are slices at the most. Those without come in the order of batchrun_active, and
	// the first page of them is enough: what comes after has no fewer slices and is younger.
	runnable = `
WITH live AS MATERIALIZED (
    SELECT run_id, step, count(*) AS n FROM work_slice WHERE state IN ('claimed', 'sent') GROUP BY run_id, step
), idle AS (
    SELECT r.id, st.step, st.endpoint, st.kind, st.in_flight_auto, r.priority, 0::bigint AS live
    FROM batchrun r JOIN run_step st ON st.run_id = r.id
    LEFT JOIN endpoint_pace p ON p.endpoint = st.endpoint COLLATE "C"
    WHERE ` + eligible + ` AND (r.id, st.step) NOT IN (SELECT run_id, step FROM live)
    ORDER BY r.priority DESC, r.id, st.step LIMIT $1
), busy AS (
    SELECT r.id, st.step, st.endpoint, st.kind, st.in_flight_auto, r.priority, l.n AS live
    FROM live l JOIN run_step st USING (run_id, step) JOIN batchrun r ON r.id = l.run_id
    LEFT JOIN endpoint_pace p ON p.endpoint = st.endpoint COLLATE "C"
    WHERE l.n < st.in_flight AND ` + eligible + `
)
SELECT id, step, endpoint, kind, in_flight_auto, priority, live
FROM (SELECT * FROM idle UNION ALL SELECT * FROM busy) steps
ORDER BY priority DESC, live, id, step LIMIT $1`
)

// RunnableSteps returns steps that have work to claim now: of the most urgent runs first, among them those with the
// fewest slices out, then the oldest. Runs that are held and endpoints that are down are left out.
func (s *Store) RunnableSteps(ctx context.Context, search Search) ([]Runnable, error) {
	if search.Limit <= 0 {
		search.Limit = RunnablePage
	}
	runs, steps := make([]RunID, len(search.Skip)), make([]Step, len(search.Skip))
	for i, ref := range search.Skip {
		runs[i], steps[i] = ref.Run, ref.Step
	}
	rows, err := s.pool.Query(ctx, runnable, search.Limit, runs, steps, notNil(search.Shut), notNil(search.ShutAuto),
		paceKeys(KindLocal, search.Locals), notNil(search.NoRoom))
	if err != nil {
		return nil, fmt.Errorf("look for work: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Runnable])
	if err != nil {
		return nil, fmt.Errorf("look for work: %w", err)
	}
	return found, nil
}

// notNil keeps an empty list from being NULL, which no comparison is true with.
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
