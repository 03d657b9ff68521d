package api

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

const maxPlanBody = 1 << 20 // larger than any plan, to report that one is too large

// PlanList is a page of plans.
type PlanList struct {
	Plans []inspect.PlanSummary `json:"plans"`
	Next  string                `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// PlanVersions is a page of a plan's versions.
type PlanVersions struct {
	Name     string                `json:"name"`
	Versions []inspect.PlanSummary `json:"versions"`
	Next     int                   `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

const applyDescription = `The body is a plan in YAML, or in JSON. Its name field, or else the query, names it. A
plan equal to the newest version changes nothing; any other becomes the next version. With If-Match, the ETag of the
plan that you read, it is refused (412) if another version has been applied since. Versions never change; runs keep the
one that they started with.`

type planRoutes struct{ *apicore.Core }

func (s *planRoutes) Register(api huma.API) {
	plans := inspect.New(s.Store)
	registerDocuments(s.Core, api, &documents[PlanList, *inspect.PlanView]{
		noun: "plan", scope: apicore.Anywhere, most: maxPlanBody,
		lists: "List saved plans", gets: "The newest version of a plan",
		applies: documentWords{"Save a plan", applyDescription},
		list: func(ctx context.Context, after string, limit int) (list PlanList, err error) {
			plans, more, err := plans.Plans(ctx, inspect.PlanFilter{After: after, Limit: limit})
			if list.Plans = plans; more {
				list.Next = plans[len(plans)-1].Name
			}
			return list, err
		},
		get:     func(ctx context.Context, name string) (*inspect.PlanView, error) { return plans.Plan(ctx, name, 0) },
		version: func(v **inspect.PlanView) int { return (*v).Version },
		apply:   s.apply,
	})
	apicore.Register(s.Core, api, apicore.FourEyes("delete", apicore.ByAdmin(apicore.Delete("delete-plan", "/plans/{name}",
		"Delete a plan, in all versions",
		"Runs keep what they started with. Applied again, the plan has the next version."))), s.deletePlan)
	apicore.Register(s.Core, api, apicore.Get("list-plan-versions", "/plans/{name}/versions",
		"List the versions of a plan, newest first"), s.listPlanVersions)
	apicore.Register(s.Core, api, apicore.Get("get-plan-version", "/plans/{name}/versions/{version}",
		"One version of a plan"), s.getPlanVersion)
}

func (s *planRoutes) apply(ctx context.Context, in *documentText) (none workqueue.AppliedDocument, err error) {
	plan, err := gather.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	spec, err := json.Marshal(plan)
	if err != nil {
		return none, fmt.Errorf("write plan %s: %w", plan.Name, err)
	}
	return start.New(s.Store).ApplyPlan(ctx, in.document(plan.Name, spec), in.Actor.Name)
}

type planVersionInput struct {
	DocumentPath
	Version int `path:"version" minimum:"1" maximum:"2147483647"`
}

func (s *planRoutes) getPlanVersion(ctx context.Context, in *planVersionInput) (*inspect.PlanView, error) {
	view, err := inspect.New(s.Store).Plan(ctx, in.Document, in.Version)
	return view, apicore.Seen(err, apicore.SeePlans)
}

type planVersionsInput struct {
	DocumentPath
	Before int `query:"before" minimum:"0" maximum:"2147483647" doc:"only versions before this one"`
	Limit  int `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

func (s *planRoutes) listPlanVersions(ctx context.Context, in *planVersionsInput) (PlanVersions, error) {
	versions, more, err := inspect.New(s.Store).Plans(ctx, inspect.PlanFilter{Name: in.Document, Before: in.Before,
		Limit: in.Limit})
	if err != nil {
		return PlanVersions{}, apicore.Seen(err, apicore.SeePlans)
	}
	list := PlanVersions{Name: in.Document, Versions: versions}
	if more {
		list.Next = versions[len(versions)-1].Version
	}
	return list, nil
}

func (s *planRoutes) deletePlan(ctx context.Context, in *DocumentChange) (workqueue.ControlledDocument, error) {
	out, err := start.New(s.Store).DeletePlan(ctx, in.Document, in.Name)
	return out, apicore.Seen(err, apicore.SeePlans)
}
