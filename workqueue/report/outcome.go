package report

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// readOutcomeSteps reads the steps of a run; with a name those that this one needs, however far around.
func (s Store) readOutcomeSteps(ctx context.Context, run workqueue.RunID, before string) (plane.OutcomeSteps, error) {
	rows := pg.Rows(ctx, s.db.Pool, plane.ReadStepsOfRun, run)
	var out plane.OutcomeSteps
	var step workqueue.Step
	var name string
	var needs []workqueue.Step
	var optional bool
	var all [][]workqueue.Step
	_, err := pgx.ForEachRow(rows, []any{&step, &name, &needs, &optional}, func() error {
		out.All, out.Names, out.Optional = append(out.All, step), append(out.Names, name), append(out.Optional, optional)
		all = append(all, slices.Clone(needs))
		return nil
	})
	if err == nil && before != "" {
		all, err = upTo(&out, all, before)
	}
	out.Results = plane.ResultSteps(out.All, all)
	return out, err
}

// upTo leaves the steps that one needs, and returns the needs of these.
func upTo(out *plane.OutcomeSteps, needs [][]workqueue.Step, before string) ([][]workqueue.Step, error) {
	at := slices.Index(out.Names, before)
	if at < 0 || len(needs[at]) == 0 {
		return nil, &workqueue.StepChoiceError{Step: before, Steps: out.Names}
	}
	wanted := slices.Clone(needs[at])
	var kept plane.OutcomeSteps
	var of [][]workqueue.Step
	for i := at - 1; i >= 0; i-- { // a step needs steps before it
		if !slices.Contains(wanted, out.All[i]) {
			continue
		}
		wanted = append(wanted, needs[i]...)
		kept.All, kept.Names = append(kept.All, out.All[i]), append(kept.Names, out.Names[i])
		kept.Optional, of = append(kept.Optional, out.Optional[i]), append(of, needs[i])
	}
	slices.Reverse(kept.All)
	slices.Reverse(kept.Names)
	slices.Reverse(kept.Optional)
	slices.Reverse(of)
	*out = kept
	return of, nil
}
