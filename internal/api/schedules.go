package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

const (
	seeSchedules = "tranche schedule list"

	// maxScheduleBody is how much of a schedule is read, to report that it is too large.
	maxScheduleBody = 4 * schedule.MaxBytes
)

// ScheduleList is a page of schedules.
type ScheduleList struct {
	Schedules []schedulestore.ScheduleSummary `json:"schedules" nullable:"false"`

	Next string `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// ScheduleTimes lists the next due times of a schedule.
type ScheduleTimes struct {
	Name     string            `json:"name"`
	Zone     string            `json:"zone"`
	Now      time.Time         `json:"now" doc:"the database's time, after which they follow"`
	Times    []schedule.Firing `json:"times" nullable:"false"`
	Warnings []string          `json:"warnings" nullable:"false"`
}

// OccurrenceList is a page of a schedule's past due times.
type OccurrenceList struct {
	Occurrences []schedulestore.Occurrence `json:"occurrences" nullable:"false"`

	Next *time.Time `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

const applyScheduleDescription = `The body is a schedule in YAML, or in JSON. Its name field, or else the query, names
it. What is the same as before changes nothing. A plan that is not saved, or a source that this server does not
know, is a warning: it may be there when the time comes.`

type scheduleRoutes struct {
	*kernel.Kernel

	starts *runs.Starts
	engine runs.Engine
	config *Config
}

func (s *scheduleRoutes) Register(api huma.API) {
	store := schedulestore.New(s.Store)
	registerDocuments(s.Kernel, api, &documents[ScheduleList, *schedulestore.ScheduleView]{
		noun: "schedule", scope: kernel.Anywhere, most: maxScheduleBody,
		lists: "List schedules by name", gets: "A schedule",
		applies: documentWords{"Save or change a schedule", applyScheduleDescription},
		pauses: documentWords{"Pause a schedule", "Due times meanwhile are left " +
			"out, and do not count as missed. Runs continue, and run-now still works."},
		resumes: documentWords{"Resume a schedule", "It continues with the first due time after now, and with runs that " +
			"were waiting to be started."},
		drops: documentWords{"Delete a schedule", "Runs continue, and its history stays. Applied " +
			"again, it has the next version."},
		list: func(ctx context.Context, after string, limit int) (ScheduleList, error) {
			list, next, err := store.Schedules(ctx, after, limit)
			return ScheduleList{list, next}, err
		},
		get: store.Schedule, version: func(v **schedulestore.ScheduleView) int { return (*v).Version },
		apply: s.applySchedule, set: s.set, drop: s.set,
	})
	kernel.Register(s.Kernel, api, kernel.In(kernel.Into, kernel.ByOperator(huma.Operation{
		OperationID: "preview-schedule", Method: http.MethodPost, Path: "/schedules/preview",
		Summary:     "Preview due times without saving",
		Description: "The body is checked as with apply-schedule.", MaxBodyBytes: maxScheduleBody,
	})), s.previewSchedule)
	kernel.Register(s.Kernel, api, kernel.Get("list-schedule-times", "/schedules/{name}/next",
		"The next due times of a schedule"), s.scheduleTimes)
	kernel.Register(s.Kernel, api, kernel.Get("list-occurrences", "/schedules/{name}/history",
		"Past due times of a schedule, and their outcomes"), s.listOccurrences)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "run-schedule-now", Method: http.MethodPost, Path: "/schedules/{name}/run-now",
		Summary:       "Start a run now",
		Description:   "The leader starts it, in addition to the due times and also if paused; its overlap policy holds.",
		DefaultStatus: http.StatusAccepted,
	}), s.runScheduleNow)
}

func nextTime(spec json.RawMessage, after time.Time) (next time.Time, ok bool, err error) {
	s, err := readSchedule(spec)
	if err != nil {
		return next, false, err
	}
	next, ok = s.Next(after)
	return next, ok, nil
}

func readSchedule(spec json.RawMessage) (*schedule.Spec, error) {
	s := &schedule.Spec{}
	if err := json.Unmarshal(spec, s); err != nil {
		return nil, fmt.Errorf("read a saved schedule: %w", err)
	}
	return s, nil
}

func (s *scheduleRoutes) applySchedule(
	ctx context.Context, in *documentText,
) (out workqueue.AppliedDocument, err error) {
	spec, warnings, err := s.read(ctx, in.Name, in.RawBody)
	if err != nil {
		return out, err
	}
	doc, err := json.Marshal(spec)
	if err != nil {
		return out, fmt.Errorf("write schedule %s: %w", spec.Name, err)
	}
	defer s.wakeSchedules()
	out, err = schedulestore.New(s.Store).ApplySchedule(ctx, schedulestore.Text{
		Document: in.document(spec.Name, doc), Zone: spec.Zone, Next: nextTime,
	}, in.Actor.Name)
	out.Warnings = warnings
	return out, err
}

func (s *scheduleRoutes) read(
	ctx context.Context, name string, text []byte,
) (spec *schedule.Spec, warnings []string, err error) {
	if spec, err = schedule.Parse(name, text); err == nil {
		warnings, err = s.checkSchedule(ctx, spec)
	}
	return spec, warnings, err
}

type previewScheduleInput struct {
	kernel.Actor
	Name    string `query:"name" doc:"the schedule's name, if the document has none"`
	Count   int    `query:"count" minimum:"1" maximum:"1000" default:"20" doc:"how many due times"`
	RawBody []byte `contentType:"application/yaml"`
}

func (s *scheduleRoutes) previewSchedule(ctx context.Context, in *previewScheduleInput) (ScheduleTimes, error) {
	name := cmp.Or(in.Name, "schedule")
	if err := kernel.CheckText("name", name, kernel.MaxNameBytes); err != nil {
		return ScheduleTimes{}, err
	}
	spec, warnings, err := s.read(ctx, name, in.RawBody)
	if err != nil {
		return ScheduleTimes{}, err
	}
	return s.timesOf(ctx, spec, in.Count, warnings)
}

func (s *scheduleRoutes) timesOf(
	ctx context.Context, spec *schedule.Spec, count int, warnings []string,
) (ScheduleTimes, error) {
	now, err := schedulestore.New(s.Store).DatabaseTime(ctx)
	if err != nil {
		return ScheduleTimes{}, err
	}
	return ScheduleTimes{Name: spec.Name, Zone: spec.Zone, Now: now, Warnings: warnings,
		Times: spec.Preview(now, count)}, nil
}

func (s *scheduleRoutes) scheduleTimes(ctx context.Context, in *struct {
	DocumentPath
	Count int `query:"count" minimum:"1" maximum:"1000" default:"20" doc:"how many due times"`
},
) (ScheduleTimes, error) {
	view, err := schedulestore.New(s.Store).Schedule(ctx, in.Document)
	if err != nil {
		return ScheduleTimes{}, kernel.Seen(err, seeSchedules)
	}
	spec, err := readSchedule(view.Spec)
	if err != nil {
		return ScheduleTimes{}, err
	}
	out, err := s.timesOf(ctx, spec, in.Count, []string{})
	if view.State == workqueue.DocumentPaused {
		out.Warnings = append(out.Warnings, "the schedule is paused: nothing is started before it is resumed")
	}
	return out, err
}

func (s *scheduleRoutes) listOccurrences(ctx context.Context, in *struct {
	DocumentPath
	State string `query:"state" enum:"due,queued,starting,started,skipped,missed,failed" doc:"only those in this state"`

	Before time.Time `query:"before" doc:"only due times before this one"`
	Limit  int       `query:"limit" minimum:"1" maximum:"500" default:"100"`
},
) (OccurrenceList, error) {
	occurrences, more, err := schedulestore.New(s.Store).Occurrences(ctx, schedulestore.OccurrenceFilter{
		Schedule: in.Document, State: schedulestore.OccurrenceState(in.State), Before: in.Before, Limit: in.Limit,
	})
	if err != nil {
		return OccurrenceList{}, kernel.Seen(err, seeSchedules)
	}
	out := OccurrenceList{Occurrences: append([]schedulestore.Occurrence{}, occurrences...)}
	if more {
		out.Next = &occurrences[len(occurrences)-1].Due
	}
	return out, nil
}

func (s *scheduleRoutes) runScheduleNow(ctx context.Context, in *DocumentChange) (schedulestore.Occurrence, error) {
	occurrence, err := schedulestore.New(s.Store).RunScheduleNow(ctx, in.Document, in.Name)
	s.wakeSchedules()
	return occurrence, kernel.Seen(err, seeSchedules)
}

func (s *scheduleRoutes) set(ctx context.Context, name, state, actor string) (workqueue.ControlledDocument, error) {
	defer s.wakeSchedules()
	return schedulestore.New(s.Store).SetSchedule(ctx, name, state, nextTime, actor)
}
