package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/collector"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// seeCollectors names the command that lists collectors.
const seeCollectors = "tranche collector list"

// maxCollectorBody is what is read of a collector to say that it is too large.
const maxCollectorBody = 1 << 20

// CollectorPath is the collector that an operation is about.
type CollectorPath struct {
	Collector string `path:"name" doc:"a collector's name"`
}

// CollectorList is the answer to a list of collectors.
type CollectorList struct {
	Collectors []collectorstore.CollectorView `json:"collectors" nullable:"false"`
}

// CollectorSwitched is what a pause or a resume did.
type CollectorSwitched struct {
	Name    string `json:"name"`
	State   string `json:"state" enum:"active,paused"`
	Changed bool   `json:"changed" doc:"false: it was so before"`
}

const applyCollectorDescription = `The body is a collector in YAML, or in JSON. Its name field, or else the query, names
it. What is the same as before changes nothing. Changes hold from the next flush on. When order_by, values or partitions
change, what waits goes under its old keys before anything that is added from then on.`

func (s *Server) registerCollectors(api huma.API) {
	register(s, api, get("list-collectors", "/collectors", "List collectors by name, with what waits in each"),
		s.listCollectors)
	register(s, api, byOperator(huma.Operation{
		OperationID: "apply-collector", Method: http.MethodPost, Path: "/collectors", Summary: "Make or change a collector",
		Description: applyCollectorDescription, MaxBodyBytes: maxCollectorBody,
	}), s.applyCollector)
	register(s, api, get("get-collector", "/collectors/{name}",
		"A collector: its settings, what waits in it, and what keeps that waiting"), s.getCollector)
	register(s, api, byOperator(huma.Operation{
		OperationID: "delete-collector", Method: http.MethodDelete, Path: "/collectors/{name}", Summary: "Delete a collector",
		Description: "One with operations is refused, unless force is set: then they are lost.",
	}), s.deleteCollector)
	s.registerOperations(api)
	s.registerCollectorControl(api)
}

func (s *Server) registerCollectorControl(api huma.API) {
	register(s, api, byOperator(huma.Operation{
		OperationID: "pause-collector", Method: http.MethodPost, Path: "/collectors/{name}/pause",
		Summary:     "Flush nothing more of a collector until it is resumed",
		Description: "It goes on taking operations, and flushes that are under way come to their end.",
	}), func(ctx context.Context, in *collectorInput) (CollectorSwitched, error) {
		return s.switchCollector(ctx, in, collectorstore.CollectorPaused, collectorstore.New(s.store).PauseCollector)
	})
	register(s, api, byOperator(huma.Operation{
		OperationID: "resume-collector", Method: http.MethodPost, Path: "/collectors/{name}/resume",
		Summary: "Go on with a paused collector",
	}), func(ctx context.Context, in *collectorInput) (CollectorSwitched, error) {
		return s.switchCollector(ctx, in, collectorstore.CollectorActive, s.engine.ResumeCollector)
	})
	register(s, api, byOperator(huma.Operation{
		OperationID: "drain-collector", Method: http.MethodPost, Path: "/collectors/{name}/drain",
		Summary: "Flush all that waits now, whatever min_size and max_age say",
		Description: "What failed keeps its backoff, and rates and limits hold. What is added later waits as " +
			"usual.",
	}), s.drainCollector)
}

func (s *Server) listCollectors(ctx context.Context, _ *struct{}) (CollectorList, error) {
	all, err := collectorstore.New(s.store).Collectors(ctx)
	if all == nil {
		all = []collectorstore.CollectorView{}
	}
	return CollectorList{Collectors: all}, err
}

type applyCollectorInput struct {
	Actor
	Name    string `query:"name" doc:"the collector's name, when it does not give itself one"`
	RawBody []byte `contentType:"application/yaml"`
}

func (s *Server) applyCollector(ctx context.Context, in *applyCollectorInput) (collectorstore.AppliedCollector, error) {
	none := collectorstore.AppliedCollector{}
	err := cmp.Or(checkText("header "+ActorHeader, in.Actor.Name, maxActorBytes), checkText("name", in.Name, maxNameBytes))
	if err != nil {
		return none, err
	}
	spec, err := collector.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	if err := s.checkSource(spec); err != nil {
		return none, err
	}
	text := collectorstore.Text{Name: spec.Name, Spec: *spec, Source: string(in.RawBody)}
	return s.engine.ApplyCollector(ctx, text, in.Actor.Name)
}

// checkSource refuses a query of a source that this node does not have: all that is added would be refused.
func (s *Server) checkSource(spec *collectorstore.CollectorSpec) error {
	query, err := collector.Query(spec.Enrich)
	switch {
	case err != nil || query == nil:
		return err
	case s.config.Connections == nil:
		err = unknownSource(query.Source)
	default:
		_, err = s.config.Connections.Source(query.Source)
	}
	if err != nil {
		return &inputError{"enrich.sql.source: " + err.Error()}
	}
	return nil
}

func (s *Server) getCollector(ctx context.Context, in *CollectorPath) (collectorstore.CollectorView, error) {
	view, err := collectorstore.New(s.store).Collector(ctx, in.Collector)
	if err != nil {
		return view, seen(err, seeCollectors)
	}
	if view.Waiting+view.Backoff > 0 {
		view.Why = append(s.whoIsAway(ctx, view.Spec.Endpoint), view.Why...)
	}
	if view.Why == nil {
		view.Why = []collectorstore.CollectorReason{}
	}
	return view, nil
}

// whoIsAway says what the database does not know: whether there is anybody who takes a flush.
func (s *Server) whoIsAway(ctx context.Context, endpoint string) []collectorstore.CollectorReason {
	if !s.nc.IsConnected() {
		return []collectorstore.CollectorReason{{Code: "nats_away",
			Text: "this node cannot reach NATS; it connects again by " +
				"itself as soon as NATS answers"}}
	}
	listeners, err := wire.Discover(ctx, s.nc, listenWait)
	if err != nil || slices.ContainsFunc(listeners, func(l wire.Listener) bool { return l.Endpoint == endpoint }) {
		return nil
	}
	return []collectorstore.CollectorReason{{Code: "no_listeners", Text: "nobody listens on endpoint " + endpoint +
		"; start a service that does: it is there when tranche endpoints show " + endpoint + " names it"}}
}

type deleteCollectorInput struct {
	CollectorPath
	Actor
	Force bool `query:"force" doc:"also with operations, which are lost then"`
}

func (s *Server) deleteCollector(
	ctx context.Context, in *deleteCollectorInput,
) (collectorstore.DeletedCollector, error) {
	if err := checkText("header "+ActorHeader, in.Name, maxActorBytes); err != nil {
		return collectorstore.DeletedCollector{}, err
	}
	gone, err := collectorstore.New(s.store).DeleteCollector(ctx, in.Collector, in.Force, in.Name)
	return gone, seen(err, seeCollectors)
}

type collectorInput struct {
	CollectorPath
	Actor
}

func (s *Server) switchCollector(
	ctx context.Context, in *collectorInput, to string, do func(context.Context, string, string) (bool, error),
) (CollectorSwitched, error) {
	out := CollectorSwitched{Name: in.Collector, State: to}
	err := checkText("header "+ActorHeader, in.Name, maxActorBytes)
	if err == nil {
		out.Changed, err = do(ctx, in.Collector, in.Name)
	}
	return out, seen(err, seeCollectors)
}

func (s *Server) drainCollector(ctx context.Context, in *collectorInput) (collectorstore.Drained, error) {
	if err := checkText("header "+ActorHeader, in.Name, maxActorBytes); err != nil {
		return collectorstore.Drained{}, err
	}
	out, err := s.engine.DrainCollector(ctx, in.Collector, in.Name)
	return out, seen(err, seeCollectors)
}
