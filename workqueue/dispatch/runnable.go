package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// StepRef names a step of a run.
type StepRef struct {
	Run  workqueue.RunID
	Step workqueue.Step
}

// Runnable is a step of a running run with claimable work.
type Runnable struct {
	Run      workqueue.RunID
	Step     workqueue.Step
	Place    string // the endpoint where it was found
	Endpoint string
	Kind     workqueue.Kind
	Priority int // of its run
	Live     int // its slices in flight
}

// Ref returns the step's name.
func (r *Runnable) Ref() StepRef { return StepRef{r.Run, r.Step} }

// Default bounds of a search for work.
const (
	// RunnablePlaces bounds the endpoints whose steps are returned.
	RunnablePlaces = 32
	// leastSteps bounds the steps of each endpoint, mostSteps those of few endpoints together.
	leastSteps, mostSteps = 8, 64
	// mostElsewhere bounds the named endpoints of other nodes.
	mostElsewhere = 256
)

// Search narrows a search for work. The zero Search is for a page of everything.
type Search struct {
	Skip     []StepRef // steps to leave out
	Shut     []string  // endpoints to leave out
	ShutAuto []string  // endpoints whose automatic steps to leave out
	Locals   []string  // local functions of the claimer; steps of others are left out
	NoRoom   []string  // targets of node-done steps for which the claimer has no capacity
	// Own restricts it to the endpoints assigned to this node: each is assigned to one of the live nodes, so that nodes
	// do not compete. Late are endpoints to search regardless. A zero Own means all endpoints.
	Own  workqueue.SessionID
	Late []string
}

const (

	// eligible is what every step must satisfy. Left out: steps $3 and $4, endpoints $2, $5 and $7, and namespaces that
	// have all that they may have in flight. $6: local functions.
	eligible = plane.Unheld + `
AND NOT st.endpoint COLLATE "C" = ANY($2::text[])
AND NOT (st.in_flight_auto AND (e.full OR st.endpoint COLLATE "C" = ANY($5::text[])))
AND (st.kind <> 'local' OR st.endpoint = ANY($6::text[]))
AND (st.kind = 'endpoint' OR NOT st.endpoint COLLATE "C" = ANY($7::text[]))
AND (r.id, st.step) NOT IN (SELECT * FROM unnest($3::uuid[], $4::smallint[]))
AND NOT r.namespace = ANY(ARRAY(SELECT name FROM spent))`

	// placesOfWork is the endpoints with ready or waiting items, found one at a time by name. It leaves out those of
	// other nodes unless $11 names them or the node itself must do the work, and, unless all requests go to a canary,
	// those with exhausted budgets and those down without a due probe. full are those at their limit of automatic steps,
	// counted by step only if necessary. Slices in flight of a step moved elsewhere may count, too.
	placesOfWork = `
spent AS MATERIALIZED (
    SELECT n.name FROM namespace n WHERE n.max_in_flight IS NOT NULL AND n.max_in_flight <= (
        SELECT count(*) FROM work_slice s
        WHERE s.endpoint IS NOT NULL AND ` + plane.SliceInFlight + `
          AND (SELECT r.namespace FROM batchrun r WHERE r.id = s.run_id) = n.name)
), alive AS MATERIALIZED (
    SELECT id FROM node_session WHERE $10::uuid IS NOT NULL AND ended_at IS NULL AND expires_at > tranche_now()
      AND (id = $10 OR NOT coalesce(stats -> 'nats' = 'false', false))
), ready AS (
    (SELECT b.endpoint FROM work_block b WHERE ` + plane.ReadyThere + ` AND b.endpoint IS NOT NULL
     ORDER BY b.endpoint LIMIT 1)
    UNION ALL
    SELECT n.endpoint FROM ready e CROSS JOIN LATERAL (
        SELECT b.endpoint FROM work_block b WHERE ` + plane.ReadyThere + ` AND b.endpoint > e.endpoint
        ORDER BY b.endpoint LIMIT 1) n
), waiting AS (
    (SELECT s.endpoint FROM work_slice s WHERE ` + plane.WaitsThere + ` AND s.endpoint IS NOT NULL
     ORDER BY s.endpoint LIMIT 1)
    UNION ALL
    SELECT n.endpoint FROM waiting e CROSS JOIN LATERAL (
        SELECT s.endpoint FROM work_slice s WHERE ` + plane.WaitsThere + ` AND s.endpoint > e.endpoint
        ORDER BY s.endpoint LIMIT 1) n
), named AS MATERIALIZED (
    SELECT n.endpoint, n.waits,
           (SELECT a.id FROM alive a ORDER BY hashtextextended(n.endpoint || a.id, 0) DESC LIMIT 1)
               IS NOT DISTINCT FROM $10 AS own
    FROM (SELECT endpoint, bool_or(waits) AS waits
          FROM (SELECT endpoint, false AS waits FROM ready UNION ALL SELECT endpoint, true FROM waiting) o
          GROUP BY endpoint) n
    WHERE NOT n.endpoint = ANY($2::text[])
), others AS MATERIALIZED (
    SELECT n.endpoint, n.waits, f.run_id, f.step,
           (SELECT st.kind FROM run_step st WHERE st.run_id = f.run_id AND st.step = f.step) AS kind
    FROM named n CROSS JOIN LATERAL (
        (SELECT b.run_id, b.step FROM work_block b WHERE ` + plane.ReadyThere + ` AND b.endpoint = n.endpoint
         ORDER BY b.auto, b.turn, b.run_id, b.step LIMIT 1)
        UNION ALL
        (SELECT s.run_id, s.step FROM work_slice s WHERE ` + plane.WaitsThere + ` AND s.endpoint = n.endpoint
         ORDER BY s.not_before, s.run_id, s.step LIMIT 1) LIMIT 1) f
    WHERE NOT n.own
), all_places AS MATERIALIZED (
    SELECT n.endpoint, n.waits, coalesce(p.breaker = 'open' AND t.canary_share IS DISTINCT FROM 100, false) AS down,
           array_remove(ARRAY[n.endpoint, t.canary], NULL) AS targets,
           coalesce(l.n >= p.in_flight AND ((
               SELECT true FROM run_step o WHERE o.endpoint COLLATE "C" = n.endpoint AND (NOT o.in_flight_auto) IS TRUE
               LIMIT 1) IS NULL OR (
               SELECT count(*) FROM work_slice s WHERE s.endpoint = n.endpoint AND ` + plane.SliceInFlight + `
                 AND (SELECT o.in_flight_auto FROM run_step o WHERE o.run_id = s.run_id AND o.step = s.step))
                 >= p.in_flight),
               false) AS full
    FROM (SELECT endpoint, waits FROM named WHERE own
          UNION ALL
          SELECT endpoint, waits FROM others WHERE kind <> 'endpoint' OR endpoint = ANY($11::text[])) n
    LEFT JOIN LATERAL (SELECT * FROM endpoint_pace o WHERE o.endpoint = n.endpoint OFFSET 0) p ON true
    LEFT JOIN LATERAL (SELECT * FROM endpoint_setting o WHERE o.endpoint = n.endpoint OFFSET 0) t ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM work_slice s
        WHERE s.endpoint = n.endpoint AND ` + plane.SliceInFlight + `) l
    CROSS JOIN LATERAL (SELECT n.endpoint) at
    WHERE CASE WHEN t.max_in_flight > 0 AND t.canary_share IS DISTINCT FROM 100
          THEN ` + plane.BusyAt + ` < t.max_in_flight ELSE true END
      AND (p.breaker IS DISTINCT FROM 'open' OR t.canary_share = 100 OR p.probe_at <= tranche_now()
           AND NOT coalesce((SELECT s.state IN ('claimed', 'sent') FROM work_slice s WHERE s.id = p.probe_slice),
                            false))
), places AS MATERIALIZED (
    SELECT e.endpoint, e.down, e.full, e.targets, coalesce((
        SELECT min(b.turn) FROM (VALUES (true), (false)) a (auto) CROSS JOIN LATERAL (
            SELECT b.turn FROM work_block b WHERE ` + plane.ReadyThere +
		` AND b.endpoint = e.endpoint AND b.auto = a.auto
            ORDER BY b.turn LIMIT 1) b), 0) AS turn
    FROM all_places e
    WHERE NOT e.full OR e.waits OR coalesce((
        SELECT true FROM work_block b WHERE ` + plane.ReadyThere + ` AND b.endpoint = e.endpoint AND NOT b.auto
        ORDER BY b.turn LIMIT 1), false)
)`

	// idleStep selects a step t with nothing in flight at the endpoint or its canary.
	idleStep = `
         CROSS JOIN ` + plane.RunAndStep + `
         WHERE ` + eligible + ` AND (
            SELECT true FROM ` + plane.StepSlices + ` LIMIT 1) IS NULL`

	// searchRunnable picks endpoints, those with the most urgent work and otherwise at random, with a few steps
	// each: the first ones with nothing in flight, all with something in flight, which are at most that, and
	// all with something due. $1 is the number of endpoints, $8 the least number of steps of each, $9 of all if they
	// are few. An endpoint without any is a row without a step.
	searchRunnable = `
WITH RECURSIVE ` + placesOfWork + `, chosen AS MATERIALIZED (
    SELECT e.* FROM places e ORDER BY e.turn, random() LIMIT $1
), each AS (
    SELECT greatest($8::int, $9::int / count(*)) AS n FROM chosen WHERE true HAVING count(*) > 0)
SELECT e.endpoint, c.id, c.step, c.endpoint, c.kind, c.priority, c.live, false AS elsewhere
FROM chosen e LEFT JOIN LATERAL (
    SELECT r.id, st.step, st.endpoint, st.kind, r.priority, l.live
    FROM (
        (SELECT t.run_id, t.step FROM ` + plane.ReadyAuto + ` t ` + idleStep +
		` AND NOT e.full LIMIT (SELECT n FROM each))
        UNION
        (SELECT t.run_id, t.step FROM ` + plane.ReadyFixed + ` t ` + idleStep + ` LIMIT (SELECT n FROM each))
        UNION
        SELECT run_id, step FROM ` + plane.DueAt + ` due
        UNION
        SELECT run_id, step FROM ` + plane.BusySteps + ` st WHERE ` + plane.HasReady + `) t
    CROSS JOIN ` + plane.RunAndStep + `
    CROSS JOIN LATERAL (SELECT count(*) AS live FROM ` + plane.StepSlices + `) l
    WHERE ` + eligible + ` AND l.live < least(st.in_flight, st.in_flight_cap)
    ORDER BY r.priority DESC, l.live, r.id, st.step LIMIT (SELECT n FROM each)) c ON true
UNION ALL
(SELECT endpoint, run_id, step, NULL, kind, NULL, NULL, true FROM others WHERE kind = 'endpoint' LIMIT $12)
ORDER BY 8, 6 DESC NULLS LAST, 7, 2, 3`
)

// Found is the result of a search for work.
type Found struct {
	// Steps have claimable work, by priority, then fewest slices in flight, then age.
	Steps []Runnable
	// Without are endpoints without claimable work.
	Without []string
	More    bool // there may be other endpoints with work
	// Elsewhere are endpoints of other nodes with ready or waiting items, with their first step.
	Elsewhere map[string]StepRef
}

// RunnableSteps returns steps with claimable work, a few for each endpoint. It leaves out held runs, and endpoints
// that are down or at their limits. Its cost depends on the endpoints with work, not on the number of runs.
func (s Store) RunnableSteps(ctx context.Context, search Search) (found Found, err error) {
	runs, steps := make([]workqueue.RunID, len(search.Skip)), make([]workqueue.Step, len(search.Skip))
	for i, ref := range search.Skip {
		runs[i], steps[i] = ref.Run, ref.Step
	}
	locals := make([]string, len(search.Locals))
	for i, name := range search.Locals {
		locals[i] = workqueue.TargetKey(workqueue.KindLocal, name)
	}
	seen := map[string]bool{}
	batch := &pgx.Batch{}
	batch.Queue(plane.PlanOnce)
	batch.Queue(searchRunnable, RunnablePlaces, notNil(search.Shut), runs, steps, notNil(search.ShutAuto),
		locals, notNil(search.NoRoom), leastSteps, mostSteps, pg.UnlessZero(search.Own), notNil(search.Late),
		mostElsewhere).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			place, own, err := found.add(rows)
			if err != nil {
				return err
			}
			if own {
				seen[place] = true
			}
		}
		return rows.Err()
	})
	begun := time.Now()
	if err := s.db.Pool.SendBatch(ctx, batch).Close(); err != nil {
		return Found{}, fmt.Errorf("find work: %w", database.Slow(err, "the search for work", begun))
	}
	found.More = len(seen) == RunnablePlaces
	return found, nil
}

// add adds a row: a step, an endpoint without one, or one of another node.
func (f *Found) add(row pgx.CollectableRow) (place string, own bool, err error) {
	var r struct {
		run       *workqueue.RunID
		step      *workqueue.Step
		endpoint  *string
		kind      *workqueue.Kind
		priority  *int
		live      *int
		elsewhere bool
	}
	err = row.Scan(&place, &r.run, &r.step, &r.endpoint, &r.kind, &r.priority, &r.live, &r.elsewhere)
	switch {
	case err != nil:
	case r.elsewhere:
		if f.Elsewhere == nil {
			f.Elsewhere = map[string]StepRef{}
		}
		f.Elsewhere[place] = StepRef{*r.run, *r.step}
	case r.run == nil:
		f.Without = append(f.Without, place)
	default:
		f.Steps = append(f.Steps, Runnable{*r.run, *r.step, place, *r.endpoint, *r.kind, *r.priority, *r.live})
	}
	return place, !r.elsewhere, err
}

// notNil turns nil into an empty list: NULL would match nothing.
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
