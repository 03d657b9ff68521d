package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	// foretold bounds the active runs forecast together, and nearby those simulated with one run and its changes.
	foretold = 50
	nearby   = 16
	// lookers limits concurrent reads of single runs.
	lookers = 4
	// A reading is kept for restShare times its duration. A request for a run in another state reads that run again.
	restShare = 10
	// maxRest is for how long a reading is kept at most, and how long one may take.
	maxRest = 15 * time.Second
	// staleReading is the age at which a reading expires if no newer one could be made.
	staleReading = 5 * time.Minute
)

// readings are the last ones: of all active runs, under the zero ID, and of runs that were looked at alone.
type readings struct {
	of     sync.Map // a *reading by RunID
	report atomic.Pointer[func(error)]
	begun  sync.Once
	alone  turns // of those who read one run
}

type reading struct {
	turn turns // taken while it is read
	last atomic.Pointer[attempt]
}

// turns are taken by sending, and given back by receiving.
type turns chan struct{}

func (t turns) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errWaited, context.Cause(ctx))
	}
}

// attempt is a reading that was tried. With an error, the network is that of the attempt before.
type attempt struct {
	f     *foresight
	err   error
	until time.Time // until then it is recent
}

// OnForecastError sets who is notified when forecasts cannot be made, once until they can.
func (s Store) OnForecastError(report func(error)) {
	s.readings().report.Store(&report)
}

func (s Store) readings() *readings {
	all := database.Kept[readings](s.db)
	all.begun.Do(func() { all.alone = make(turns, lookers) })
	return all
}

func (a *readings) get(run workqueue.RunID) *reading {
	r, _ := a.of.LoadOrStore(run, &reading{turn: make(turns, 1)})
	return r.(*reading) //nolint:forcetypeassert // there are no others
}

// usable returns the last attempt if it has the run in its current state, or failed; nil: any run. It must be recent
// unless it is being read now.
func (r *reading) usable(run *RunSummary) *attempt {
	last := r.last.Load()
	if last == nil || len(r.turn) == 0 && !time.Now().Before(last.until) {
		return nil
	}
	if last.err == nil && run != nil && !last.f.fits(run) {
		return nil
	}
	return last
}

// errWaited is returned when the caller's turn did not come.
var errWaited = errors.New("wait for others who read the same")

// look returns a recent reading of a run and those nearby, or reads them; nil: of all active runs. With an error
// there may be an older one.
func (s Store) look(ctx context.Context, run *RunSummary) (*foresight, error) {
	all := s.readings()
	r := all.get(workqueue.RunID{})
	if run != nil {
		if last := r.usable(run); last != nil && last.err == nil {
			return last.f, nil
		}
		r = all.get(run.ID)
	}
	if last := r.usable(run); last != nil {
		return last.f, last.err
	}
	timed, cancel := context.WithTimeout(ctx, maxRest)
	defer cancel()
	if err := r.turn.take(timed); err != nil {
		return nil, err
	}
	defer func() { <-r.turn }()
	last := r.last.Load()
	if last == nil || !time.Now().Before(last.until) || r.usable(run) == nil { // no other caller has just read it
		if run != nil {
			if err := all.alone.take(timed); err != nil {
				return nil, err
			}
			defer func() { <-all.alone }()
		}
		if last = s.read(timed, run, last); ctx.Err() == nil { // else it is the caller who went
			r.last.Store(last)
		}
	}
	if run != nil { // not kept indefinitely
		time.AfterFunc(time.Minute, func() { all.of.CompareAndDelete(run.ID, r) })
	}
	return last.f, last.err
}

// read tries to read what look needs.
func (s Store) read(ctx context.Context, run *RunSummary, before *attempt) *attempt {
	named, most, begun, next := []workqueue.RunID{}, foretold, time.Now(), &attempt{}
	if run != nil {
		named, most = append(named, run.ID), 1+nearby
	}
	if next.f, next.err = s.foresee(ctx, named, most, nil, 0); next.err != nil {
		if next.f = nil; before != nil {
			next.f = before.f
		}
		if next.f != nil && time.Since(next.f.at) > staleReading {
			next.f = nil
		}
		report := s.readings().report.Load()
		if report != nil && !errors.Is(next.err, context.Canceled) && (before == nil || before.err == nil) {
			(*report)(next.err)
		}
	}
	next.until = time.Now().Add(min(restShare*time.Since(begun), maxRest))
	return next
}

// fits reports whether a reading has a run in its current state.
func (f *foresight) fits(r *RunSummary) bool {
	i, known := f.runs[r.ID]
	if !known {
		return false
	}
	now := state{state: r.State, open: r.Open != nil, sampling: r.Sampling, priority: r.Priority}
	if r.State == "paused" {
		now.state = "running"
	}
	if r.Hold != nil {
		now.hold = string(r.Hold.Kind)
	}
	for _, gate := range r.Approval {
		now.gates += gate + "\n"
	}
	return f.states[i] == now
}

// of is the forecast of an active run, or why it is missing.
func (f *foresight) of(r *RunSummary, err error) *forecast.Forecast {
	if f == nil {
		f = &foresight{}
	}
	i, known := f.runs[r.ID]
	switch {
	case f.fits(r):
		told := f.known[i].Forecast
		told.Made = &f.at
		return &told
	case errors.Is(err, errWaited):
		return &forecast.Forecast{WhyNot: "other forecasts are being made; look again"}
	case err != nil:
		return &forecast.Forecast{WhyNot: "what it needs could not be read; the log of the node says why"}
	case len(f.Runs) == foretold && !known:
		return &forecast.Forecast{WhyNot: fmt.Sprintf("lists forecast the %d most urgent runs only; open the run itself",
			foretold)}
	}
	return &forecast.Forecast{WhyNot: fmt.Sprintf("the run has changed since the last forecast of all runs; the next one "+
		"comes within %.0f s", maxRest.Seconds())}
}

// Foretold returns the 50 most urgent active runs, with only IDs, states and forecasts.
func (s Store) Foretold(ctx context.Context) (runs []RunSummary, err error) {
	f, err := s.look(ctx, nil)
	if f == nil {
		return nil, fmt.Errorf("forecast runs: %w", err)
	}
	for id, i := range f.runs {
		told := f.known[i].Forecast
		runs = append(runs, RunSummary{ID: id, State: f.states[i].state, Forecast: &told})
		if hold := f.states[i].hold; hold != "" {
			runs[len(runs)-1].Hold = &HoldView{Kind: control.Hold(hold)}
		}
	}
	return runs, nil
}

// Variant is a forecast with some changes.
type Variant struct {
	Changes  []string                `json:"changes" nullable:"false" doc:"empty: unchanged"`
	Forecast forecast.Forecast       `json:"forecast"`
	Steps    []forecast.StepForecast `json:"steps" nullable:"false" doc:"when each step ends, in seconds from at"`
}

// Supposed is the forecasts of a run, unchanged and with changes.
type Supposed struct {
	Run      RunSummary
	At       time.Time
	Variants []Variant
}

// Suppose predicts when a run will end unchanged, with each of the changes alone, and with all of several. It
// changes nothing. An error about a change is a *workqueue.SettingError.
func (s Store) Suppose(ctx context.Context, id workqueue.RunID, changes []string) (*Supposed, error) {
	run, err := ReadSummary(ctx, s.db.Pool, id)
	if err == nil && run.Ended() {
		err = &workqueue.StateError{Run: id, State: run.State, Op: "forecast", Fix: "see when it ended: tranche run show"}
	}
	var f *foresight
	if err == nil {
		f, err = s.look(ctx, &run)
	}
	if err != nil {
		return nil, fmt.Errorf("forecast run %s: %w", id, err)
	}
	i, known := f.runs[id]
	if !known {
		return nil, fmt.Errorf("forecast run %s: it ended while it was read: %w", id, workqueue.ErrNotFound)
	}
	network, out := f.Around(i, nearby), &Supposed{Run: run, At: f.at}
	sets := [][]string{{}}
	for _, change := range changes {
		sets = append(sets, []string{change})
	}
	if len(changes) > 1 {
		sets = append(sets, changes)
	}
	for _, set := range sets {
		n := network.Clone()
		for _, change := range set {
			if err := n.Apply(0, change); err != nil {
				return nil, workqueue.BadSetting("%v", err)
			}
		}
		played, err := n.All(ctx, f.at, 1)
		if err != nil {
			return nil, err
		}
		of := played[0]
		out.Variants = append(out.Variants, Variant{set, of.Forecast, slices.Concat([]forecast.StepForecast{}, of.Steps)})
	}
	return out, nil
}

// Foresee predicts when a run with that many items would end if it started now, and says by how much that is after its
// done_by; empty: it is not.
func (s Store) Foresee(
	ctx context.Context, req *start.LoadRequest, items int64,
) (told *forecast.Forecast, late string, err error) {
	f, err := s.foresee(ctx, []workqueue.RunID{}, nearby, req, items)
	if err != nil {
		return nil, "", fmt.Errorf("forecast a run of plan %s: %w", req.Plan, err)
	}
	if req.DoneBy != nil {
		late = f.lateness(*req.DoneBy)
	}
	return &f.known[0].Forecast, late, nil
}

// timedRuns are at most $1 runs with a done_by, by batchrun_done_by: paced ones first, then those that continue
// and are not late.
const timedRuns = `
SELECT r.id FROM batchrun r WHERE r.state = 'running' AND r.done_by IS NOT NULL
ORDER BY EXISTS (
        SELECT FROM run_step st WHERE st.run_id = r.id AND (st.in_flight_cap IS NOT NULL OR st.share > 1)) DESC,
    r.hold IS NOT NULL, r.done_by <= tranche_now(), r.done_by, r.id LIMIT $1`

// maxTimed bounds the runs that are paced to a time.
const maxTimed = 20

// Deadlines are runs with a deadline, with all that their ends depend on.
type Deadlines struct {
	f     *foresight
	timed []workqueue.RunID
}

// Deadlines reads the runs with a deadline; nil: none.
func (s Store) Deadlines(ctx context.Context) (d *Deadlines, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		ids, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], timedRuns, maxTimed)
		if err != nil || len(ids) == 0 {
			return err
		}
		d = &Deadlines{timed: ids}
		d.f, err = readNetwork(ctx, tx, ids, maxTimed+nearby, nil, 0)
		return err
	})
	return d, pg.Wrap(err, "read which runs have a deadline")
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
	f, err := s.foresee(ctx, []workqueue.RunID{id}, 1+nearby, nil, 0)
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

// of is a decision with what was before. Steps of a run are numbered from 0.
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
