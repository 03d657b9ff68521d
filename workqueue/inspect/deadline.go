package inspect

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// timedRuns are those that are to be done by a time, the first $1 of them, by batchrun_done_by.
const timedRuns = `
SELECT id FROM batchrun WHERE state = 'running' AND done_by IS NOT NULL ORDER BY done_by, id LIMIT $1`

// maxTimed bounds the runs that are paced to a time at once: those whose time comes first.
const maxTimed = 20

// Deadlines are runs that are to be done by a time, with all that their ends depend on.
type Deadlines struct{ f *foresight }

// Deadlines reads which runs are to be done by a time; nil: none is.
func (s Store) Deadlines(ctx context.Context) (d *Deadlines, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		ids, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], timedRuns, maxTimed)
		if err != nil || len(ids) == 0 {
			return err
		}
		d = &Deadlines{}
		d.f, err = readNetwork(ctx, tx, ids, maxTimed+beside, nil, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read which runs are to be done by a time: %w", err)
	}
	return d, nil
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
	out := make([]control.RunPace, len(decided))
	for i := range decided {
		p, run := &decided[i], &out[i]
		*run = d.of(p)
		if run.Run = ids[p.Run]; p.AtRisk && p.Known {
			run.Risk = &control.AtRisk{Ends: d.after(p.P50), BoundBy: p.BoundBy}
			if run.Looked = fix(run.Run); run.Looked {
				if run.Risk.Fix, err = paced.Fix(ctx, d.f.at, p.Run); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

func (d *Deadlines) after(seconds float64) time.Time {
	return d.f.at.Add(time.Duration(seconds * float64(time.Second))).Round(time.Second)
}

// of is a decision with what was before. Steps of a run are numbered from 0 on.
func (d *Deadlines) of(p *forecast.Pace) control.RunPace {
	run := &d.f.Runs[p.Run]
	out := control.RunPace{Name: cmp.Or(run.Name, run.ID), DoneBy: d.after(run.DoneBy), Known: p.Known, WasAtRisk: run.AtRisk}
	if p.Known {
		out.Ends = d.after(p.P90)
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
