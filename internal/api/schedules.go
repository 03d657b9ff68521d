package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

const (
	seeSchedules = "tranche schedule list"

	// maxScheduleBody is how much of a schedule is read, to report that it is too large.
	maxScheduleBody = 4 * schedule.MaxBytes
)

// ScheduleTimes lists the next due times of a schedule.
type ScheduleTimes struct {
	Name     string            `json:"name"`
	Zone     string            `json:"zone"`
	Now      time.Time         `json:"now" doc:"the database's time, after which they follow"`
	Times    []schedule.Firing `json:"times" nullable:"false"`
	Warnings []string          `json:"warnings" nullable:"false"`
}

const applyScheduleDescription = `The body is a schedule in YAML, or in JSON. Its name field, or else the query, names
it. An unchanged schedule changes nothing. A plan that is not saved, or a source that this server does not know,
only causes a warning: it may exist by the due time.`

type scheduleRoutes struct {
	*apicore.Core

	starts *runs.Starts
	engine runs.Engine
	config *Config
}

func (s *scheduleRoutes) Register(api huma.API) {
	store := schedulestore.New(s.Store)
	registerDocuments(s.Core, api, &documents[schedulestore.ScheduleList, *schedulestore.ScheduleView]{
		noun: "schedule", scope: apicore.Anywhere, most: maxScheduleBody,
		lists: "List schedules by name", gets: "A schedule",
		applies: documentWords{"Save or change a schedule", applyScheduleDescription},
		pauses: documentWords{"Pause a schedule", "Due times meanwhile are left " +
			"out, and do not count as missed. Runs continue, and run-now still works."},
		resumes: documentWords{"Resume a schedule", "It continues with the first due time after now, and with runs that " +
			"were waiting to be started."},
		drops: documentWords{"Delete a schedule", "Runs continue, and its history stays. Applied " +
			"again, it has the next version."},
		list: store.Schedules, get: store.Schedule, version: func(v **schedulestore.ScheduleView) int { return (*v).Version },
		apply: s.applySchedule, set: s.set, drop: s.set,
	})
	apicore.Register(s.Core, api, apicore.In(apicore.Into, apicore.ByOperator(huma.Operation{
		OperationID: "preview-schedule", Method: http.MethodPost, Path: "/schedules/preview",
		Summary:     "Preview due times without saving",
		Description: "The body is checked as with apply-schedule.", MaxBodyBytes: maxScheduleBody,
	})), s.previewSchedule)
	apicore.Register(s.Core, api, apicore.Get("list-schedule-times", "/schedules/{name}/next",
		"The next due times of a schedule"), s.scheduleTimes)
	apicore.Register(s.Core, api, apicore.Get("list-occurrences", "/schedules/{name}/history",
		"Past due times of a schedule, and their outcomes"), s.listOccurrences)
	apicore.Register(s.Core, api, apicore.ByOperator(huma.Operation{
		OperationID: "run-schedule-now", Method: http.MethodPost, Path: "/schedules/{name}/run-now",
		Summary:       "Start a run now",
		Description:   "The leader starts it, in addition to the due times and also if paused; its overlap policy holds.",
		DefaultStatus: http.StatusAccepted,
	}), s.runScheduleNow)
}

func nextTime(spec json.RawMessage, after time.Time) (*time.Time, error) {
	s, err := readSchedule(spec)
	if err != nil {
		return nil, err
	}
	if due, ok := s.Next(after); ok {
		return &due, nil
	}
	return nil, nil //nolint:nilnil // it is not due again
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
	apicore.Actor
	Name    string `query:"name" doc:"the schedule's name, if the document has none"`
	Count   int    `query:"count" minimum:"1" maximum:"1000" default:"20" doc:"how many due times"`
	RawBody []byte `contentType:"application/yaml"`
}

func (s *scheduleRoutes) previewSchedule(ctx context.Context, in *previewScheduleInput) (ScheduleTimes, error) {
	name := cmp.Or(in.Name, "schedule")
	if err := apicore.CheckText("name", name, apicore.MaxNameBytes); err != nil {
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
		return ScheduleTimes{}, apicore.Seen(err, seeSchedules)
	}
	spec, err := readSchedule(view.Spec)
	if err != nil {
		return ScheduleTimes{}, err
	}
	out, err := s.timesOf(ctx, spec, in.Count, []string{})
	if view.State == workqueue.DocumentPaused {
		out.Warnings = append(out.Warnings, "the schedule is paused: due times start nothing before it is resumed")
	}
	return out, err
}

func (s *scheduleRoutes) listOccurrences(
	ctx context.Context, filter *schedulestore.OccurrenceFilter,
) (schedulestore.OccurrenceList, error) {
	list, err := schedulestore.New(s.Store).Occurrences(ctx, *filter)
	return list, apicore.Seen(err, seeSchedules)
}

func (s *scheduleRoutes) runScheduleNow(ctx context.Context, in *DocumentChange) (schedulestore.Occurrence, error) {
	occurrence, err := schedulestore.New(s.Store).RunScheduleNow(ctx, in.Document, in.Name)
	s.wakeSchedules()
	return occurrence, apicore.Seen(err, seeSchedules)
}

func (s *scheduleRoutes) set(ctx context.Context, name, state, actor string) (workqueue.ControlledDocument, error) {
	defer s.wakeSchedules()
	return schedulestore.New(s.Store).SetSchedule(ctx, name, state, nextTime, actor)
}

func settingsOfOccurrence(spec *schedule.Spec, r *schedule.Resolved, key schedulestore.OccurrenceKey) runs.RunSettings {
	set := runs.RunSettings{Params: r.Params, Overrides: spec.Settings, StartSettings: runs.StartSettings{
		Endpoint: spec.Endpoint, PlanRef: spec.Plan, Key: r.Items.Key, Format: r.Items.Format,
		Name: cmp.Or(r.RunName, spec.Name), IdempotencyKey: key.RunKey(), OnDuplicate: r.Items.OnDuplicate,
	}}
	switch {
	case r.Items.File != "":
		set.Source = "file " + r.Items.File
	case r.Items.URL != "":
		set.Source = r.Items.URL
	case r.Items.SQL != nil:
		set.SQL, set.SQLSource = r.Items.SQL.Query, r.Items.SQL.Source
		set.Source = "source " + r.Items.SQL.Source
	}
	set.Source = apicore.Cut(set.Source, runs.MaxSourceBytes/4)
	return set
}

// StartOccurrence implements schedule.Starter: it does what a user's start does, for an occurrence of a schedule.
func (s *scheduleRoutes) StartOccurrence(ctx context.Context, job schedule.Job) (schedule.Started, error) {
	out := schedule.Started{}
	owner, err := identity.New(s.Store).NamespaceOf(ctx, "schedule", job.Claim.Schedule)
	if err != nil {
		return out, err
	}
	ctx = workqueue.Within(workqueue.InScope(ctx, workqueue.Scope{Into: owner}))
	resolved, err := job.Spec.Resolve(job.Claim.Due)
	if err != nil {
		return out, err
	}
	set := settingsOfOccurrence(job.Spec, &resolved, job.Claim.OccurrenceKey)
	if by := job.Claim.DoneBy; by != nil {
		set.DoneBy = new(by.UTC().Format(time.RFC3339))
	} else if job.Spec.Window.DoneBy != nil {
		set.Gentle = nil // run-now has no time to be done by
	}
	req, look, err := s.starts.Request(ctx, set, "schedule "+job.Claim.Schedule)
	if err != nil {
		return out, err
	}
	schedulestore.OfOccurrence(&req, job.Claim)
	contract, err := s.starts.ContractOf(ctx, &req)
	if err != nil {
		return out, err
	}
	rows, body, err := s.openOccurrence(ctx, &set, &resolved.Items, look)
	if err != nil {
		return out, err
	}
	defer func() {
		_ = rows.Close() // read only, nothing is lost
		_ = body.Close()
	}()
	req.Unit = rows.Unit()
	loaded, err := s.engine.Start(ctx, req, contract.Compare(rows).Items())
	if errors.Is(err, row.ErrNoRows) {
		err = &schedule.NoItemsError{Source: set.Source}
	}
	if err != nil {
		return out, err
	}
	if loaded.Existing { // the key was used by another start
		_, err = schedulestore.New(s.Store).EndOccurrence(ctx, job.Claim,
			schedulestore.OccurrenceEnd{State: schedulestore.OccurrenceStarted, Run: loaded.Run})
	}
	return schedule.Started{Run: loaded.Run, Items: loaded.Items, Existing: loaded.Existing}, err
}

func (s *scheduleRoutes) openOccurrence(
	ctx context.Context, set *runs.RunSettings, items *schedule.Items, look *gather.Items,
) (
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
		err = &schedule.NoItemsError{Source: set.Source}
	}
	if err != nil {
		return nil, nil, errors.Join(err, from.Close())
	}
	return rows, from, nil
}

// Permanent implements schedule.Starter. Errors that a user must correct are permanent, except for what may appear
// later, like a plan or a file.
func (s *scheduleRoutes) Permanent(err error) bool {
	if source, ok := errors.AsType[*schedule.SourceError](err); ok {
		return !source.Passes
	}
	if _, ok := errors.AsType[*intake.QueryError](err); ok {
		return false // its database may be unavailable
	}
	if _, ok := errors.AsType[*schedule.VariableError](err); ok {
		return true
	}
	status, found := apicore.Told(err)
	return found != nil && (status == http.StatusUnprocessableEntity || status == http.StatusForbidden)
}

// Schedules are the sources of schedules' items, in addition to those of the connections.
type Schedules struct {
	// Files is the directory of their files; nil: none.
	Files *schedule.Files
	// Web fetches items from URLs; nil: URLs are refused.
	Web *schedule.Web
	// CheckURL returns why a URL will not be fetched, as far as known beforehand; nil: unknown.
	CheckURL func(*url.URL) error
	// Wake makes the leader check for due schedules; nil: it checks at its own intervals.
	Wake func()
}

func (s *scheduleRoutes) wakeSchedules() {
	if s.config.Schedules.Wake != nil {
		s.config.Schedules.Wake()
	}
}

// checkSchedule validates what a schedule refers to. What can never work is an error at its place in the text; what
// is missing now is a warning.
func (s *scheduleRoutes) checkSchedule(ctx context.Context, spec *schedule.Spec) ([]string, error) {
	now, err := schedulestore.New(s.Store).DatabaseTime(ctx)
	if err != nil {
		return nil, err
	}
	warnings := spec.Warnings(now)
	at := func(field, problem string) error { return spec.Wrong(field, problem) }
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
		return nil, apicore.BadInput(err.Error())
	}
	set := settingsOfOccurrence(spec, &resolved, schedulestore.OccurrenceKey{Schedule: spec.Name, Due: due,
		Kind: schedulestore.OccurrenceDue})
	if err := set.Validate(); err != nil {
		return nil, err
	}
	unreached, err := s.checkScheduleItems(&resolved.Items, due, at)
	return append(append(warnings, missing...), unreached...), err
}

func (s *scheduleRoutes) checkSchedulePlan(
	ctx context.Context, spec *schedule.Spec, at func(field, problem string) error,
) (warnings []string, err error) {
	set := runs.RunSettings{StartSettings: runs.StartSettings{Endpoint: spec.Endpoint, PlanRef: spec.Plan}}
	if spec.Plan != "" {
		if _, _, err := runs.ParsePlanRef(spec.Plan); err != nil {
			return nil, at("plan", err.Error())
		}
	}
	plan, _, err := s.starts.PlanOf(ctx, &set)
	if errors.Is(err, workqueue.ErrNotFound) {
		return []string{fmt.Sprintf("plan: %s is not saved; save it before the schedule is due: "+
			"tranche plan apply FILE", spec.Plan)}, nil
	}
	if bad, ok := errors.AsType[*apicore.InputError](err); ok {
		return nil, at(map[bool]string{true: "plan", false: "endpoint"}[spec.Plan != ""], bad.Error())
	}
	if err != nil {
		return nil, err
	}
	settings := spec.Settings
	if spec.Window.DoneBy != nil {
		settings.DoneBy = new("06:00 UTC") // a start fills in the real one
	}
	_, err = settings.Over(plan)
	if field, ok := errors.AsType[*gather.FieldError](err); ok {
		return nil, at("settings", field.Field+": "+field.Problem)
	}
	return nil, err
}

// checkScheduleItems checks that this server can read the items now. Other nodes may have other files.
func (s *scheduleRoutes) checkScheduleItems(
	items *schedule.Items, due time.Time, at func(field, problem string) error,
) (warnings []string, err error) {
	switch {
	case items.File != "":
		if err := schedule.CheckPath(items.File); err != nil {
			return nil, at("items.file", err.Error())
		}
		var file io.Closer
		if file, err = s.config.Schedules.Files.Open(items.File); err == nil {
			return nil, file.Close()
		}
	case items.URL != "":
		u, wrong := schedule.CheckURL(items.URL)
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
		return []string{fmt.Sprintf("items: the run of %s would fail: %s", due.UTC().Format(time.RFC3339), err)}, nil
	}
	return nil, nil
}
