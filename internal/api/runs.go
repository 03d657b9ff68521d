package api

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

// RunList is the answer to a list.
type RunList struct {
	Runs []inspect.RunSummary `json:"runs"`
	Next string               `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// RunDocument is a run with what a person should know about it.
type RunDocument struct {
	inspect.RunView
	Warnings []string `json:"warnings"`
}

// ErrorGroups is the answer to a question for errors.
type ErrorGroups struct {
	Run workqueue.RunID `json:"run"`
	inspect.Errors
}

// KeyItems is the items of one key: one, unless the run allows duplicates.
type KeyItems struct {
	Run   workqueue.RunID    `json:"run"`
	Items []inspect.ItemView `json:"items" doc:"100 at the most"`
	Next  *workqueue.Ordinal `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// runConfig is what the routes of runs need beside the kernel.
type runConfig struct {
	// Health says of runs in a list what is amiss.
	Health *health.Watch
	// RestsUntil returns until when the node is to ask nothing of what paces a step; nil: it is not known.
	RestsUntil func(paceKey string) time.Time
}

// runRoutes show runs, and follow them.
type runRoutes struct {
	*Kernel

	config    runConfig
	hubs      *live.Hubs // of the runs that are followed
	topics    *live.Topics
	timelines recent[report.TimelineRequest, *report.Timeline]
}

// newRuns returns the routes that show runs.
func newRuns(k *Kernel, config runConfig) (*runRoutes, error) {
	s := &runRoutes{Kernel: k, config: config}
	return s, s.watchRuns()
}

// Register adds the routes.
func (s *runRoutes) Register(api huma.API) {
	s.registerRuns(api)
	s.registerLive(api)
}

func (s *runRoutes) registerRuns(api huma.API) {
	register(s.Kernel, api, broadIf(get("list-runs", "/runs", "List runs, newest first"), "q", "endpoint"), s.listRuns)
	registerTagged(s.Kernel, api, get("get-run", "/runs/{run}", "Everything about a run"), s.getRun,
		func(in *runInput) *Known { return &in.Known }, runTag)
	registerTagged(s.Kernel, api, held(get("get-item", "/runs/{run}/items/{key}", "An item, with every attempt")), s.getItem,
		func(in *itemInput) *Known { return &in.Known }, itemsTag)
	s.registerExplain(api)
	s.registerResult(api)
}

type listInput struct {
	State  []string `query:"state" enum:"loading,running,paused,completed,cancelled" doc:"only runs in one of these"`
	Result string   `query:"result" enum:"failed,ok" doc:"only completed runs, with failures that nobody accepted or none"`
	Before string   `query:"before" doc:"only runs older than this id"`
	Limit  int      `query:"limit" minimum:"1" maximum:"500" default:"50"`

	Search   string    `query:"q" doc:"words in the name, the plan, the source or who started it, or how the id begins"`
	Plan     string    `query:"plan" maxLength:"200" doc:"only runs of this plan, like year-end, or year-end@3"`
	Endpoint string    `query:"endpoint" maxLength:"320" doc:"only runs with a step that asks this"`
	Since    time.Time `query:"since" doc:"only runs that were made then or later"`
	Until    time.Time `query:"until" doc:"only runs that were made before"`
}

// Bounds of a search.
const (
	maxSearch = 200 // bytes
	maxWords  = 10
)

// filter is what is asked for.
func (in *listInput) filter() (inspect.RunFilter, error) {
	filter := inspect.RunFilter{States: in.State, Limit: in.Limit, Words: strings.Fields(in.Search), Plan: in.Plan,
		Endpoint: in.Endpoint, Since: in.Since, Until: in.Until, Result: in.Result}
	for _, t := range []struct{ field, value string }{{"q", in.Search}, {"plan", in.Plan}, {"endpoint", in.Endpoint}} {
		if err := checkText(t.field, t.value, maxSearch+maxTarget); err != nil {
			return filter, err
		}
	}
	if len(in.Search) > maxSearch || len(filter.Words) > maxWords {
		return filter, badInput(fmt.Sprintf("q has %d words in %d bytes; give %d words in %d bytes at most",
			len(filter.Words), len(in.Search), maxWords, maxSearch))
	}
	if name, number, versioned := strings.Cut(in.Plan, "@"); versioned {
		version, err := strconv.Atoi(number)
		if err != nil || version < 1 || version > maxPlanVersion {
			return filter, badInput(fmt.Sprintf("plan: %q is no version; versions count from 1, like %s@1",
				cut(number, maxEchoed), cut(name, maxEchoed)))
		}
		filter.Plan, filter.Version = name, version
	}
	if !in.Since.IsZero() && !in.Until.IsZero() && !in.Since.Before(in.Until) {
		return filter, badInput("since is not before until; give the earlier time first")
	}
	if in.Before != "" {
		if err := filter.Before.UnmarshalText([]byte(in.Before)); err != nil {
			return filter, badInput("before is not the id of a run; use the value of next of the page before")
		}
	}
	return filter, nil
}

func (s *runRoutes) listRuns(ctx context.Context, in *listInput) (RunList, error) {
	filter, err := in.filter()
	if err != nil {
		return RunList{}, err
	}
	runs, more, err := inspect.New(s.store).RunsPage(ctx, filter)
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
	RunPath
	Known
}

func (s *runRoutes) getRun(ctx context.Context, in *runInput) (RunDocument, error) {
	id, err := inspect.New(s.store).Resolve(ctx, in.Run)
	if err != nil {
		return RunDocument{}, err
	}
	return s.runDocument(ctx, id)
}

func (s *runRoutes) runDocument(ctx context.Context, id workqueue.RunID) (RunDocument, error) {
	view, err := inspect.New(s.store).Run(ctx, id)
	if err != nil {
		return RunDocument{}, err
	}
	return RunDocument{RunView: *view, Warnings: s.Warnings(ctx, view)}, nil
}

type itemInput struct {
	RunPath
	Known
	Key   string `path:"key" doc:"the item's key"`
	After int32  `query:"after" minimum:"-1" maximum:"2147483647" default:"-1" doc:"value of next of the page before"`
}

func (s *runRoutes) getItem(ctx context.Context, in *itemInput) (KeyItems, error) {
	id, err := inspect.New(s.store).Resolve(ctx, in.Run)
	if err != nil {
		return KeyItems{}, err
	}
	items, more, err := inspect.New(s.store).ItemsAfter(ctx, id, in.Key, workqueue.Ordinal(in.After))
	out := KeyItems{Run: id, Items: items}
	if more {
		out.Next = &items[len(items)-1].Ordinal
	}
	return out, err
}
