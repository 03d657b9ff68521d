package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// RunPath is the run that an operation is about.
type RunPath struct {
	Run string `path:"run" doc:"an id, a piece of one (4 digits or more), a name, or last" example:"last"`
}

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

// answer is an answer with a JSON body.
type answer[T any] struct{ Body T }

// register adds an operation whose errors are the package's. What only looks has to be done in time.
func register[In, Out any](
	s *Server, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
) {
	registerWithin(s, api, op, s.config.LookTimeout, handle)
}

func registerWithin[In, Out any](
	s *Server, api huma.API, op huma.Operation, limit time.Duration,
	handle func(ctx context.Context, in *In) (Out, error),
) {
	op.BodyReadTimeout = -1 // timedBody sees to it
	huma.Register(api, op, func(ctx context.Context, in *In) (*answer[Out], error) {
		if op.Method == http.MethodGet {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, errTooSlow)
			defer cancel()
		}
		out, err := handle(ctx, in)
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		return &answer[Out]{Body: out}, nil
	})
}

// get is an operation that only looks: every viewer may do it.
func get(id, path, summary string) huma.Operation {
	return byViewer(huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary})
}

func (s *Server) registerRuns(api huma.API) {
	register(s, api, broadIf(get("list-runs", "/runs", "List runs, newest first"), "q", "endpoint"), s.listRuns)
	registerTagged(s, api, get("get-run", "/runs/{run}", "Everything about a run"), s.getRun,
		func(in *runInput) *Known { return &in.Known }, runTag)
	registerTagged(s, api, held(get("get-item", "/runs/{run}/items/{key}", "An item, with every attempt")), s.getItem,
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
		return filter, &inputError{fmt.Sprintf("q has %d words in %d bytes; give %d words in %d bytes at most",
			len(filter.Words), len(in.Search), maxWords, maxSearch)}
	}
	if name, number, versioned := strings.Cut(in.Plan, "@"); versioned {
		version, err := strconv.Atoi(number)
		if err != nil || version < 1 || version > maxPlanVersion {
			return filter, &inputError{fmt.Sprintf("plan: %q is no version; versions count from 1, like %s@1",
				cut(number, maxEchoed), cut(name, maxEchoed))}
		}
		filter.Plan, filter.Version = name, version
	}
	if !in.Since.IsZero() && !in.Until.IsZero() && !in.Since.Before(in.Until) {
		return filter, &inputError{"since is not before until; give the earlier time first"}
	}
	if in.Before != "" {
		if err := filter.Before.UnmarshalText([]byte(in.Before)); err != nil {
			return filter, &inputError{"before is not the id of a run; use the value of next of the page before"}
		}
	}
	return filter, nil
}

func (s *Server) listRuns(ctx context.Context, in *listInput) (RunList, error) {
	filter, err := in.filter()
	if err != nil {
		return RunList{}, err
	}
	runs, more, err := inspect.New(s.store).RunsPage(ctx, filter)
	if err != nil {
		return RunList{}, err
	}
	if err := s.health.Stand(ctx, runs); err != nil {
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

func (s *Server) getRun(ctx context.Context, in *runInput) (RunDocument, error) {
	id, err := inspect.New(s.store).Resolve(ctx, in.Run)
	if err != nil {
		return RunDocument{}, err
	}
	return s.runDocument(ctx, id)
}

func (s *Server) runDocument(ctx context.Context, id workqueue.RunID) (RunDocument, error) {
	view, err := inspect.New(s.store).Run(ctx, id)
	if err != nil {
		return RunDocument{}, err
	}
	return RunDocument{RunView: *view, Warnings: s.warnings(ctx, view)}, nil
}

type itemInput struct {
	RunPath
	Known
	Key   string `path:"key" doc:"the item's key"`
	After int32  `query:"after" minimum:"-1" maximum:"2147483647" default:"-1" doc:"value of next of the page before"`
}

func (s *Server) getItem(ctx context.Context, in *itemInput) (KeyItems, error) {
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
