package control

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// AtRisk says why a run will not be done by its time, as the leader found.
type AtRisk struct {
	Since   time.Time     `json:"since" doc:"when that was found"`
	Ends    time.Time     `json:"ends" doc:"when half of the simulations end, with immediate approvals"`
	Late    string        `json:"late" doc:"by how much that is too late, as text"`
	BoundBy string        `json:"bound_by,omitempty" doc:"what keeps it from being faster, as a sentence"`
	Fix     *forecast.Fix `json:"fix,omitempty" doc:"a single change that would be enough; absent: none is known"`
}

// RunPace is how fast a run goes, so that it is done by its time, and was.
type RunPace struct {
	Run       workqueue.RunID
	Name      string // or its id
	DoneBy    time.Time
	Known     bool      // when it ends
	Ends      time.Time // in nine of ten courses
	Steps     []StepPace
	Risk      *AtRisk // without Since; nil: it will be on time, or its end is unknown
	WasAtRisk bool
	Looked    bool // for a fix, which replaces the one found before
}

// StepPace is that of one of its steps.
type StepPace struct {
	Step           workqueue.Step
	Name, Endpoint string
	Cap, WasCap    int // requests in flight at most; 0: as many as its limits allow
	Share          int // of what it shares
	WasShare       int
}

// Why explains the pace in a sentence.
func (p *RunPace) Why() string {
	text := fmt.Sprintf("run %s has the deadline %s", p.Name, p.DoneBy.UTC().Format(time.RFC3339))
	switch {
	case p.Risk != nil:
		return text + ", and will be late"
	case p.Known:
		return text + ": with this nine in ten courses end by " + p.Ends.UTC().Format(time.RFC3339)
	}
	return text
}

const (
	// The locks are taken in the common order for steps. A run that ended, or whose time was changed meanwhile,
	// is left alone; the caller's time is rounded.
	paceSteps = `
UPDATE run_step st SET in_flight_cap = nullif(u.cap, 0), share = u.share
FROM batchrun r, unnest($2::smallint[], $3::integer[], $4::smallint[]) AS u (step, cap, share)
WHERE r.id = $1 AND r.state = 'running' AND abs(extract(epoch FROM r.done_by - $5::timestamptz)) <= 1
    AND (r.gentle OR u.cap = 0) AND st.run_id = $1 AND st.step = u.step`

	noteChange = `INSERT INTO endpoint_change (endpoint, what, before, after, reason) VALUES ($1, $2, $3, $4, $5)`

	// Since when is kept while it holds.
	setAtRisk = `
UPDATE batchrun
SET at_risk = CASE WHEN $4 THEN '{}' ELSE coalesce(at_risk, '{}') END || $3::jsonb || jsonb_build_object(
    'since', coalesce(at_risk->'since', to_jsonb(tranche_now())))
WHERE id = $1 AND state = 'running' AND abs(extract(epoch FROM done_by - $2::timestamptz)) <= 1
RETURNING generation`
	clearAtRisk = `
UPDATE batchrun SET at_risk = NULL
WHERE id = $1 AND state = 'running' AND abs(extract(epoch FROM done_by - $2::timestamptz)) <= 1 AND at_risk IS NOT NULL
RETURNING generation`
)

// StepProfile is what requests of a plan's step cost in a run that completed, for forecasts of the next one.
type StepProfile struct {
	Plan     string        `json:"plan"`
	Step     string        `json:"step"`
	Endpoint string        `json:"endpoint"`
	At       time.Time     `json:"at"` // when that run completed
	Cost     forecast.Cost `json:"cost"`
}

const (
	keepProfiles = `
INSERT INTO step_profile (plan, step, endpoint, at, cost)
SELECT DISTINCT ON (u.plan, u.step, u.endpoint) u.*
FROM jsonb_to_recordset($1) AS u (plan text, step text, endpoint text, at timestamptz, cost jsonb)
ORDER BY u.plan, u.step, u.endpoint, u.at DESC
ON CONFLICT (plan, step, endpoint) DO UPDATE SET at = excluded.at, cost = excluded.cost
WHERE step_profile.at <= excluded.at`

	dropProfiles = `DELETE FROM step_profile WHERE at < tranche_now() - interval '400 days'`
)

// KeepProfiles stores the newest profile of each step, and deletes those of plans that had no run for over a year.
// Leader work.
func (s Store) KeepProfiles(ctx context.Context, lease workqueue.Lease, all []StepProfile) error {
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, keepProfiles, all); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, dropProfiles)
		return err
	})
	return pg.Wrap(err, "keep what requests cost")
}

// SetPace stores how fast a run goes, with a sentence for each change at its endpoint and a row in the
// audit log; and whether it will be late, with an event when that is news. It reports whether the pace changed. Leader
// work.
func (s Store) SetPace(ctx context.Context, lease workqueue.Lease, p *RunPace) (changed bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if changed, err = p.setSteps(ctx, tx); err != nil {
			return err
		}
		return p.setRisk(ctx, tx)
	})
	return changed, pg.Wrap(err, "set the pace of run %s", p.Run)
}

func (p *RunPace) setSteps(ctx context.Context, tx pgx.Tx) (changed bool, err error) {
	var d ledger.Difference
	var steps []workqueue.Step
	var caps, shares []int
	type change struct{ endpoint, what, before, after string }
	var changes []change
	note := func(s *StepPace, what, setting string, before, after int) {
		if before != after {
			d.Add(s.Name+"."+setting, before, after)
			changes = append(changes, change{s.Endpoint, what, strconv.Itoa(before), strconv.Itoa(after)})
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		steps, caps, shares = append(steps, s.Step), append(caps, s.Cap), append(shares, s.Share)
		note(s, "cap", "in_flight_cap", s.WasCap, s.Cap)
		note(s, "share", "share", s.WasShare, s.Share)
	}
	if len(changes) == 0 {
		return false, nil
	}
	if _, err := tx.Exec(ctx, lockStepsOfRun, p.Run); err != nil {
		return false, fmt.Errorf("lock steps: %w", err)
	}
	if tag, err := tx.Exec(ctx, paceSteps, p.Run, steps, caps, shares, p.DoneBy); err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	why := pg.Plain(p.Why())
	for _, c := range changes {
		if _, err := tx.Exec(ctx, noteChange, c.endpoint, c.what, c.before, c.after, why); err != nil {
			return false, err
		}
	}
	return true, ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "pace", Run: p.Run,
		Before: d.Before, After: d.After, Detail: map[string]any{"reason": why}})
}

func (p *RunPace) setRisk(ctx context.Context, tx pgx.Tx) error {
	if p.Risk == nil && (!p.WasAtRisk || !p.Known) {
		return nil
	}
	if p.Risk != nil && p.WasAtRisk && !p.Risk.Ends.After(p.DoneBy) { // early, but not by enough to withdraw it
		return nil
	}
	statement, args := clearAtRisk, []any{p.Run, p.DoneBy}
	if p.Risk != nil {
		p.Risk.Late = LateText(p.Risk.Ends.Sub(p.DoneBy))
		statement, args = setAtRisk, append(args, p.Risk, p.Looked)
	}
	gen, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Generation], statement, args...)
	if err != nil || len(gen) == 0 || (p.Risk != nil) == p.WasAtRisk {
		return err
	}
	return addRisk(ctx, tx, p.Run, gen[0], &p.DoneBy, p.Risk)
}

// addRisk adds the event that a run is at risk, or, without a risk, not any more.
func addRisk(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, gen workqueue.Generation, by *time.Time, risk *AtRisk,
) error {
	payload := map[string]any{"done_by": by, "at_risk": risk != nil}
	if risk != nil {
		payload["ends"], payload["bound_by"], payload["fix"] = risk.Ends, risk.BoundBy, risk.Fix
	}
	return ledger.AddEvent(ctx, tx, run, gen, workqueue.EventDeadlineAtRisk, payload)
}

// against is the rest of a risk when the run's deadline changes: nil if it ends before that, or has no
// time any more. What would be enough was found for the time before.
func (r *AtRisk) against(by *time.Time) *AtRisk {
	if r == nil || by == nil || !r.Ends.After(*by) {
		return nil
	}
	still := *r
	still.Late, still.Fix = LateText(r.Ends.Sub(*by)), nil
	return &still
}

// LateText is how late something is, as a person says it.
func LateText(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d >= 2*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", max(d.Seconds(), 1))
}
