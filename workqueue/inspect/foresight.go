package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	// measuredRequests is how many of an endpoint's newest requests are used to measure cost.
	measuredRequests = 1000
	// staleAfter is how long a run's requests are representative.
	staleAfter = 15 * time.Minute
)

// networkSteps is the steps of at most $2 active runs: first the runs $1, then by urgency, by batchrun_active. Runs
// must use an endpoint of $1 or $4, unless both are empty. Blocks are ranges of work_block's primary key, live slices
// by work_slice_live.
const networkSteps = `
WITH asked AS MATERIALIZED (
    SELECT endpoint COLLATE "C" AS endpoint FROM run_step WHERE run_id = ANY ($1) UNION SELECT unnest($4::text[])),
chosen AS MATERIALIZED (
    SELECT r.*, r.id <> ALL ($1) AS other FROM batchrun r
    WHERE r.state IN ('loading', 'running') AND (NOT EXISTS (SELECT FROM asked) OR EXISTS (
        SELECT FROM run_step st JOIN asked USING (endpoint) WHERE st.run_id = r.id))
    ORDER BY other, r.hold IS NOT NULL, r.priority DESC, r.id LIMIT $2)
SELECT r.id, r.namespace, coalesce(r.name, ''), r.plan, r.state, coalesce(r.hold, ''), r.priority,
    r.opened AND r.sealed_at IS NULL, coalesce(r.canary_state, '') = 'sampling', NOT r.canary_auto_approve,
    st.step, st.name, st.endpoint, st.needs, st.barrier AND NOT st.barrier_passed,
    st.approval IS NOT NULL AND NOT st.barrier_passed, st.gate_since IS NOT NULL, st.in_flight,
    coalesce(st.in_flight_cap, 0), st.in_flight_auto, st.share, coalesce(st.rate, 0),
    st.max_attempts, extract(epoch FROM st.retry_backoff)::float8,
    extract(epoch FROM coalesce(st.max_backoff, $3::interval))::float8, greatest(b.items, r.items)::float8,
    coalesce(b.settled, 0)::float8, coalesce(b.ready, 0)::float8, coalesce(b.held, 0)::float8,
    CASE WHEN st.optional THEN 0 ELSE coalesce(b.failed::float8 / nullif(b.settled, 0), 0) END,
    coalesce(w.out, 0)::float8, coalesce(w.again, 0)::float8, coalesce(w.mean_due, 0)::float8,
    coalesce(w.due, 0)::float8, extract(epoch FROM r.done_by - tranche_now())::float8, r.gentle, r.at_risk IS NOT NULL
FROM chosen r JOIN run_step st ON st.run_id = r.id
LEFT JOIN LATERAL (
    SELECT sum(b.size)::bigint AS items, sum(` + plane.SettledCount + `)::bigint AS settled,
        sum(bit_count(b.ready))::bigint AS ready, sum(bit_count(b.held))::bigint AS held,
        sum(bit_count(b.failed))::bigint AS failed
    FROM work_block b WHERE b.run_id = r.id AND b.step = st.step
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE s.state <> 'scheduled') AS out,
        sum(bit_count(remaining)) FILTER (WHERE s.state = 'scheduled') AS again,
        sum(bit_count(remaining) * extract(epoch FROM not_before - tranche_now())) FILTER (WHERE s.state = 'scheduled')
            / nullif(sum(bit_count(remaining)) FILTER (WHERE s.state = 'scheduled'), 0) AS mean_due,
        extract(epoch FROM max(not_before) FILTER (WHERE s.state = 'scheduled') - tranche_now()) AS due
    FROM work_slice s
    WHERE s.run_id = r.id AND s.step = st.step AND s.state IN ('scheduled', 'claimed', 'sent')
) w ON true
ORDER BY r.other, r.id, st.step`

// newestRequests is the last ended ones of each endpoint, by work_slice_ended, and those in flight, by
// work_slice_busy. A scheduled one counts as in flight after its time. After an outage, what it left to be retried
// counts as new, and what ended in it is odd.
const newestRequests = `
SELECT w.endpoint, w.run_id, w.step, r.plan, st.name, bit_count(w.mask)::float8,
    w.cause = 'ready' OR coalesce(w.created_at < o.closed AND coalesce(w.ended_at, o.closed) >= o.closed, false),
    w.ended_at IS NULL,
    coalesce(coalesce(w.ended_at, tranche_now()) >= o.opened AND coalesce(w.ended_at < o.closed, o.closed IS NULL),
        false),
    extract(epoch FROM least(greatest(w.created_at, CASE WHEN w.cause <> 'ready' THEN
        coalesce(w.sent_at, w.not_before) END), w.ended_at) - tranche_now())::float8,
    coalesce(extract(epoch FROM w.ended_at - tranche_now()), 0)::float8, coalesce(w.took, -1), coalesce(w.service, '')
FROM unnest($1::text[]) AS e (endpoint) CROSS JOIN LATERAL (
    (SELECT s.* FROM work_slice s WHERE s.endpoint = e.endpoint AND s.ended_at IS NOT NULL
     ORDER BY s.ended_at DESC LIMIT $2)
    UNION ALL
    (SELECT s.* FROM work_slice s WHERE s.endpoint = e.endpoint AND ` + plane.SliceInFlight + ` LIMIT $2)) w
JOIN run_step st ON st.run_id = w.run_id AND st.step = w.step JOIN batchrun r ON r.id = w.run_id
LEFT JOIN LATERAL (
    SELECT c.at AS opened, CASE p.breaker WHEN 'closed' THEN p.breaker_since END AS closed
    FROM endpoint_pace p JOIN endpoint_change c USING (endpoint)
    WHERE p.endpoint = w.endpoint AND c.what = 'breaker' AND c.after = 'open' ORDER BY c.id DESC LIMIT 1) o ON true
WHERE w.state <> 'cancelled'`

const networkEndpoints = `
SELECT e.endpoint, coalesce(s.max_in_flight, 0), coalesce(p.in_flight, 0),
    coalesce(least(nullif(s.rate, 0), p.rate), 0)::float8, coalesce(s.request_rate, 0)::float8,
    coalesce(p.breaker = 'open', false)
FROM unnest($1::text[]) AS e (endpoint)
LEFT JOIN endpoint_setting s ON s.endpoint = e.endpoint LEFT JOIN endpoint_pace p ON p.endpoint = e.endpoint`

// foresight is a network as read from the database, and the forecasts made of it.
type foresight struct {
	*forecast.Network
	at     time.Time // by the database's clock, before anything was read
	runs   map[workqueue.RunID]int
	plans  []string // of each run
	states []state
	steps  map[stepOf]int
	ends   map[string]int // endpoints
	known  []forecast.Outcome
}

// state is what people change of a run; a kept forecast with another state is not used.
type state struct {
	state, hold, gates string
	open, sampling     bool
	priority           int
}

type stepOf struct {
	run  workqueue.RunID
	step workqueue.Step
}

func newForesight() *foresight {
	return &foresight{Network: &forecast.Network{}, runs: map[workqueue.RunID]int{}, steps: map[stepOf]int{},
		ends: map[string]int{}}
}

// readNetwork reads the work of runs, what they share, and the cost of their requests: of the named runs and others at
// their endpoints, or of all active runs if none is named. planned comes first unless nil.
func readNetwork(
	ctx context.Context, from pg.Querier, named []workqueue.RunID, most int, planned *start.LoadRequest, items int64,
) (*foresight, error) {
	f := newForesight()
	var err error
	if f.at, err = pg.Now(ctx, from); err != nil { // first: other seconds count from it
		return nil, err
	}
	if planned != nil {
		f.plan(planned, float64(items))
	}
	rows := pg.Rows(ctx, from, networkSteps, named, most, workqueue.DefaultMaxBackoff, f.names())
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, f.scanStep(row) })
	if err != nil {
		return nil, fmt.Errorf("read what runs have to do: %w", err)
	}
	if err := f.readEndpoints(ctx, from); err != nil {
		return nil, err
	}
	if err := f.readRequests(ctx, from); err != nil {
		return nil, err
	}
	f.Fit()
	return f, nil
}

// foresee is readNetwork with forecasts.
func (s Store) foresee(ctx context.Context, named []workqueue.RunID, most int, planned *start.LoadRequest, items int64,
) (*foresight, error) {
	f, err := readNetwork(ctx, s.db.Pool, named, most, planned, items)
	if err == nil {
		f.known, err = f.All(ctx, f.at, 1)
	}
	return f, err
}

func (f *foresight) scanStep(row pgx.CollectableRow) error {
	var id workqueue.RunID
	var step workqueue.Step
	var namespace, name, plan, endpoint string
	var approve, gate, gentle, atRisk bool
	var share int
	var by *float64
	var is state
	var needs []workqueue.Step
	var s forecast.Step
	err := row.Scan(&id, &namespace, &name, &plan, &is.state, &is.hold, &is.priority, &is.open, &is.sampling, &approve,
		&step, &s.Name, &endpoint, &needs, &s.Barrier, &s.Gate, &gate, &s.InFlight, &s.Cap,
		&s.Auto, &share, &s.Rate, &s.Attempts, &s.Backoff, &s.MaxBackoff,
		&s.Items, &s.Settled, &s.Ready, &s.Held, &s.Failed, &s.Out, &s.Retrying, &s.RetryMean,
		&s.RetryDue, &by, &gentle, &atRisk)
	if err != nil {
		return err
	}
	r, known := f.runs[id]
	if !known {
		r = len(f.Runs)
		f.runs[id] = r
		run := forecast.Run{ID: id.String(), Name: name, Priority: is.priority, Canary: is.sampling, Approve: approve,
			Share: share, Namespace: namespace}
		if by != nil {
			run.Timed, run.DoneBy, run.Gentle, run.AtRisk = true, *by, gentle, atRisk
		}
		run.WhyNot, run.Person = standing(is.state, is.hold, is.open)
		run.Idle = is.state != "running"
		f.Runs, f.plans, f.states = append(f.Runs, run), append(f.plans, plan), append(f.states, is)
	}
	if gate {
		f.states[r].gates += s.Name + "\n"
	}
	s.Run, s.Endpoint = r, f.endpoint(endpoint)
	for _, need := range needs {
		if i, known := f.steps[stepOf{id, need}]; known {
			s.Needs = append(s.Needs, i)
		}
	}
	f.steps[stepOf{id, step}] = len(f.Steps)
	f.Steps = append(f.Steps, s)
	return nil
}

func (f *foresight) endpoint(name string) int {
	if _, known := f.ends[name]; !known {
		f.ends[name] = len(f.Endpoints)
		f.Endpoints = append(f.Endpoints, forecast.Endpoint{Name: name})
	}
	return f.ends[name]
}

// plan adds a run that has not started as the first one.
func (f *foresight) plan(req *start.LoadRequest, items float64) {
	held := 0.0
	if req.Canary > 0 {
		held = max(items-float64(req.Canary), 0)
	}
	f.Runs = append(f.Runs, forecast.Run{Priority: req.Priority, Canary: held > 0, Approve: !req.CanaryAutoApprove})
	f.plans, f.states = append(f.plans, req.Plan), append(f.states, state{})
	for i := range req.Steps {
		spec := &req.Steps[i]
		s := forecast.Step{Name: spec.Name, Endpoint: f.endpoint(spec.Endpoint), Needs: spec.Needs, Barrier: spec.Barrier,
			Gate: spec.Approval != "", Items: items, InFlight: spec.InFlight, Auto: spec.InFlightAuto, Rate: spec.Rate,
			Attempts: spec.MaxAttempts, Backoff: spec.RetryBackoff.Seconds(),
			MaxBackoff: cmp.Or(spec.MaxBackoff, workqueue.DefaultMaxBackoff).Seconds()}
		if len(s.Needs) == 0 {
			s.Held, s.Ready = held, items-held
		}
		f.Steps = append(f.Steps, s)
	}
}

// standing says why a run's end cannot be predicted, or whom it waits for.
func standing(state, hold string, open bool) (whyNot, person string) {
	switch {
	case state == "loading":
		return "its items are being loaded", ""
	case state != "running":
		return "it ended", ""
	case open:
		return "it takes items until it is sealed", ""
	case control.Hold(hold) == control.HoldCanary:
		return "", "approval of its canary"
	case hold != "":
		return "", "an operator to resume it"
	}
	return "", ""
}

func (f *foresight) names() []string {
	names := make([]string, len(f.Endpoints))
	for i := range names {
		names[i] = f.Endpoints[i].Name
	}
	return names
}

func (f *foresight) readEndpoints(ctx context.Context, from pg.Querier) error {
	var name string
	var e forecast.Endpoint
	var down bool
	err := pg.Each(pg.Rows(ctx, from, networkEndpoints, f.names()),
		[]any{&name, &e.Budget, &e.Auto, &e.Rate, &e.RequestRate, &down}, func() {
			if e.Name, e.Down = name, ""; down {
				e.Down = name + " to answer again: its breaker is open"
			}
			f.Endpoints[f.ends[name]] = e
		})
	return pg.Wrap(err, "read the limits of endpoints")
}

type planStep struct{ plan, step, endpoint string }

// requests reads the newest requests: of each step, and those that have ended by what plans call them. It sets how many
// each endpoint has in flight.
func (f *foresight) requests(ctx context.Context, from pg.Querier) (
	own [][]forecast.Request, earlier map[planStep][]forecast.Request, err error,
) {
	own, earlier = make([][]forecast.Request, len(f.Steps)), map[planStep][]forecast.Request{}
	all := make([][]forecast.Request, len(f.Endpoints))
	var of stepOf
	var p planStep
	var r forecast.Request
	rows := pg.Rows(ctx, from, newestRequests, f.names(), measuredRequests)
	err = pg.Each(rows, []any{&p.endpoint, &of.run, &of.step, &p.plan, &p.step, &r.Items, &r.First, &r.Live, &r.Odd,
		&r.Began, &r.Ended, &r.Took, &r.Instance}, func() {
		e := f.ends[p.endpoint]
		if !r.Odd {
			all[e] = append(all[e], r)
		}
		if i, known := f.steps[of]; known {
			own[i] = append(own[i], r)
		}
		if !r.Live {
			earlier[p] = append(earlier[p], r)
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read what requests take: %w", err)
	}
	for e := range all {
		f.Endpoints[e].Level = forecast.Level(all[e])
	}
	return own, earlier, nil
}

// readRequests measures the cost of each step's requests: its own, or else those of its plan's other runs.
func (f *foresight) readRequests(ctx context.Context, from pg.Querier) error {
	own, earlier, err := f.requests(ctx, from)
	if err != nil {
		return err
	}
	for i := range f.Steps {
		s := &f.Steps[i]
		fresh := slices.ContainsFunc(own[i], func(r forecast.Request) bool {
			return !r.Live && r.Ended > -staleAfter.Seconds()
		})
		if s.Cost = forecast.Measure(own[i], !fresh); !s.Cost.Known() {
			s.Cost = forecast.Measure(earlier[planStep{f.plans[s.Run], s.Name, f.Endpoints[s.Endpoint].Name}], true)
		}
		if f.Endpoints[s.Endpoint].Down != "" { // how many it had in flight before is not known
			s.Cost.Level = 0
		}
	}
	return f.readProfiles(ctx, from)
}

const profilesOf = `SELECT plan, step, endpoint, at, cost FROM step_profile WHERE plan = ANY ($1)`

// readProfiles sets the cost of unmeasured steps to that of their plan's last run.
func (f *foresight) readProfiles(ctx context.Context, from pg.Querier) error {
	all, err := pg.Collect(ctx, from, pgx.RowToStructByPos[control.StepProfile], profilesOf, f.plans)
	if err != nil {
		return fmt.Errorf("read what requests took in earlier runs: %w", err)
	}
	for i := range f.Steps {
		for _, p := range all {
			s := &f.Steps[i]
			if !s.Cost.Known() && p.Plan == f.plans[s.Run] && p.Step == s.Name && p.Endpoint == f.Endpoints[s.Endpoint].Name {
				s.Cost = p.Cost
			}
		}
	}
	return nil
}
