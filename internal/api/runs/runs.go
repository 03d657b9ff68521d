// Package runs has the API's operations on runs: start and open, show and follow, explain, export and compare, pause,
// cancel, approve, rerun, reset, accept, correct and delete.
//
// Errors name the input, the place and the remedy; [apicore.Register] turns them into answers. A [Starts] is safe for
// concurrent use.
package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/start"
)

// RunList is a page of runs.
type RunList struct {
	Runs []inspect.RunSummary `json:"runs"`
	Next string               `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// RunDocument is a run with its warnings.
type RunDocument struct {
	inspect.RunView
	Warnings []string `json:"warnings"`
}

// ErrorGroups is a run's errors in groups.
type ErrorGroups struct {
	Run workqueue.RunID `json:"run"`
	inspect.Errors
}

// KeyItems is the items of one key: one, unless the run allows duplicates.
type KeyItems struct {
	Run   workqueue.RunID    `json:"run"`
	Items []inspect.ItemView `json:"items" doc:"100 at most"`
	Next  *workqueue.Ordinal `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// Engine starts, changes and controls runs.
type Engine interface {
	Start(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error) (start.Loaded, error)
	OpenRun(ctx context.Context, req start.OpenRequest) (start.Opened, error)
	Add(ctx context.Context, req start.AddRequest) (start.Added, error)
	SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error)

	Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error)
	Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error)
	Correct(ctx context.Context, req redo.CorrectRequest) (redo.Corrected, error)

	SetRun(ctx context.Context, c controlstore.RunChange) (controlstore.RunChanged, error)
	Pause(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)
	Resume(ctx context.Context, c controlstore.Control, maxFailed *string) (controlstore.Controlled, error)
	Approve(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)
	Cancel(ctx context.Context, c controlstore.Control) (controlstore.Cancelled, error)
}

// Config is what the operations on runs need in addition to the core.
type Config struct {
	Engine Engine

	// Health reports problems of the runs in a list; Whole has full lists.
	Health, Whole *health.Watch
	// RestsUntil returns until when the node sends nothing to a pace key; nil: unknown.
	RestsUntil func(paceKey string) time.Time
	// Connections are the sources that items may be queried from; nil: none.
	Connections *connections.Connections
	// SpoolDir keeps uploads and tables that cannot be streamed. Empty: the system's directory for temporary files.
	SpoolDir string
	// BasePath is the path prefix in browsers.
	BasePath string
}

// Routes show and follow runs.
type Routes struct {
	*apicore.Core

	config Config
	hubs   *live.Hubs // of followed runs

	mu     sync.Mutex
	topics map[string]*live.Topics // by scope
	closed bool

	timelines recent[report.TimelineRequest, *report.Timeline]
}

// New returns the operations on runs.
func New(k *apicore.Core, config Config) (*Starts, error) {
	s := &Routes{Core: k, config: config}
	return &Starts{Routes: s, Spool: newSpoolRoom(config.SpoolDir)}, s.watchRuns()
}

// Register adds all operations.
func (s *Starts) Register(api huma.API) {
	s.registerRuns(api)
	s.registerPlanes(api)
	s.registerGroups(api)
	s.registerEvents(api)
	s.registerTopics(api)
	s.registerItems(api)
	s.registerStart(api)
	s.registerOpen(api)
	exports{s}.register(api)
	changes{s}.register(api)
}

func (s *Routes) registerRuns(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.ByWatcher(apicore.BroadIf(
		apicore.Get("list-runs", "/runs", "List runs"), "q", "endpoint"))), s.listRuns)
	apicore.RegisterTagged(s.Core, api, apicore.ByWatcher(apicore.Get("get-run", "/runs/{run}",
		"Everything about a run")), s.getRun, runTag)
	apicore.RegisterTagged(s.Core, api, apicore.ReadsItems(apicore.Held(apicore.Get("get-item",
		"/runs/{run}/items/{key}", "An item, with every attempt"))), s.getItem, itemsTag)
	op := apicore.ScansRun(apicore.Get("get-forecast", "/runs/{run}/forecast",
		"Forecast the end of a run, unchanged and with changes"))
	op.Description = "The first variant is the run unchanged; then each change alone, and all of them together. " +
		"Nothing is changed. The service is assumed to keep its speed with more requests in flight, unless " +
		"requests wait for it already. A change is STEP.in_flight=32, STEP.chunk=200, STEP.rate=50, STEP.budget=16 (of its " +
		"endpoint), STEP.instances=6 (of its service), rate=50 (of each step), priority=5, or without=RUN."
	apicore.Register(s.Core, api, op, func(ctx context.Context, in *forecastInput) (out Forecasts, err error) {
		if workqueue.Namespaces(ctx) != nil && slices.ContainsFunc(in.Change, func(change string) bool {
			return strings.HasPrefix(change, "without=") // it reports other runs
		}) {
			return out, apicore.BadInput("change: without=RUN needs a role in the whole installation; leave it out")
		}
		found, err := inspect.New(s.Store).Suppose(ctx, in.ID, in.Change)
		if err != nil {
			return out, err
		}
		one := []inspect.RunSummary{found.Run}
		if err := s.config.Health.Stand(ctx, one); err != nil {
			return out, err
		}
		for i := range found.Variants {
			if one[0].Blocker != nil { // for any change
				found.Variants[i].Forecast.Block(one[0].Blocker.Text)
				found.Variants[i].Steps = found.Variants[i].Steps[:0]
			}
		}
		return Forecasts{in.ID, found.At, found.Variants}, nil
	})
	s.registerExplain(api)
	s.registerResult(api)
}

type forecastInput struct {
	apicore.RunPath
	apicore.Known
	Change []string `query:"change,explode" maxItems:"10" doc:"what to suppose, like send.in_flight=32"`
}

// Forecasts predicts when a run will end, unchanged and with changes.
type Forecasts struct {
	Run      workqueue.RunID   `json:"run"`
	At       time.Time         `json:"at" doc:"the database's time of this answer"`
	Variants []inspect.Variant `json:"variants" nullable:"false"`
}

type listInput struct {
	inspect.RunFilter

	Before    string `query:"before" doc:"only runs that follow this ID in the list"`
	Search    string `query:"q" doc:"words in the name, plan, source or starter, or part of an ID (4 digits or more, or its start)"`
	Plan      string `query:"plan" maxLength:"200" doc:"only runs of this plan, like year-end, or year-end@3"`
	Attention bool   `query:"attention" doc:"only runs that wait for a person: paused, stalled, at an approval, or late"`
}

func (in *listInput) Resolve(ctx huma.Context) []error {
	return apicore.ZeroTimes(ctx, "since", "until")
}

// Limits on a search.
const (
	maxSearch = 200 // bytes
	maxWords  = 10
)

func (in *listInput) filter() (inspect.RunFilter, error) {
	filter := in.RunFilter
	filter.Words, filter.Plan = strings.Fields(in.Search), in.Plan
	if in.Sort != inspect.SortNewest && (in.Attention || in.Fold) {
		return filter, apicore.BadInput("sort does not go with attention or fold: both are newest first; leave it out")
	}
	plain := listInput{RunFilter: inspect.RunFilter{Fold: true, Sort: in.Sort, Limit: in.Limit}, Before: in.Before}
	if in.Fold && !reflect.DeepEqual(*in, plain) {
		return filter, apicore.BadInput("fold goes with before and limit only; leave out fold, or the rest")
	}
	if err := in.checkTexts(len(filter.Words)); err != nil {
		return filter, err
	}
	if name, number, versioned := strings.Cut(in.Plan, "@"); versioned {
		version, err := planVersion("plan", name, number)
		if err != nil {
			return filter, err
		}
		filter.Plan, filter.Version = name, version
	}
	if !in.Since.IsZero() && !in.Until.IsZero() && !in.Since.Before(in.Until) {
		return filter, apicore.BadInput("since is not before until; give the earlier time first")
	}
	if in.Before != "" {
		if err := filter.Before.UnmarshalText([]byte(in.Before)); err != nil {
			return filter, apicore.BadInput("before is not the id of a run; use the value of next of the page before")
		}
	}
	return filter, nil
}

func (in *listInput) checkTexts(words int) error {
	for _, t := range []struct{ field, value string }{{"q", in.Search}, {"plan", in.Plan}, {"endpoint", in.Endpoint},
		{"schedule", in.Schedule}} {
		if err := apicore.CheckText(t.field, t.value, maxSearch+apicore.MaxTarget); err != nil {
			return err
		}
	}
	if len(in.Search) > maxSearch || words > maxWords {
		return apicore.BadInput(fmt.Sprintf("q has %d words in %d bytes; give %d words in %d bytes at most",
			words, len(in.Search), maxWords, maxSearch))
	}
	return nil
}

func (s *Routes) listRuns(ctx context.Context, in *listInput) (RunList, error) {
	filter, err := in.filter()
	if err != nil {
		return RunList{}, err
	}
	if in.Attention {
		if filter.Attention, err = s.config.Health.Stalled(ctx); err != nil {
			return RunList{}, err
		}
	}
	runs, more, err := inspect.New(s.Store).RunsPage(ctx, filter)
	if errors.Is(err, workqueue.ErrNotFound) {
		err = apicore.BadInput("before: the run " + in.Before + " was deleted; start with the first page")
	}
	if err != nil {
		return RunList{}, err
	}
	if err := s.config.Health.Stand(ctx, runs); err != nil {
		return RunList{}, err
	}
	list := RunList{Runs: runs}
	if more {
		list.Next = runs[len(runs)-1].ID.String()
	}
	return list, nil
}

type runInput struct {
	apicore.RunPath
	apicore.Known
}

func (s *Routes) getRun(ctx context.Context, in *runInput) (RunDocument, error) {
	run, err := s.runDocument(ctx, in.ID)
	if !apicore.Allows(ctx, access.Viewer) { // what may hold data
		run.Params, run.Spec, run.IdempotencyKey, run.Warnings = map[string]string{}, json.RawMessage("{}"), "", []string{}
	}
	return run, err
}

func (s *Routes) runDocument(ctx context.Context, id workqueue.RunID) (RunDocument, error) {
	view, err := inspect.New(s.Store).ForecastRun(ctx, id)
	if err != nil {
		return RunDocument{}, err
	}
	one := []inspect.RunSummary{view.RunSummary}
	if err := s.config.Health.Stand(ctx, one); err != nil {
		return RunDocument{}, err
	}
	obstacles := s.obstacles(ctx, view) // of this moment
	if len(obstacles) > 0 {
		view.Forecast.Block(obstacles[len(obstacles)-1])
	}
	return RunDocument{RunView: *view, Warnings: warnings(view, obstacles)}, nil
}

type itemInput struct {
	apicore.RunPath
	apicore.Known
	Key   string `path:"key" doc:"the item's key"`
	After int32  `query:"after" minimum:"-1" maximum:"2147483647" default:"-1" doc:"next of the previous page"`
}

func (s *Routes) getItem(ctx context.Context, in *itemInput) (KeyItems, error) {
	items, more, err := inspect.New(s.Store).ItemsAfter(ctx, in.ID, in.Key, workqueue.Ordinal(in.After))
	out := KeyItems{Run: in.ID, Items: items}
	if more {
		out.Next = &items[len(items)-1].Ordinal
	}
	return out, apicore.Seen(err, "tranche run items "+in.ID.String())
}

// RunHistory is the history of a run.
type RunHistory struct {
	Entries []report.HistoryEntry `json:"entries" nullable:"false" doc:"newest first, 500 at most"`
}

// RunNote is a note on a run.
type RunNote struct {
	Text string `json:"text" minLength:"1" maxLength:"2000"`
}

func (s *Routes) getHistory(ctx context.Context, in *runInput) (RunHistory, error) {
	entries, err := report.New(s.Store).History(ctx, in.ID)
	return RunHistory{entries}, err
}

func (s *Routes) note(ctx context.Context, in *runChange[RunNote]) (RunHistory, error) {
	if err := controlstore.New(s.Store).Note(ctx, in.ID, in.Body.Text, in.Name); err != nil {
		return RunHistory{}, err
	}
	entries, err := report.New(s.Store).History(ctx, in.ID)
	return RunHistory{entries}, err
}

type itemsInput struct {
	apicore.RunPath
	inspect.ItemRange
}

// Resolve refuses values beyond all ordinals, which would be truncated to 32 bits.
func (in *itemsInput) Resolve(ctx huma.Context) []error {
	for _, name := range []string{"from", "to", "after"} {
		if n, err := strconv.ParseInt(ctx.Query(name), 10, 64); err == nil && n > math.MaxInt32 {
			return []error{&huma.ErrorDetail{Message: "expected number <= 2147483647", Location: "query." + name, Value: n}}
		}
	}
	return nil
}

// registerItems adds what reads much of one run.
func (s *Routes) registerItems(api huma.API) {
	op := apicore.ReadsMany(apicore.Get("list-items", "/runs/{run}/items", "Items of a range, in order"))
	op.Description = "The items from one ordinal to another, with their states as in the planes. An item's history " +
		"is at /runs/{run}/items/{key}."
	apicore.Register(s.Core, api, op, s.listItems)
	op = apicore.ReadsMany(apicore.Get("list-slices", "/runs/{run}/slices",
		"In-flight and scheduled requests, and who holds each"))
	op.Description = "A slice is one request for a chunk of items. claimed: a node makes the request, or does the work " +
		"itself; sent: it is with a service, or on its way; scheduled: it waits to be retried. They are sorted by ID, " +
		"which has no meaning."
	apicore.Register(s.Core, api, op, s.listSlices)
	op = apicore.ReadsMany(apicore.ByWatcher(
		apicore.Get("get-timeline", "/runs/{run}/timeline", "The progress of a run over time")))
	op.Description = "Items done and failed, requests and their durations, in equal intervals, " +
		"from the start of the current generation until now or the end of the run. Items count where their last request " +
		"of the generation ended. It may be two seconds old."
	apicore.Register(s.Core, api, op, s.getTimeline)
	op = apicore.ReadsMany(apicore.Get("get-history", "/runs/{run}/history", "What happened to a run"))
	op.Description = "What people and nodes did to it, its ends, notes, breakers of its endpoints that opened and " +
		"closed, versions of services that first answered, and alerts sent about it."
	apicore.Register(s.Core, api, op, s.getHistory)
	apicore.Register(s.Core, api, apicore.Post("note-run", "/runs/{run}/notes",
		"Add a note to a run",
		"Shown with the run, and in the audit log as the reason of its entry."), s.note)
}

func (s *Routes) listItems(ctx context.Context, in *itemsInput) (*inspect.ItemRows, error) {
	if in.To < in.From {
		return nil, apicore.BadInput("to lies before from; both are ordinals, and both are included")
	}
	in.ItemRange.Run = in.ID
	rows, err := inspect.New(s.Store).ItemsIn(ctx, in.ItemRange)
	return rows, apicore.Seen(err, "tranche run show "+in.ID.String())
}

type slicesInput struct {
	apicore.RunPath
	inspect.LiveFilter

	After string `query:"after" doc:"the ID of a slice: only those after it"`
}

func (s *Routes) listSlices(ctx context.Context, in *slicesInput) (*inspect.LiveSlices, error) {
	if in.After != "" {
		if err := in.LiveFilter.After.UnmarshalText([]byte(in.After)); err != nil {
			return nil, apicore.BadInput("after is not the id of a slice; use the value of next of the page before")
		}
	}
	in.LiveFilter.Run = in.ID
	return inspect.New(s.Store).LiveSlices(ctx, in.LiveFilter)
}

// runTag returns a weak ETag, without what only the clock changes.
func runTag(run *RunDocument) (string, error) {
	still := *run
	still.At, still.Seconds, still.Forecast = time.Time{}, 0, nil
	sum, err := apicore.PrintOf(&still)
	return `W/"` + sum + `"`, err
}

func itemsTag(items *KeyItems) (string, error) {
	sum, err := apicore.PrintOf(items)
	return `"` + sum + `"`, err
}
