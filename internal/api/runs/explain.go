package runs

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (s *Routes) registerExplain(api huma.API) {
	run := apicore.ReadsMany(apicore.Get("explain-run", "/runs/{run}/explain", "Why a run is not done"))
	run.Description = "The missing items in groups that add up, from one snapshot: how many, where they are, who they " +
		"wait for, since when, what will happen next, and what an operator could do. With item, the same for the " +
		"items of one key, with every attempt."
	apicore.Register(s.Core, api, run, s.explainRun)
	endpoint := apicore.ReadsMany(
		apicore.Get("explain-endpoint", "/endpoints/{name}/explain", "Why an endpoint makes no progress"))
	endpoint.Description = "The items of running runs that wait for the endpoint, in groups that add up."
	apicore.Register(s.Core, api, endpoint, s.explainEndpoint)
}

type explainInput struct {
	apicore.RunPath
	Item string `query:"item" doc:"the key of an item"`
}

func (s *Routes) explainRun(ctx context.Context, in *explainInput) (health.Explanation, error) {
	var e *health.Explanation
	var err error
	if in.Item != "" {
		e, err = health.New(s.Store).ExplainKey(ctx, in.ID, in.Item)
	} else {
		e, err = health.New(s.Store).Explain(ctx, in.ID)
	}
	if err != nil {
		return health.Explanation{}, err
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

func (s *Routes) explainEndpoint(ctx context.Context, in *apicore.EndpointPath) (health.EndpointExplanation, error) {
	if err := apicore.CheckTarget(in.Endpoint); err != nil {
		return health.EndpointExplanation{}, err
	}
	e, err := health.New(s.Store).ExplainEndpoint(ctx, in.Endpoint)
	if err != nil {
		return health.EndpointExplanation{}, err
	}
	if kind, _ := workqueue.TargetKind(in.Endpoint); kind != workqueue.KindEndpoint {
		nodes, err := inspect.New(s.Store).NodesFor(ctx, in.Endpoint)
		e.Listens = "no live node does this work"
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

func endpointsOf(groups []health.MissingGroup) []string {
	var names []string
	for i := range groups {
		if name := groups[i].Endpoint; IsEndpoint(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// IsEndpoint reports whether the name is an endpoint of services, not something that nodes call themselves.
func IsEndpoint(name string) bool {
	kind, _ := workqueue.TargetKind(name)
	return name != "" && kind == workqueue.KindEndpoint
}

// tellShort attributes items that only wait for the next claim to resources this node lacks, if any.
func (s *Routes) tellShort(groups []health.MissingGroup) {
	short := s.Short()
	for i := range groups {
		if g := &groups[i]; len(short) > 0 && (g.Reason == health.ReasonNext || g.Reason == health.ReasonSettingUp) {
			g.Reason, g.Owner, g.When = health.ResourceExhausted, health.OwnerOperator, nil
			g.Who = "an operator who frees what is used up"
			g.Why = short[0]
			g.Next = "a node claims them when it can"
		}
	}
}

// tellResting refines groups about to be claimed whose service asked this node to pause. Only this node knows: the
// others may not have been asked.
func (s *Routes) tellResting(groups []health.MissingGroup, alone bool, at time.Time) {
	if s.config.RestsUntil == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		until := s.config.RestsUntil(g.Endpoint)
		if g.Reason != health.ReasonNext || !until.After(at) {
			continue
		}
		g.Why += "; the service asked this node to wait (Retry-After) until " +
			until.UTC().Format("2006-01-02 15:04:05 UTC")
		if alone {
			g.Reason, g.Owner = health.ReasonThrottled, health.OwnerTimer
			g.Who, g.When = "the pause for an overloaded service", &until
			g.Next = "a node claims them and tries again"
		}
	}
}

type unheardAsk struct {
	endpoint string
	requests uint64 // waiting for it
}

const maxUnheard = 20

// lookForUnheard finds requests of flows to endpoints without listeners. The last request to each such endpoint names
// the caller. It skips what cannot be read now, because the result only adds to an explanation.
func (s *Routes) lookForUnheard(
	ctx context.Context, flows []string, listeners map[string][]wire.Listener,
) map[string][]unheardAsk {
	found := map[string][]unheardAsk{}
	ctx, cancel := context.WithTimeout(ctx, apicore.ListenWait)
	defer cancel()
	js, err := jetstream.New(s.NC)
	if err != nil {
		return found
	}
	stream, err := js.Stream(ctx, wire.StreamWork)
	if err != nil {
		return found
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.WorkSubject("*")))
	if err != nil {
		return found
	}
	looked := 0
	for subject, requests := range info.State.Subjects {
		name, _ := wire.EndpointOf(strings.TrimPrefix(subject, wire.WorkSubject("")))
		if len(listeners[name]) > 0 || slices.Contains(flows, name) {
			continue
		}
		if looked++; looked > maxUnheard {
			break
		}
		msg, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			continue // answered meanwhile
		}
		for part := range strings.SplitSeq(msg.Header.Get(wire.HeaderStack), ",") {
			flow, _, _ := strings.Cut(part, ":")
			if slices.Contains(flows, flow) {
				found[flow] = append(found[flow], unheardAsk{name, requests})
				break
			}
		}
	}
	for _, asks := range found {
		slices.SortFunc(asks, func(a, b unheardAsk) int { return strings.Compare(a.endpoint, b.endpoint) })
	}
	return found
}
