package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

// RunSettings says how to run the items of a start. Exactly one of Endpoint, Plan and PlanRef is set. The Overrides
// apply to the plan.
type RunSettings struct {
	StartSettings
	Plan     string            `json:"plan,omitempty" doc:"a plan in YAML"`
	PlanName string            `json:"plan_name,omitempty" doc:"its name, if the document has none"`
	Params   map[string]string `json:"params,omitempty"`
	gather.Overrides

	corrections string // digest of corrections to items of an earlier run; empty: none
}

// StartSettings are the members of RunSettings that a start's query has too.
type StartSettings struct {
	Endpoint       string `json:"endpoint,omitempty" query:"endpoint"`
	PlanRef        string `json:"plan_ref,omitempty" query:"plan_ref" doc:"a saved plan, like year-end or year-end@3"`
	Key            string `json:"key,omitempty" query:"key" doc:"the column or field that is the item's key; absent: key, then id, then the first column"`
	Format         string `json:"format,omitempty" query:"format" enum:"csv,ndjson,parquet" doc:"detected when absent"`
	Name           string `json:"name,omitempty" query:"name"`
	IdempotencyKey string `json:"idempotency_key,omitempty" query:"idempotency_key"`
	OnDuplicate    string `json:"on_duplicate,omitempty" query:"on_duplicate" enum:"error,skip,allow" doc:"what to do with a duplicate key" example:"error"`
	Source         string `json:"source,omitempty" query:"source" doc:"where the items come from, human-readable"`
	ItemSource
}

// StartQuery is RunSettings in the query of a start.
type StartQuery struct {
	StartSettings
	Param []string `query:"param,explode" doc:"name=value; repeatable"`
	Set   []string `query:"set,explode" doc:"a setting of one step, like compose.chunk=50; any number"`
}

// overridesQuery describes gather.Overrides as query parameters. They are parsed from the query itself, to
// distinguish absent from zero.
func overridesQuery() (params []*huma.Param) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[gather.Overrides]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous || field.Type.Kind() == reflect.Map {
			continue
		}
		p := &huma.Param{Name: name, In: "query", Description: field.Tag.Get("doc"),
			Schema: &huma.Schema{Type: huma.TypeString, Description: field.Tag.Get("doc")}}
		if example := field.Tag.Get("example"); example != "" {
			p.Example = example
		}
		if field.Type.Kind() == reflect.Slice && field.Type.Elem().Kind() == reflect.String {
			explode := true
			p.Explode, p.Schema = &explode, &huma.Schema{Type: huma.TypeArray, Nullable: true,
				Items: &huma.Schema{Type: huma.TypeString}, Description: p.Description}
		}
		params = append(params, p)
	}
	return params
}

func (in *StartQuery) settings(query url.Values) (RunSettings, error) {
	settings := RunSettings{StartSettings: in.StartSettings, Params: map[string]string{}}
	for _, p := range in.Param {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return settings, apicore.BadInput(fmt.Sprintf("param %q is not name=value", apicore.Echo(p)))
		}
		if _, twice := settings.Params[name]; twice {
			return settings, apicore.BadInput(fmt.Sprintf("param: %q is given twice; give it once", apicore.Echo(name)))
		}
		settings.Params[name] = value
	}
	for _, field := range gather.OverrideFields() {
		for _, text := range query[field] {
			if text == "" {
				continue // as if absent
			}
			if err := settings.Set(field, text); err != nil {
				return settings, BadSetting(err)
			}
		}
	}
	for _, text := range in.Set {
		if err := settings.SetStep(text); err != nil {
			return settings, BadSetting(err)
		}
	}
	return settings, nil
}

// BadSetting returns the caller's error for a setting of a run, not of its plan.
func BadSetting(err error) error {
	if field, ok := errors.AsType[*gather.FieldError](err); ok {
		return apicore.BadInput(field.Field + ": " + field.Problem)
	}
	return err
}

// Request validates the settings and returns the load and how to read the items.
func (s *Starts) Request(ctx context.Context, set RunSettings, actor string) (start.LoadRequest, *gather.Items, error) {
	if err := set.Validate(); err != nil {
		return start.LoadRequest{}, nil, err
	}
	from, plan, version, err := carrying{s}.plan(ctx, &set)
	if err == nil && plan == nil {
		plan, version, err = s.PlanOf(ctx, &set)
	}
	if err != nil {
		return start.LoadRequest{}, nil, err
	}
	if plan, err = set.Over(plan); err != nil {
		return start.LoadRequest{}, nil, BadSetting(err)
	}
	spec, err := json.Marshal(plan)
	if err != nil {
		return start.LoadRequest{}, nil, fmt.Errorf("write plan %s: %w", plan.Name, err)
	}
	failFast, err := workqueue.ParseFailFast(plan.FailFast)
	if err != nil {
		return start.LoadRequest{}, nil, fmt.Errorf("plan %s: fail_fast: %w", plan.Name, err)
	}
	steps, err := stepSpecs(plan.Ordered())
	if err != nil {
		return start.LoadRequest{}, nil, err
	}
	params := maps.Clone(set.Params)
	if params == nil {
		params = map[string]string{}
	}
	var by *time.Time
	if plan.DoneBy != "" {
		at, err := workqueue.DoneBy(plan.DoneBy, time.Now())
		if err != nil {
			return start.LoadRequest{}, nil, fmt.Errorf("plan %s: done_by: %w", plan.Name, err)
		}
		by = &at
	}
	read, only := 0, workqueue.Outcome("")
	if from != (workqueue.RunID{}) {
		if read, err = start.New(s.Store).Version(ctx, from); err != nil {
			return start.LoadRequest{}, nil, err
		}
		if states := set.states(); len(states) == 1 {
			only = states[0]
		}
	}
	return start.LoadRequest{
		Name: set.Name, Plan: plan.Name, PlanVersion: version, Spec: spec, Params: params,
		Priority: plan.Priority, DoneBy: by, Gentle: plan.Gentle, MaxFailed: plan.MaxFailed, FailFast: failFast,
		Canary:            plan.Canary,
		CanaryAutoApprove: plan.CanaryAutoApprove, Steps: steps, OnDuplicate: start.OnDuplicate(set.OnDuplicate),
		Source: set.Source, CreatedBy: actor, IdempotencyKey: set.IdempotencyKey, Session: s.Node.Session(),
		Order: orderOf(plan), FromRun: from, FromOutcome: only, FromVersion: read,
	}, &plan.Items, nil
}

// PlanOf parses the plan, loads the saved one with its version, or makes one for the endpoint.
func (s *Starts) PlanOf(ctx context.Context, set *RunSettings) (plan *gather.Plan, version int, err error) {
	chosen := 0
	for _, way := range []string{set.Endpoint, set.Plan, set.PlanRef} {
		if way != "" {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return nil, 0, apicore.BadInput("give either an endpoint or a plan: one of endpoint, plan (in YAML) and plan_ref")
	case set.Plan != "":
		plan, err = gather.Parse(cmp.Or(set.PlanName, "plan"), []byte(set.Plan))
		return plan, 0, err
	case set.PlanRef != "":
		return s.planOnRecord(ctx, set.PlanRef, set.IdempotencyKey)
	}
	plan = gather.Single(set.Endpoint)
	if err := plan.Validate(); err != nil {
		return nil, 0, BadSetting(&gather.FieldError{Field: "endpoint", Problem: problemOf(err)})
	}
	return plan, 0, nil
}

func problemOf(err error) string {
	if field, ok := errors.AsType[*gather.FieldError](err); ok {
		return field.Problem
	}
	return err.Error()
}

// planOnRecord returns the saved plan that ref names: NAME@VERSION, or NAME for the newest version. A start repeated
// with its idempotency key gets the version of the first time.
func (s *Starts) planOnRecord(ctx context.Context, ref, key string) (*gather.Plan, int, error) {
	name, version, err := ParsePlanRef(ref)
	if err != nil {
		return nil, 0, err
	}
	if version == 0 && key != "" {
		known, err := start.New(s.Store).Keyed(ctx, key)
		switch {
		case err == nil && known.Plan == name:
			version = known.Version
		case err != nil && !errors.Is(err, workqueue.ErrNotFound):
			return nil, 0, err
		}
	}
	view, err := inspect.New(s.Store).Plan(workqueue.Within(ctx), name, version)
	if err != nil {
		return nil, 0, apicore.Seen(err, apicore.SeePlans)
	}
	plan := &gather.Plan{}
	if err := json.Unmarshal(view.Spec, plan); err != nil {
		return nil, 0, apicore.BadInput(fmt.Sprintf("plan %s@%d is not one that this version of tranche can run: %v; use "+
			"the version that it was applied with, or apply it again", name, view.Version, err))
	}
	return plan, view.Version, nil
}

// ParsePlanRef parses NAME@VERSION, or NAME, which is version 0: the newest.
func ParsePlanRef(ref string) (name string, version int, err error) {
	name, number, versioned := strings.Cut(ref, "@")
	if err := gather.CheckName(name); err != nil {
		return "", 0, apicore.BadInput(fmt.Sprintf("plan_ref: %s", problemOf(err)))
	}
	if !versioned {
		return name, 0, nil
	}
	version, err = planVersion("plan_ref", name, number)
	return name, version, err
}

func planVersion(field, name, number string) (int, error) {
	version, err := strconv.Atoi(number)
	if err != nil || version < 1 || version > apicore.MaxPlanVersion {
		return 0, apicore.BadInput(fmt.Sprintf("%s: invalid version %q; want 1 or more, for example %s@1", field,
			apicore.Echo(number), apicore.Echo(name)))
	}
	return version, nil
}

// Validate refuses invalid settings.
func (set *RunSettings) Validate() error {
	if set.Name == inspect.LastRun {
		return apicore.BadInput(`a run cannot be called "last", which always means the newest; choose another name`)
	}
	for _, t := range []struct {
		field, value string
		most         int
	}{
		{"name", set.Name, apicore.MaxNameBytes}, {"source", set.Source, MaxSourceBytes},
		{"plan_name", set.PlanName, apicore.MaxNameBytes},
		{"idempotency_key", set.IdempotencyKey, maxIdempotencyBytes}, {"key", set.Key, intake.MaxKeyBytes},
	} {
		if err := apicore.CheckText(t.field, t.value, t.most); err != nil {
			return err
		}
	}
	switch start.OnDuplicate(set.OnDuplicate) {
	case "", start.DuplicateError, start.DuplicateSkip, start.DuplicateAllow:
	default:
		return apicore.BadInput(fmt.Sprintf("on_duplicate is %q; it must be error, skip or allow",
			apicore.Echo(set.OnDuplicate)))
	}
	if err := set.ItemSource.Validate(set); err != nil {
		return err
	}
	switch intake.Format(set.Format) {
	case intake.Recognize, intake.CSV, intake.NDJSON, intake.Parquet:
		return cmp.Or(BadSetting(set.Overrides.Validate()), start.CheckParams(set.Params))
	default:
		return apicore.BadInput(fmt.Sprintf("format is %q; it must be csv, ndjson or parquet", apicore.Echo(set.Format)))
	}
}

// ShapeQuery says how to read the items of an upload other than a start's, with the names of run settings.
type ShapeQuery struct {
	Encoding  string   `query:"encoding" doc:"of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be"`
	Header    string   `query:"header" doc:"false: CSV begins with its first row"`
	Delimiter string   `query:"delimiter" doc:"between fields of CSV: comma, semicolon, tab or bar; detected when absent"`
	Columns   []string `query:"columns,explode" doc:"a column or field to keep; without a header the names of all columns"`
	Rename    []string `query:"rename,explode" doc:"another name for a column or field, like kontonr=id"`
	Types     []string `query:"types,explode" doc:"what a field becomes, like balance=number: number, text, bool or json"`
}

// Over overrides the plan's settings.
func (q *ShapeQuery) Over(look *gather.Items) (*gather.Items, error) {
	set := gather.Overrides{Columns: q.Columns, Rename: q.Rename, Types: q.Types}
	if q.Encoding != "" {
		set.Encoding = &q.Encoding
	}
	switch q.Header {
	case "":
	case "true", "false":
		set.Header = new(q.Header == "true")
	default:
		return nil, apicore.BadInput(fmt.Sprintf("header is %q; want true or false", apicore.Echo(q.Header)))
	}
	if q.Delimiter != "" {
		set.Delimiter = &q.Delimiter
	}
	plan := gather.Single("any")
	plan.Items = *look
	laid, err := set.Over(plan)
	if err != nil {
		return nil, BadSetting(err)
	}
	return &laid.Items, nil
}
