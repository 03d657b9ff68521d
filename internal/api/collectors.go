package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/producers"
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

// CollectorEngine is what a node does for collectors: changes after which something may have to be flushed at once.
type CollectorEngine interface {
	producers.Adder
	ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (collectorstore.AppliedCollector, error)
	ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error)
	DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error)
	RequeueOps(ctx context.Context, name string, sel collectorstore.OpsSelection, actor string) (int64, error)
}

// collectorRoutes keep collectors, and take operations for them.
type collectorRoutes struct {
	*kernel.Kernel

	engine    CollectorEngine
	producers *producers.Producers
	sources   *connections.Connections
}

// New returns the routes of collectors. Without producers they have some of their own, which share no commits
// with others. sources are those that collectors may query; nil: none.
func newCollectors(k *kernel.Kernel, engine CollectorEngine, takers *producers.Producers, sources *connections.Connections) *collectorRoutes {
	if takers == nil {
		takers = producers.New(collectorstore.New(k.Store), engine, nil, k.Log)
	}
	if sources == nil {
		sources = &connections.Connections{}
	}
	return &collectorRoutes{k, engine, takers, sources}
}

// Register adds the routes.
func (s *collectorRoutes) Register(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Get("list-collectors", "/collectors",
		"List collectors by name, with what waits in each"),
		s.listCollectors)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "apply-collector", Method: http.MethodPost, Path: "/collectors", Summary: "Make or change a collector",
		Description: applyCollectorDescription, MaxBodyBytes: maxCollectorBody,
	}), s.applyCollector)
	kernel.Register(s.Kernel, api, kernel.Get("get-collector", "/collectors/{name}",
		"A collector: its settings, what waits in it, and what keeps that waiting"), s.getCollector)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "delete-collector", Method: http.MethodDelete, Path: "/collectors/{name}", Summary: "Delete a collector",
		Description: "One with operations is refused, unless force is set: then they are lost.",
	}), s.deleteCollector)
	s.registerOperations(api)
	s.registerCollectorControl(api)
}

func (s *collectorRoutes) registerCollectorControl(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "pause-collector", Method: http.MethodPost, Path: "/collectors/{name}/pause",
		Summary:     "Flush nothing more of a collector until it is resumed",
		Description: "It goes on taking operations, and flushes that are under way come to their end.",
	}), func(ctx context.Context, in *collectorInput) (CollectorSwitched, error) {
		return s.switchCollector(ctx, in, collectorstore.CollectorPaused, collectorstore.New(s.Store).PauseCollector)
	})
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "resume-collector", Method: http.MethodPost, Path: "/collectors/{name}/resume",
		Summary: "Go on with a paused collector",
	}), func(ctx context.Context, in *collectorInput) (CollectorSwitched, error) {
		return s.switchCollector(ctx, in, collectorstore.CollectorActive, s.engine.ResumeCollector)
	})
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "drain-collector", Method: http.MethodPost, Path: "/collectors/{name}/drain",
		Summary: "Flush all that waits now, whatever min_size and max_age say",
		Description: "What failed keeps its backoff, and rates and limits hold. What is added later waits as " +
			"usual.",
	}), s.drainCollector)
}

func (s *collectorRoutes) listCollectors(ctx context.Context, _ *struct{}) (CollectorList, error) {
	all, err := collectorstore.New(s.Store).Collectors(ctx)
	if all == nil {
		all = []collectorstore.CollectorView{}
	}
	return CollectorList{Collectors: all}, err
}

type applyCollectorInput struct {
	kernel.Actor
	Name    string `query:"name" doc:"the collector's name, when it does not give itself one"`
	RawBody []byte `contentType:"application/yaml"`
}

func (s *collectorRoutes) applyCollector(ctx context.Context, in *applyCollectorInput) (collectorstore.AppliedCollector, error) {
	none := collectorstore.AppliedCollector{}
	if err := kernel.CheckText("name", in.Name, kernel.MaxNameBytes); err != nil {
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
func (s *collectorRoutes) checkSource(spec *collectorstore.CollectorSpec) error {
	query, err := collector.Query(spec.Enrich)
	if err != nil || query == nil {
		return err
	}
	if _, err = s.sources.Source(query.Source); err != nil {
		return kernel.BadInput("enrich.sql.source: " + err.Error())
	}
	return nil
}

func (s *collectorRoutes) getCollector(ctx context.Context, in *CollectorPath) (collectorstore.CollectorView, error) {
	view, err := collectorstore.New(s.Store).Collector(ctx, in.Collector)
	if err != nil {
		return view, kernel.Seen(err, seeCollectors)
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
func (s *collectorRoutes) whoIsAway(ctx context.Context, endpoint string) []collectorstore.CollectorReason {
	if !s.NC.IsConnected() {
		return []collectorstore.CollectorReason{{Code: "nats_away",
			Text: "this node cannot reach NATS; it connects again by " +
				"itself as soon as NATS answers"}}
	}
	listeners, err := wire.Discover(ctx, s.NC, kernel.ListenWait)
	if err != nil || slices.ContainsFunc(listeners, func(l wire.Listener) bool { return l.Endpoint == endpoint }) {
		return nil
	}
	return []collectorstore.CollectorReason{{Code: "no_listeners", Text: "nobody listens on endpoint " + endpoint +
		"; start a service that does: it is there when tranche endpoints show " + endpoint + " names it"}}
}

type deleteCollectorInput struct {
	CollectorPath
	kernel.Actor
	Force bool `query:"force" doc:"also with operations, which are lost then"`
}

func (s *collectorRoutes) deleteCollector(
	ctx context.Context, in *deleteCollectorInput,
) (collectorstore.DeletedCollector, error) {
	gone, err := collectorstore.New(s.Store).DeleteCollector(ctx, in.Collector, in.Force, in.Name)
	return gone, kernel.Seen(err, seeCollectors)
}

type collectorInput struct {
	CollectorPath
	kernel.Actor
}

func (s *collectorRoutes) switchCollector(
	ctx context.Context, in *collectorInput, to string, do func(context.Context, string, string) (bool, error),
) (CollectorSwitched, error) {
	changed, err := do(ctx, in.Collector, in.Name)
	return CollectorSwitched{Name: in.Collector, State: to, Changed: changed}, kernel.Seen(err, seeCollectors)
}

func (s *collectorRoutes) drainCollector(ctx context.Context, in *collectorInput) (collectorstore.Drained, error) {
	out, err := s.engine.DrainCollector(ctx, in.Collector, in.Name)
	return out, kernel.Seen(err, seeCollectors)
}
