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
	// foretold bounds the runs of a list that get forecasts together, and beside the other runs simulated with them.
	foretold = 50
	beside   = 16
	// measuredRequests is how many of an endpoint's newest requests are used to measure cost.
	measuredRequests = 1000
	// staleAfter is how long a run's requests are representative.
	staleAfter = 15 * time.Minute
)

// networkSteps is the steps of the runs $1, and those of other active runs at the same endpoints, or at $4. Blocks
// are ranges of work_block's primary key, live slices by work_slice_live.
const networkSteps = `
WITH asked AS MATERIALIZED (
    SELECT endpoint COLLATE "C" AS endpoint FROM run_step WHERE run_id = ANY ($1) UNION SELECT unnest($4::text[])),
chosen AS MATERIALIZED (
    SELECT r.*, true AS own FROM batchrun r WHERE r.id = ANY ($1)
    UNION ALL
    (SELECT r.*, false FROM batchrun r
     WHERE r.state = 'running' AND r.hold IS NULL AND r.id <> ALL ($1) AND EXISTS (
         SELECT FROM run_step st JOIN asked USING (endpoint) WHERE st.run_id = r.id)
     ORDER BY r.priority DESC, r.id LIMIT $2))
SELECT r.id, coalesce(r.name, ''), r.plan, r.own, r.state, coalesce(r.hold, ''), r.priority,
    r.opened AND r.sealed_at IS NULL, coalesce(r.canary_state, '') = 'sampling', NOT r.canary_auto_approve,
    st.step, st.name, st.endpoint, st.needs, st.barrier AND NOT st.barrier_passed,
    st.approval IS NOT NULL AND NOT st.barrier_passed, st.in_flight, coalesce(st.in_flight_cap, 0),
    st.in_flight_auto, st.share, coalesce(st.rate, 0),
    st.max_attempts, extract(epoch FROM st.retry_backoff)::float8,
    extract(epoch FROM coalesce(st.max_backoff, $3::interval))::float8, greatest(b.items, r.items)::float8,
    coalesce(b.settled, 0)::float8, coalesce(b.ready, 0)::float8, coalesce(b.held, 0)::float8,
    CASE WHEN st.optional THEN 0 ELSE coalesce(b.failed::float8 / nullif(b.settled, 0), 0) END,
    coalesce(w.out, 0)::float8, coalesce(w.again, 0)::float8,
    coalesce(w.due, 0)::float8, extract(epoch FROM r.done_by - tranche_now())::float8, r.gentle, r.at_risk IS NOT NULL
FROM chosen r JOIN run_step st ON st.run_id = r.id
LEFT JOIN LATERAL (
    SELECT sum(b.size)::bigint AS items, sum(bit_count(` + plane.SettledBits + `))::bigint AS settled,
        sum(bit_count(b.ready))::bigint AS ready, sum(bit_count(b.held))::bigint AS held,
        sum(bit_count(b.failed))::bigint AS failed
    FROM work_block b WHERE b.run_id = r.id AND b.step = st.step
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE s.state <> 'scheduled') AS out,
        sum(bit_count(remaining)) FILTER (WHERE s.state = 'scheduled') AS again,
        extract(epoch FROM max(not_before) FILTER (WHERE s.state = 'scheduled') - tranche_now()) AS due
    FROM work_slice s
    WHERE s.run_id = r.id AND s.step = st.step AND s.state IN ('scheduled', 'claimed', 'sent')
) w ON true
WHERE r.own OR EXISTS (SELECT FROM asked a WHERE a.endpoint = st.endpoint)
ORDER BY r.own DESC, r.id, st.step`

// newestRequests is the last ended ones of each endpoint, by work_slice_ended, and those in flight, by
// work_slice_busy. A scheduled one counts as in flight from its time on.
const newestRequests = `
SELECT w.endpoint, w.run_id, w.step, r.plan, st.name, bit_count(w.mask)::float8, w.cause = 'ready', w.ended_at IS NULL,
    extract(epoch FROM least(greatest(w.created_at, CASE WHEN w.cause <> 'ready' THEN
        coalesce(w.sent_at, w.not_before) END), w.ended_at) - tranche_now())::float8,
    coalesce(extract(epoch FROM w.ended_at - tranche_now()), 0)::float8, coalesce(w.took, -1), coalesce(w.service, '')
FROM unnest($1::text[]) AS e (endpoint) CROSS JOIN LATERAL (
    (SELECT s.* FROM work_slice s WHERE s.endpoint = e.endpoint AND s.ended_at IS NOT NULL
     ORDER BY s.ended_at DESC LIMIT $2)
    UNION ALL
    (SELECT s.* FROM work_slice s WHERE s.endpoint = e.endpoint AND ` + plane.SliceInFlight + ` LIMIT $2)) w
JOIN run_step st ON st.run_id = w.run_id AND st.step = w.step JOIN batchrun r ON r.id = w.run_id
WHERE w.state <> 'cancelled'`

const networkEndpoints = `
SELECT e.endpoint, coalesce(s.max_in_flight, 0), coalesce(p.in_flight, 0),
    coalesce(least(nullif(s.rate, 0), p.rate), 0)::float8, coalesce(s.request_rate, 0)::float8,
    coalesce(p.breaker = 'open', false), tranche_now()
FROM unnest($1::text[]) AS e (endpoint)
LEFT JOIN endpoint_setting s ON s.endpoint = e.endpoint LEFT JOIN endpoint_pace p ON p.endpoint = e.endpoint`

// foresight is a network as read from the database.
type foresight struct {
	*forecast.Network
	at    time.Time // by the database's clock
	runs  map[workqueue.RunID]int
	plans []string // of each run
	own   int      // the requested runs come first
	steps map[stepOf]int
	ends  map[string]int // endpoints
}

type stepOf struct {
	run  workqueue.RunID
	step workqueue.Step
}

// readNetwork reads the work of runs, what they share, and the cost of their requests, and of planned unless nil.
func readNetwork(
	ctx context.Context, from pg.Querier, ids []workqueue.RunID, planned *start.LoadRequest, items int64,
) (*foresight, error) {
	f := &foresight{Network: &forecast.Network{}, runs: map[workqueue.RunID]int{}, steps: map[stepOf]int{},
		ends: map[string]int{}}
	if planned != nil {
		f.plan(planned, float64(items))
	}
	rows := pg.Rows(ctx, from, networkSteps, ids, beside, workqueue.DefaultMaxBackoff, f.names())
	_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, f.scanStep(row) })
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

func (f *foresight) scanStep(row pgx.CollectableRow) error {
	var id workqueue.RunID
	var step workqueue.Step
	var name, plan, state, hold, endpoint string
	var own, open, sampling, approve bool
	var priority, share int
	var by *float64
	var gentle, atRisk bool
	var needs []workqueue.Step
	var s forecast.Step
	err := row.Scan(&id, &name, &plan, &own, &state, &hold, &priority, &open, &sampling, &approve, &step, &s.Name,
		&endpoint, &needs, &s.Barrier, &s.Gate, &s.InFlight, &s.Cap, &s.Auto, &share, &s.Rate, &s.Attempts, &s.Backoff, &s.MaxBackoff,
		&s.Items, &s.Settled, &s.Ready, &s.Held, &s.Failed, &s.Out, &s.Retrying, &s.RetryDue,
		&by, &gentle, &atRisk)
	if err != nil {
		return err
	}
	r, known := f.runs[id]
	if !known {
		r = len(f.Runs)
		f.runs[id] = r
		run := forecast.Run{ID: id.String(), Name: name, Priority: priority, Canary: sampling, Approve: approve,
			Share: share}
		if own && by != nil {
			run.Timed, run.DoneBy, run.Gentle, run.AtRisk = true, *by, gentle, atRisk
		}
		run.WhyNot, run.Person = standing(state, hold, open)
		run.Idle = state != "running"
		f.Runs, f.plans = append(f.Runs, run), append(f.plans, plan)
		if own {
			f.own++
		}
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
	f.plans, f.own = append(f.plans, req.Plan), 1
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

// Foresee predicts when a run with that many items would end if it started now.
func (s Store) Foresee(ctx context.Context, req *start.LoadRequest, items int64) (*forecast.Forecast, error) {
	f, err := readNetwork(ctx, s.db.Pool, []workqueue.RunID{}, req, items)
	if err != nil {
		return nil, fmt.Errorf("forecast a run of plan %s: %w", req.Plan, err)
	}
	all, err := f.All(ctx, f.at, 1)
	if err != nil {
		return nil, err
	}
	return &all[0].Forecast, nil
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
		return "", "someone to resume it"
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
		[]any{&name, &e.Budget, &e.Auto, &e.Rate, &e.RequestRate, &down, &f.at}, func() {
			if e.Name, e.Down = name, ""; down {
				e.Down = name + " to answer again: its breaker is open"
			}
			f.Endpoints[f.ends[name]] = e
		})
	if err != nil {
		return fmt.Errorf("read the limits of endpoints: %w", err)
	}
	return nil
}

// readRequests measures the cost of each step's requests: its own, or else those of its plan's other runs.
func (f *foresight) readRequests(ctx context.Context, from pg.Querier) error {
	type profile struct{ plan, step, endpoint string }
	own, earlier := make([][]forecast.Request, len(f.Steps)), map[profile][]forecast.Request{}
	all := make([][]forecast.Request, len(f.Endpoints))
	var of stepOf
	var p profile
	var r forecast.Request
	rows := pg.Rows(ctx, from, newestRequests, f.names(), measuredRequests)
	err := pg.Each(rows, []any{&p.endpoint, &of.run, &of.step, &p.plan, &p.step, &r.Items, &r.First, &r.Live, &r.Began,
		&r.Ended, &r.Took, &r.Instance}, func() {
		e := f.ends[p.endpoint]
		all[e] = append(all[e], r)
		if i, known := f.steps[of]; known {
			own[i] = append(own[i], r)
		}
		if !r.Live {
			earlier[p] = append(earlier[p], r)
		}
	})
	if err != nil {
		return fmt.Errorf("read what requests take: %w", err)
	}
	for e := range all {
		f.Endpoints[e].Level = forecast.Level(all[e])
	}
	for i := range f.Steps {
		s := &f.Steps[i]
		fresh := slices.ContainsFunc(own[i], func(r forecast.Request) bool {
			return !r.Live && r.Ended > -staleAfter.Seconds()
		})
		if s.Cost = forecast.Measure(own[i], !fresh); s.Cost.Known() {
			continue
		}
		s.Cost = forecast.Measure(earlier[profile{f.plans[s.Run], s.Name, f.Endpoints[s.Endpoint].Name}], true)
	}
	return nil
}

// foresee reads what the forecasts of runs in progress need; nil: none are.
func foresee(ctx context.Context, from pg.Querier, runs []*RunSummary) (*foresight, error) {
	var ids []workqueue.RunID
	for _, r := range runs {
		if r.Ended() {
			continue
		}
		if len(ids) < foretold {
			ids = append(ids, r.ID)
		} else {
			r.Forecast = &forecast.Forecast{WhyNot: "too many runs are in this list; look at the run itself"}
		}
	}
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // there is nothing to foretell
	}
	return readNetwork(ctx, from, ids, nil, 0)
}

// foretell sets the forecasts of runs in progress. It reads nothing.
func (f *foresight) foretell(ctx context.Context, runs []*RunSummary) error {
	if f == nil {
		return nil
	}
	all, err := f.All(ctx, f.at, 1)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if i, known := f.runs[r.ID]; known && i < f.own {
			r.Forecast = &all[i].Forecast
		}
	}
	return nil
}

// Variant is a forecast with some changes.
type Variant struct {
	Changes  []string                `json:"changes" nullable:"false" doc:"empty: unchanged"`
	Forecast forecast.Forecast       `json:"forecast"`
	Steps    []forecast.StepForecast `json:"steps" nullable:"false" doc:"when each step ends, in seconds from at"`
}

// Suppose predicts when a run will end unchanged, with each of the changes alone, and with all of several. It
// changes nothing. An error about a change is a *workqueue.SettingError.
func (s Store) Suppose(
	ctx context.Context, id workqueue.RunID, changes []string,
) (all []Variant, at time.Time, err error) {
	var f *foresight
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		run, err := ReadSummary(ctx, tx, id)
		if err != nil {
			return err
		}
		if run.Ended() {
			return &workqueue.StateError{Run: id, State: run.State, Op: "forecast", Fix: "see when it ended: tranche run show"}
		}
		f, err = readNetwork(ctx, tx, []workqueue.RunID{id}, nil, 0)
		return err
	})
	if err != nil {
		return nil, at, fmt.Errorf("forecast run %s: %w", id, err)
	}
	sets := [][]string{{}}
	for _, change := range changes {
		sets = append(sets, []string{change})
	}
	if len(changes) > 1 {
		sets = append(sets, changes)
	}
	for _, set := range sets {
		n := f.Clone()
		for _, change := range set {
			if err := n.Apply(f.runs[id], change); err != nil {
				return nil, at, &workqueue.SettingError{Detail: err.Error()}
			}
		}
		played, err := n.All(ctx, f.at, 1)
		if err != nil {
			return nil, at, err
		}
		of := played[f.runs[id]]
		all = append(all, Variant{set, of.Forecast, slices.Concat([]forecast.StepForecast{}, of.Steps)})
	}
	return all, f.at, nil
}
