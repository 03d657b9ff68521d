package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// timedRuns are at most $1 runs with a done_by, by batchrun_done_by: those that are paced first, then those that go on
// and are not late.
const timedRuns = `
SELECT r.id FROM batchrun r WHERE r.state = 'running' AND r.done_by IS NOT NULL
ORDER BY EXISTS (
        SELECT FROM run_step st WHERE st.run_id = r.id AND (st.in_flight_cap IS NOT NULL OR st.share > 1)) DESC,
    r.hold IS NOT NULL, r.done_by <= tranche_now(), r.done_by, r.id LIMIT $1`

// maxTimed bounds the runs that are paced to a time.
const maxTimed = 20

// Deadlines are runs that are to be done by a time, with all that their ends depend on.
type Deadlines struct {
	f     *foresight
	timed []workqueue.RunID
}

// Deadlines reads which runs are to be done by a time; nil: none is.
func (s Store) Deadlines(ctx context.Context) (d *Deadlines, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		ids, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], timedRuns, maxTimed)
		if err != nil || len(ids) == 0 {
			return err
		}
		d = &Deadlines{timed: ids}
		d.f, err = readNetwork(ctx, tx, ids, maxTimed+beside, nil, 0)
		return err
	})
	return d, pg.Wrap(err, "read which runs are to be done by a time")
}

// Paces decides how fast each of the runs goes. A change that helps a run that will be late is looked for when fix says
// so: that takes a while.
func (d *Deadlines) Paces(ctx context.Context, fix func(workqueue.RunID) bool) ([]control.RunPace, error) {
	decided, paced, err := d.f.Paces(ctx, d.f.at)
	if err != nil {
		return nil, err
	}
	ids := make([]workqueue.RunID, len(d.f.Runs))
	for id, r := range d.f.runs {
		ids[r] = id
	}
	out := make([]control.RunPace, 0, len(ids))
	for i := range decided {
		p := &decided[i]
		if !slices.Contains(d.timed, ids[p.Run]) {
			continue
		}
		run := d.of(p)
		run.Run = ids[p.Run]
		if p.AtRisk && p.Known {
			run.Risk = d.risk(ctx, paced, p, &run, fix)
		}
		out = append(out, run)
	}
	return out, nil
}

// risk says why a run will be late. A fix that takes too long to find is left out.
func (d *Deadlines) risk(
	ctx context.Context, paced *forecast.Network, p *forecast.Pace, run *control.RunPace, fix func(workqueue.RunID) bool,
) *control.AtRisk {
	r, risk := &d.f.Runs[p.Run], &control.AtRisk{Ends: d.f.after(p.P50), BoundBy: p.BoundBy}
	if r.Person != "" {
		risk.BoundBy = "it waits for " + r.Person
		return risk
	}
	if r.DoneBy > 0 && fix(run.Run) {
		var err error
		risk.Fix, err = paced.Fix(ctx, d.f.at, p.Run)
		run.Looked = err == nil
	}
	return risk
}

// Lateness says by how much a run will miss its done_by, by a forecast made now; empty: it will not, or no one knows.
func (s Store) Lateness(ctx context.Context, id workqueue.RunID) (string, error) {
	f, err := s.foresee(ctx, []workqueue.RunID{id}, 1+beside, nil, 0)
	if err != nil || len(f.Runs) == 0 || f.Runs[0].ID != id.String() || !f.Runs[0].Timed {
		return "", err
	}
	return f.lateness(f.after(f.Runs[0].DoneBy)), nil
}

// lateness says by how much the first run will miss a time; empty: it will not, or no one knows.
func (f *foresight) lateness(by time.Time) string {
	left, _, known := f.known[0].Left(f.at)
	ends := f.after(left)
	if !known || !ends.After(by) {
		return ""
	}
	text := "by forecast it ends at " + ends.UTC().Format(time.RFC3339) + ", " + control.LateText(ends.Sub(by)) +
		" after its done_by, if nothing is changed"
	return strings.TrimSuffix(text+"; "+f.known[0].BoundBy, "; ")
}

func (f *foresight) after(seconds float64) time.Time {
	return f.at.Add(time.Duration(seconds * float64(time.Second))).Round(time.Second)
}

// of is a decision with what was before. Steps of a run are numbered from 0 on.
func (d *Deadlines) of(p *forecast.Pace) control.RunPace {
	run := &d.f.Runs[p.Run]
	out := control.RunPace{Name: cmp.Or(run.Name, run.ID), DoneBy: d.f.after(run.DoneBy), Known: p.Known,
		WasAtRisk: run.AtRisk}
	if p.Known {
		out.Ends = d.f.after(p.P90)
	}
	for i := range d.f.Steps {
		if s := &d.f.Steps[i]; s.Run == p.Run {
			at := len(out.Steps)
			out.Steps = append(out.Steps, control.StepPace{Step: workqueue.Step(at), Name: s.Name,
				Endpoint: d.f.Endpoints[s.Endpoint].Name, Cap: p.Caps[at], WasCap: s.Cap, Share: p.Share,
				WasShare: max(run.Share, 1)})
		}
	}
	return out
}

// completedLately is the steps of at most $2 runs that completed for the first time after $1, the oldest first, by
// run_event_completed. One that is committed late is left out.
const completedLately = `
WITH completed AS MATERIALIZED (
    SELECT e.at, r.id, r.plan FROM run_event e JOIN batchrun r ON r.id = e.run_id
    WHERE e.kind = 'completed' AND e.generation = 1
      AND e.at > greatest($1, (SELECT max(at) FROM step_profile), tranche_now() - interval '1 day')
    ORDER BY e.at LIMIT $2)
SELECT c.at, c.id, c.plan, st.step, st.name, st.endpoint FROM completed c JOIN run_step st ON st.run_id = c.id
ORDER BY c.at, c.id, st.step`

// profiledRuns bounds the runs that are measured together.
const profiledRuns = 20

// Profiles measures what requests cost in runs that completed after a time, and returns until when it has looked.
func (s Store) Profiles(ctx context.Context, since time.Time) ([]control.StepProfile, time.Time, error) {
	f := newForesight()
	var all []control.StepProfile
	var of stepOf
	p := control.StepProfile{At: since}
	rows := pg.Rows(ctx, s.db.Pool, completedLately, since, profiledRuns)
	err := pg.Each(rows, []any{&p.At, &of.run, &p.Plan, &of.step, &p.Step, &p.Endpoint}, func() {
		f.steps[of] = len(f.Steps)
		f.Steps = append(f.Steps, forecast.Step{Endpoint: f.endpoint(p.Endpoint)})
		all = append(all, p)
	})
	if err != nil || len(all) == 0 {
		return nil, since, err
	}
	own, _, err := f.requests(ctx, s.db.Pool)
	if err != nil {
		return nil, since, err
	}
	known := all[:0]
	for i := range all {
		if all[i].Cost = forecast.Measure(own[i], true); all[i].Cost.Known() {
			known = append(known, all[i])
		}
	}
	return known, p.At, nil
}
