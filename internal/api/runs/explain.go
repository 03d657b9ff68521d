package runs

import (
	"context"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (s *Routes) registerExplain(api huma.API) {
	run := kernel.Broad(kernel.Get("explain-run", "/runs/{run}/explain", "Why a run is not done"))
	run.Description = "The missing items in groups that add up, all as of one moment: how many, where they are, whose " +
		"turn it is, since when, what will happen next, and what an operator could do. With item, the same for the " +
		"items of one key, with every attempt."
	kernel.Register(s.Kernel, api, run, s.explainRun)
	endpoint := kernel.Broad(kernel.Get("explain-endpoint", "/endpoints/{name}/explain", "Why an endpoint does not move"))
	endpoint.Description = "The items of running runs that wait for the endpoint, in groups that add up."
	kernel.Register(s.Kernel, api, endpoint, s.explainEndpoint)
}

type explainInput struct {
	kernel.RunPath
	Item string `query:"item" doc:"the key of an item"`
}

func (s *Routes) explainRun(ctx context.Context, in *explainInput) (explain.Explanation, error) {
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return explain.Explanation{}, err
	}
	var e *explain.Explanation
	if in.Item != "" {
		e, err = explain.New(s.Store).ExplainKey(ctx, id, in.Item)
	} else {
		e, err = explain.New(s.Store).Explain(ctx, id)
	}
	if err != nil {
		return explain.Explanation{}, err
	}
	if names := endpointsOf(e.Groups); len(names) > 0 {
		seen := s.lookAtServices(ctx, names, e.Nodes, e.At)
		seen.apply(e.Groups)
		e.ServicesAt = &seen.at
	}
	s.tellResting(e.Groups, e.Nodes <= 1, e.At)
	s.tellShort(e.Groups)
	e.Sum()
	e.MergeSteps()
	return *e, nil
}

func (s *Routes) explainEndpoint(ctx context.Context, in *kernel.EndpointPath) (explain.EndpointExplanation, error) {
	if err := kernel.CheckTarget(in.Endpoint); err != nil {
		return explain.EndpointExplanation{}, err
	}
	e, err := explain.New(s.Store).ExplainEndpoint(ctx, in.Endpoint)
	if err != nil {
		return explain.EndpointExplanation{}, err
	}
	if kind, _ := workqueue.TargetKind(in.Endpoint); kind != workqueue.KindEndpoint {
		nodes, err := inspect.New(s.Store).NodesFor(ctx, in.Endpoint)
		e.Listens = "nobody: no node that is alive does this work"
		if len(nodes) > 0 {
			e.Listens = "nodes do this work: " + strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
		}
		s.tellResting(e.Groups, e.Nodes <= 1, e.At)
		e.Sum()
		return *e, err
	}
	seen := s.lookAtServices(ctx, []string{in.Endpoint}, e.Nodes, e.At)
	seen.apply(e.Groups)
	e.ServicesAt, e.Listens = &seen.at, seen.listening(in.Endpoint)
	e.Sum()
	return *e, nil
}

// endpointsOf names the endpoints of groups, each once, without what is none.
func endpointsOf(groups []explain.MissingGroup) []string {
	var names []string
	for i := range groups {
		if name := groups[i].Endpoint; IsEndpoint(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// IsEndpoint reports whether services are asked under a name, and not something that nodes ask themselves.
func IsEndpoint(name string) bool {
	kind, _ := workqueue.TargetKind(name)
	return name != "" && kind == workqueue.KindEndpoint
}
