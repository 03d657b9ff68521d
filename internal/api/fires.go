package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/tranchehq/tranche/internal/api/runs"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/schedules"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// settingsOfFire are what a person would start the run of a fire with.
func settingsOfFire(spec *schedule.Spec, r *schedule.Resolved, key schedulestore.FireKey) runs.RunSettings {
	set := runs.RunSettings{
		Endpoint: spec.Endpoint, PlanRef: spec.Plan, Key: r.Items.Key, Format: r.Items.Format,
		Name: cmp.Or(r.RunName, spec.Name), Params: r.Params, IdempotencyKey: key.RunKey(),
		OnDuplicate: r.Items.OnDuplicate, Overrides: spec.Settings,
	}
	switch {
	case r.Items.File != "":
		set.Source = "file " + r.Items.File
	case r.Items.URL != "":
		set.Source = r.Items.URL
	case r.Items.SQL != nil:
		set.SQL, set.SQLSource = r.Items.SQL.Query, r.Items.SQL.Source
		set.Source = "source " + r.Items.SQL.Source
	}
	set.Source = kernel.Cut(set.Source, runs.MaxSourceBytes/4)
	return set
}

// StartFire implements schedules.Starter: what a person's start does, for a fire of a schedule.
func (s *scheduleRoutes) StartFire(ctx context.Context, job schedules.Job) (schedules.Started, error) {
	out := schedules.Started{}
	resolved, err := job.Spec.Resolve(job.Claim.Due)
	if err != nil {
		return out, err
	}
	set := settingsOfFire(job.Spec, &resolved, job.Claim.FireKey)
	req, look, err := s.starts.Request(ctx, set, "schedule "+job.Claim.Schedule)
	if err != nil {
		return out, err
	}
	schedulestore.OfFire(&req, job.Claim)
	contract, err := s.starts.ContractOf(ctx, &req)
	if err != nil {
		return out, err
	}
	rows, body, err := s.openFire(ctx, &set, &resolved.Items, look)
	if err != nil {
		return out, err
	}
	defer func() {
		_ = rows.Close() // what was read has been read
		_ = body.Close()
	}()
	req.Unit = rows.Unit()
	loaded, err := s.engine.Start(ctx, req, contract.Compare(rows).Items())
	if errors.Is(err, row.ErrNoRows) {
		err = &schedules.NoItemsError{Source: set.Source}
	}
	if err != nil {
		return out, err
	}
	if loaded.Existing { // somebody has used its key
		_, err = schedulestore.New(s.Store).EndFire(ctx, job.Claim, schedulestore.FireEnd{State: schedulestore.FireStarted,
			Run: loaded.Run})
	}
	return schedules.Started{Run: loaded.Run, Items: loaded.Items, Existing: loaded.Existing}, err
}

// openFire opens what the items come from. The caller closes both.
func (s *scheduleRoutes) openFire(ctx context.Context, set *runs.RunSettings, items *schedule.Items, look *gather.Items) (
	rows *intake.Reader, body io.Closer, err error,
) {
	config, err := s.starts.IntakeConfig(ctx, items.Format, items.Key, look)
	if err != nil {
		return nil, nil, err
	}
	if items.SQL != nil {
		rows, err = s.starts.OpenSQL(ctx, set, config)
		return rows, io.NopCloser(nil), err
	}
	var from io.ReadCloser
	if items.File != "" {
		from, err = s.config.Schedules.Files.Open(items.File)
	} else {
		from, err = s.config.Schedules.Web.Open(ctx, items.URL)
	}
	if err != nil {
		return nil, nil, err
	}
	rows, err = intake.Open(from, config)
	if errors.Is(err, row.ErrNoRows) {
		err = &schedules.NoItemsError{Source: set.Source}
	}
	if err != nil {
		return nil, nil, errors.Join(err, from.Close())
	}
	return rows, from, nil
}

// Permanent implements schedules.Starter: what a person would be told to put right stays wrong, but for what may come
// later, like a plan or a file.
func (s *scheduleRoutes) Permanent(err error) bool {
	if source, ok := errors.AsType[*schedules.SourceError](err); ok {
		return !source.Passes
	}
	if _, ok := errors.AsType[*intake.QueryError](err); ok {
		return false // its database may be away
	}
	if _, ok := errors.AsType[*schedule.VariableError](err); ok {
		return true
	}
	status, found := kernel.Told(err)
	return found != nil && status == http.StatusUnprocessableEntity
}
