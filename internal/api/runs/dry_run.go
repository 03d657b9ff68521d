package runs

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

// DryRun is what a start would make. Nothing was stored.
type DryRun struct {
	DryRun      bool             `json:"dry_run" enum:"true"`
	Name        string           `json:"name,omitempty"`
	Plan        string           `json:"plan"`
	PlanVersion int              `json:"plan_version,omitempty" doc:"of a plan on record"`
	Existing    *workqueue.RunID `json:"existing,omitempty" doc:"the run that the idempotency key has started"`
	Items       int64            `json:"items"`
	Skipped     int64            `json:"skipped" doc:"duplicates that would be left out"`
	Invalid     int64            `json:"invalid,omitempty" doc:"items that would fail at once: they do not fit the schema"`
	Bytes       int64            `json:"bytes" doc:"of the items' payloads"`
	Held        int64            `json:"held,omitempty" doc:"items that would wait for the canary"`
	Key         string           `json:"key,omitempty" doc:"the column or field that the keys come from"`
	Steps       []DryRunStep     `json:"steps" nullable:"false"`
	First       []PreviewRow     `json:"first" nullable:"false" doc:"the first items, ten at the most"`
	Warnings    []string         `json:"warnings" nullable:"false"`
}

// DryRunStep is what a step would do.
type DryRunStep struct {
	Name         string         `json:"name"`
	Kind         workqueue.Kind `json:"kind" enum:"endpoint,request,http,sql,local"`
	Endpoint     string         `json:"endpoint" doc:"or what else is asked: http:HOST, sql:SOURCE, local:FUNCTION"`
	Needs        []string       `json:"needs,omitempty" doc:"steps that come first, item by item"`
	Chunk        int            `json:"chunk" doc:"items in a request; of an automatic chunk, now"`
	ChunkAuto    bool           `json:"chunk_auto,omitempty" doc:"nodes find the size"`
	InFlight     int            `json:"in_flight" doc:"requests out at once at most"`
	InFlightAuto bool           `json:"in_flight_auto,omitempty" doc:"nodes find the limit up to in_flight"`
	Requests     int64          `json:"requests" doc:"by this chunk; more when payloads are large"`
	Services     int            `json:"services" doc:"instances that listen; of other kinds, nodes that can do it"`
}

// dryRun does what load does, and stores nothing.
func (s *Starts) dryRun(r *http.Request, in *startInput) (DryRun, error) {
	intent, err := s.intend(r, in)
	if err != nil {
		return DryRun{}, err
	}
	defer intent.Close()
	req := &intent.req
	tried, err := start.New(s.Store).TryLoad(r.Context(), *req, s.config.SpoolDir, intent.compared.Items())
	if err != nil {
		return DryRun{}, err
	}
	out := DryRun{DryRun: true, Name: req.Name, Plan: req.Plan, PlanVersion: req.PlanVersion, Items: tried.Items,
		Skipped: tried.Skipped, Invalid: tried.Invalid, Bytes: tried.Bytes, Held: tried.Held,
		Key: intent.rows.Key(), First: []PreviewRow{}}
	if tried.Existing {
		out.Existing = &tried.Run
	}
	for _, item := range tried.First {
		out.First = append(out.First, PreviewRow{item.Line, item.Key, item.Payload})
	}
	if out.Steps, err = s.drySteps(r.Context(), req.Steps, &tried); err != nil {
		return DryRun{}, err
	}
	out.Warnings = intent.warnings(s.Unheard(r.Context(), servicesOf(req.Steps)))
	return out, nil
}

func (s *Starts) drySteps(ctx context.Context, specs []workqueue.StepSpec, tried *start.Tried) (
	[]DryRunStep, error,
) {
	listeners := map[string]int{}
	if len(servicesOf(specs)) > 0 && s.NC.IsConnected() {
		found, err := wire.Discover(ctx, s.NC, kernel.ListenWait)
		if err != nil {
			return nil, err
		}
		for i := range found {
			listeners[found[i].Endpoint]++
		}
	}
	steps := make([]DryRunStep, len(specs))
	for i := range specs {
		spec := &specs[i]
		step := DryRunStep{Name: spec.Name, Kind: spec.Kind, Endpoint: spec.Endpoint, Chunk: spec.Chunk,
			ChunkAuto: spec.ChunkAuto, InFlight: spec.InFlight, InFlightAuto: spec.InFlightAuto,
			Services: listeners[spec.Endpoint]}
		for _, need := range spec.Needs {
			step.Needs = append(step.Needs, specs[need].Name)
		}
		if !tried.Existing { // not of a run that there is already
			step.Chunk, step.Requests = tried.Steps[i].Chunk, tried.Steps[i].Requests
			if oneByOne(spec) {
				step.Requests = tried.Items
			}
		}
		if !IsEndpoint(spec.Endpoint) {
			nodes, err := inspect.New(s.Store).NodesFor(ctx, spec.Endpoint)
			if err != nil {
				return nil, err
			}
			step.Services = len(nodes)
		}
		steps[i] = step
	}
	return steps, nil
}

// oneByOne reports whether the step asks for one item with each request.
func oneByOne(spec *workqueue.StepSpec) bool {
	var settings gather.HTTP
	return spec.Kind == workqueue.KindHTTP && json.Unmarshal(spec.Config, &settings) == nil && !settings.Many
}

func (s *Starts) answerDryRun(w http.ResponseWriter, r *http.Request, in *startInput) {
	found, err := s.dryRun(r, in)
	if err != nil {
		kernel.SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = kernel.SendJSON(w, found) // a caller that is gone has lost nothing
}
