package report

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

func (s Store) readOutcomeSteps(ctx context.Context, run workqueue.RunID) (plane.OutcomeSteps, error) {
	rows, err := s.db.Pool.Query(ctx, plane.ReadStepsOfRun, run)
	if err != nil {
		return plane.OutcomeSteps{}, err
	}
	var out plane.OutcomeSteps
	var step workqueue.Step
	var name string
	var needs []workqueue.Step
	var optional bool
	var all [][]workqueue.Step
	_, err = pgx.ForEachRow(rows, []any{&step, &name, &needs, &optional}, func() error {
		out.All, out.Names, out.Optional = append(out.All, step), append(out.Names, name), append(out.Optional, optional)
		all = append(all, slices.Clone(needs))
		return nil
	})
	out.Results = plane.ResultSteps(out.All, all)
	return out, err
}
