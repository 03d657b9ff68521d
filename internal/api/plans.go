package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	maxPlanBody = 1 << 20 // a plan is smaller; this is what is read to say so
)

// PlanPath is the plan on record that an operation is about.
type PlanPath struct {
	Plan string `path:"name" doc:"a plan's name"`
}

// PlanList is the answer to a list of plans.
type PlanList struct {
	Plans []inspect.PlanSummary `json:"plans"`
	Next  string                `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// PlanVersions is the answer to a list of a plan's versions.
type PlanVersions struct {
	Name     string                `json:"name"`
	Versions []inspect.PlanSummary `json:"versions"`
	Next     int                   `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

const applyDescription = `The body is a plan in YAML, or in JSON. Its name field, or else the query, names it. What is
the same as the newest version changes nothing; anything else becomes the next version. With If-Match, the ETag of the
plan as it was read, nothing is applied when someone has applied another version meanwhile (412).
Versions never change, and runs keep the one that they started with.`

// planRoutes keep plans on record.
type planRoutes struct{ *kernel.Kernel }

// Register adds the routes.
func (s *planRoutes) Register(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Get("list-plans", "/plans",
		"List plans on record by name, each in its newest version"), s.listPlans)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "apply-plan", Method: http.MethodPost, Path: "/plans", Summary: "Put a plan on record",
		Description: applyDescription, MaxBodyBytes: maxPlanBody,
	}), s.applyPlan)
	kernel.RegisterTagged(s.Kernel, api, kernel.Get("get-plan", "/plans/{name}", "The newest version of a plan"),
		s.getPlan, planTag)
	kernel.Register(s.Kernel, api, kernel.ByAdmin(huma.Operation{
		OperationID: "delete-plan", Method: http.MethodDelete, Path: "/plans/{name}",
		Summary:     "Take a plan off the record, in all its versions",
		Description: "Runs keep what they started with. Applied again, the plan has the next version.",
	}), s.deletePlan)
	kernel.Register(s.Kernel, api, kernel.Get("list-plan-versions", "/plans/{name}/versions",
		"List the versions of a plan, newest first"),
		s.listPlanVersions)
	kernel.Register(s.Kernel, api, kernel.Get("get-plan-version", "/plans/{name}/versions/{version}",
		"One version of a plan"),
		s.getPlanVersion)
}

type applyInput struct {
	kernel.Actor
	Name    string `query:"name" doc:"the plan's name, when it does not give itself one"`
	IfMatch string `header:"If-Match" doc:"the ETag of the plan: apply only if it is still the newest version"`
	RawBody []byte `contentType:"application/yaml"`
}

func (s *planRoutes) applyPlan(ctx context.Context, in *applyInput) (start.AppliedPlan, error) {
	none := start.AppliedPlan{}
	if err := kernel.CheckText("name", in.Name, kernel.MaxNameBytes); err != nil {
		return none, err
	}
	plan, err := gather.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	spec, err := json.Marshal(plan)
	if err != nil {
		return none, fmt.Errorf("write plan %s: %w", plan.Name, err)
	}
	text := start.PlanText{Name: plan.Name, Spec: spec, Source: string(in.RawBody)}
	if in.IfMatch != "" {
		if text.Newest, err = planTagVersion(in.IfMatch); err != nil {
			return none, err
		}
	}
	applied, err := start.New(s.Store).ApplyPlan(ctx, text, in.Actor.Name)
	if moved, ok := errors.AsType[*start.PlanMovedError](err); ok {
		err = kernel.Denied(http.StatusPreconditionFailed, moved.Error())
	}
	return applied, err
}

type listPlansInput struct {
	After string `query:"after" doc:"only plans whose name follows this one"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

func (s *planRoutes) listPlans(ctx context.Context, in *listPlansInput) (PlanList, error) {
	plans, more, err := inspect.New(s.Store).Plans(ctx, inspect.PlanFilter{After: in.After, Limit: in.Limit})
	if err != nil {
		return PlanList{}, kernel.Seen(err, kernel.SeePlans)
	}
	list := PlanList{Plans: plans}
	if more {
		list.Next = plans[len(plans)-1].Name
	}
	return list, nil
}

type planInput struct {
	PlanPath
	kernel.Known
}

func (s *planRoutes) getPlan(ctx context.Context, in *planInput) (*inspect.PlanView, error) {
	view, err := inspect.New(s.Store).Plan(ctx, in.Plan, 0)
	return view, kernel.Seen(err, kernel.SeePlans)
}

type planVersionInput struct {
	PlanPath
	Version int `path:"version" minimum:"1" maximum:"2147483647"`
}

func (s *planRoutes) getPlanVersion(ctx context.Context, in *planVersionInput) (*inspect.PlanView, error) {
	view, err := inspect.New(s.Store).Plan(ctx, in.Plan, in.Version)
	return view, kernel.Seen(err, kernel.SeePlans)
}

type planVersionsInput struct {
	PlanPath
	Before int `query:"before" minimum:"0" maximum:"2147483647" doc:"only versions before this one"`
	Limit  int `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

func (s *planRoutes) listPlanVersions(ctx context.Context, in *planVersionsInput) (PlanVersions, error) {
	versions, more, err := inspect.New(s.Store).Plans(ctx, inspect.PlanFilter{Name: in.Plan, Before: in.Before,
		Limit: in.Limit})
	if err != nil {
		return PlanVersions{}, kernel.Seen(err, kernel.SeePlans)
	}
	list := PlanVersions{Name: in.Plan, Versions: versions}
	if more {
		list.Next = versions[len(versions)-1].Version
	}
	return list, nil
}

type deletePlanInput struct {
	PlanPath
	kernel.Actor
}

func (s *planRoutes) deletePlan(ctx context.Context, in *deletePlanInput) (start.DeletedPlan, error) {
	gone, err := start.New(s.Store).DeletePlan(ctx, in.Plan, in.Name)
	return gone, kernel.Seen(err, kernel.SeePlans)
}

// planTag begins with the version, which is what an apply goes by: runs that were started since change nothing that it
// could undo.
func planTag(plan **inspect.PlanView) (string, error) {
	sum, err := kernel.PrintOf(*plan)
	return fmt.Sprintf(`"%d-%s"`, (*plan).Version, sum), err
}

// planTagVersion is the version in the tag of a plan.
func planTagVersion(tag string) (int, error) {
	number, _, _ := strings.Cut(strings.Trim(strings.TrimSpace(tag), `"`), "-")
	version, err := strconv.Atoi(number)
	if err != nil || version < 1 || version > kernel.MaxPlanVersion {
		return 0, kernel.BadInput("If-Match is not the ETag of a plan; give the one that GET /plans/{name} had")
	}
	return version, nil
}
