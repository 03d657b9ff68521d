package api

import (
	"context"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (s *runRoutes) registerExplain(api huma.API) {
	run := broad(get("explain-run", "/runs/{run}/explain", "Why a run is not done"))
	run.Description = "The missing items in groups that add up, all as of one moment: how many, where they are, whose " +
		"turn it is, since when, what will happen next, and what an operator could do. With item, the same for the " +
		"items of one key, with every attempt."
	register(s.Kernel, api, run, s.explainRun)
	endpoint := broad(get("explain-endpoint", "/endpoints/{name}/explain", "Why an endpoint does not move"))
	endpoint.Description = "The items of running runs that wait for the endpoint, in groups that add up."
	register(s.Kernel, api, endpoint, s.explainEndpoint)
}

type explainInput struct {
	RunPath
	Item string `query:"item" doc:"the key of an item"`
}

func (s *runRoutes) explainRun(ctx context.Context, in *explainInput) (explain.Explanation, error) {
	id, err := inspect.New(s.store).Resolve(ctx, in.Run)
	if err != nil {
		return explain.Explanation{}, err
	}
	var e *explain.Explanation
	if in.Item != "" {
		e, err = explain.New(s.store).ExplainKey(ctx, id, in.Item)
	} else {
		e, err = explain.New(s.store).Explain(ctx, id)
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
	e.Sum()
	return *e, nil
}

func (s *runRoutes) explainEndpoint(ctx context.Context, in *EndpointPath) (explain.EndpointExplanation, error) {
	if err := checkTarget(in.Endpoint); err != nil {
		return explain.EndpointExplanation{}, err
	}
	e, err := explain.New(s.store).ExplainEndpoint(ctx, in.Endpoint)
	if err != nil {
		return explain.EndpointExplanation{}, err
	}
	if kind, _ := workqueue.TargetKind(in.Endpoint); kind != workqueue.KindEndpoint {
		nodes, err := inspect.New(s.store).NodesFor(ctx, in.Endpoint)
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
		if name := groups[i].Endpoint; isEndpoint(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// isEndpoint reports whether services are asked under a name, and not something that nodes ask themselves.
func isEndpoint(name string) bool {
	kind, _ := workqueue.TargetKind(name)
	return name != "" && kind == workqueue.KindEndpoint
}
