package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/tranchehq/tranche/internal/api/runs"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/schedules"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// Sources is what schedules take items from, beside the sources of the connections.
type Sources struct {
	// Files is the directory of their files; nil: there is none.
	Files *schedules.Files
	// Web takes items from URLs; nil: none are taken.
	Web *schedules.Web
	// CheckURL says why a URL will not be asked, as far as that shows before; nil: it is not known.
	CheckURL func(*url.URL) error
	// Wake tells the leader that there may be something to start; nil: it looks by itself.
	Wake func()
}

func (s *scheduleRoutes) wakeSchedules() {
	if s.config.Schedules.Wake != nil {
		s.config.Schedules.Wake()
	}
}

// checkSchedule looks at what a schedule speaks of: what can never be is an error at its place in the text, and what is
// not there now a warning.
func (s *scheduleRoutes) checkSchedule(ctx context.Context, spec *schedule.Spec, in *scheduleTextInput) ([]string, error) {
	now, err := schedulestore.New(s.Store).DatabaseTime(ctx)
	if err != nil {
		return nil, err
	}
	warnings := spec.Warnings(now)
	at := func(field, problem string) error { return schedule.Locate(spec.Name, in.RawBody, field, problem) }
	missing, err := s.checkSchedulePlan(ctx, spec, at)
	if err != nil {
		return nil, err
	}
	due, ok := spec.Next(now)
	if !ok {
		due = now
	}
	resolved, err := spec.Resolve(due)
	if err != nil {
		return nil, kernel.BadInput(err.Error())
	}
	set := settingsOfFire(spec, &resolved, schedulestore.FireKey{Schedule: spec.Name, Due: due,
		Kind: schedulestore.FireDue})
	if err := set.Validate(); err != nil {
		return nil, err
	}
	unreached, err := s.checkScheduleItems(&resolved.Items, due, at)
	return append(append(warnings, missing...), unreached...), err
}

// checkSchedulePlan looks whether the plan is there and takes the settings.
func (s *scheduleRoutes) checkSchedulePlan(
	ctx context.Context, spec *schedule.Spec, at func(field, problem string) error,
) (warnings []string, err error) {
	set := runs.RunSettings{Endpoint: spec.Endpoint, PlanRef: spec.Plan}
	if spec.Plan != "" {
		if _, _, err := runs.ParsePlanRef(spec.Plan); err != nil {
			return nil, at("plan", err.Error())
		}
	}
	plan, _, err := s.starts.PlanOf(ctx, &set)
	if errors.Is(err, workqueue.ErrNotFound) {
		return []string{fmt.Sprintf("plan: %s is not on record; put it there before the schedule is due: "+
			"tranche plan apply FILE", spec.Plan)}, nil
	}
	if bad, ok := errors.AsType[*kernel.InputError](err); ok {
		return nil, at(map[bool]string{true: "plan", false: "endpoint"}[spec.Plan != ""], bad.Error())
	}
	if err != nil {
		return nil, err
	}
	_, err = spec.Settings.Over(plan)
	if field, ok := errors.AsType[*gather.FieldError](err); ok {
		return nil, at("settings", field.Field+": "+field.Problem)
	}
	return nil, err
}

// checkScheduleItems looks whether this server could read the items now. Other nodes may have other files.
func (s *scheduleRoutes) checkScheduleItems(
	items *schedule.Items, due time.Time, at func(field, problem string) error,
) (warnings []string, err error) {
	switch {
	case items.File != "":
		if err := schedules.CheckPath(items.File); err != nil {
			return nil, at("items.file", err.Error())
		}
		var file io.Closer
		if file, err = s.config.Schedules.Files.Open(items.File); err == nil {
			return nil, file.Close()
		}
	case items.URL != "":
		u, wrong := schedules.CheckURL(items.URL)
		if wrong != nil {
			return nil, at("items.url", wrong.Error())
		}
		if s.config.Schedules.CheckURL != nil {
			if err = s.config.Schedules.CheckURL(u); err != nil {
				err = fmt.Errorf("%s://%s: %w", u.Scheme, u.Host, err)
			}
		}
	case items.SQL != nil && s.config.Connections == nil:
		err = runs.UnknownSource(items.SQL.Source)
	case items.SQL != nil:
		_, err = s.config.Connections.Source(items.SQL.Source)
	}
	if err != nil {
		return []string{fmt.Sprintf("items: as things are, the run of %s could not be started: %s",
			due.UTC().Format(time.RFC3339), err)}, nil
	}
	return nil, nil
}
