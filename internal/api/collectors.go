package api

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

const seeCollectors = "tranche collector list"

const maxCollectorBody = 1 << 20

// CollectorList lists all collectors.
type CollectorList struct {
	Collectors []collector.CollectorView `json:"collectors" nullable:"false"`
}

const applyCollectorDescription = `The body is a collector in YAML, or in JSON. Its name field, or else the query, names
it. An unchanged collector changes nothing. Changes apply from the next flush. When order_by, values, partitions, fold
or fold_by change, waiting operations keep their old keys and go before newly added ones.`

// CollectorEngine applies changes of collectors in the node, which may require an immediate flush.
type CollectorEngine interface {
	ingest.Adder
	ApplyCollector(ctx context.Context, c collector.Text, actor string) (workqueue.AppliedDocument, error)
	SetCollector(ctx context.Context, name, state string, force bool, actor string) (workqueue.ControlledDocument, error)
	DrainCollector(ctx context.Context, name, actor string) (collector.Drained, error)
	RequeueOps(ctx context.Context, name string, sel collector.OpsSelection, actor string) (int64, error)
}

type collectorRoutes struct {
	*apicore.Core

	engine    CollectorEngine
	producers *ingest.Producers
	sources   *connections.Connections
}

// newCollectors returns the routes of collectors. Without producers it creates separate ones, which share no commits
// with others. sources are those that collectors may query; nil: none.
func newCollectors(
	k *apicore.Core, engine CollectorEngine, takers *ingest.Producers, sources *connections.Connections,
) *collectorRoutes {
	if takers == nil {
		takers = ingest.New(collector.New(k.Store), engine, ingest.Sources{NC: k.NC}, k.Log)
	}
	return &collectorRoutes{k, engine, takers, cmp.Or(sources, &connections.Connections{})}
}

func (s *collectorRoutes) Register(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.Get("list-collectors", "/collectors",
		"List collectors, with waiting operations")), s.listCollectors)
	registerDocuments(s.Core, api, &documents[struct{}, collector.CollectorView]{
		noun: "collector", scope: apicore.Anywhere, most: maxCollectorBody,
		gets:    "A collector, and why operations wait",
		applies: documentWords{"Save or change a collector", applyCollectorDescription},
		pauses: documentWords{"Pause a collector", "It still takes operations, and " +
			"flushes in progress end as usual."},
		resumes: documentWords{"Resume a collector", ""},
		get:     s.getCollector, version: func(v *collector.CollectorView) int { return v.Version },
		apply: s.applyCollector, set: s.setCollector,
	})
	apicore.Register(s.Core, api, apicore.Delete("delete-collector", "/collectors/{name}",
		"Delete a collector",
		"Refused if it has operations, unless force is set: then they are lost."), s.deleteCollector)
	apicore.Register(s.Core, api, apicore.Post("drain-collector", "/collectors/{name}/drain",
		"Flush all waiting operations",
		"Failed operations keep their backoff, and rates and limits apply. Later ones wait as "+
			"usual."), s.drainCollector)
	s.registerOperations(api)
}

func (s *collectorRoutes) listCollectors(ctx context.Context, _ *struct{}) (CollectorList, error) {
	all, err := collector.New(s.Store).Collectors(ctx)
	return CollectorList{Collectors: append([]collector.CollectorView{}, all...)}, err
}

func (s *collectorRoutes) applyCollector(
	ctx context.Context, in *documentText,
) (none workqueue.AppliedDocument, err error) {
	spec, err := ingest.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	if err := s.checkSource(spec); err != nil {
		return none, err
	}
	doc := in.document(spec.Name, nil)
	return s.engine.ApplyCollector(ctx, collector.Text{Name: doc.Name, Spec: *spec, Source: doc.Source,
		Newest: doc.Newest}, in.Actor.Name)
}

// checkSource refuses a query of a source that this node lacks: all added operations would be refused.
func (s *collectorRoutes) checkSource(spec *collector.CollectorSpec) error {
	query, err := ingest.Query(spec.Enrich)
	if err != nil || query == nil {
		return err
	}
	if _, err = s.sources.Source(query.Source); err != nil {
		return apicore.BadInput("enrich.sql.source: " + err.Error())
	}
	return nil
}

func (s *collectorRoutes) getCollector(ctx context.Context, name string) (collector.CollectorView, error) {
	view, err := collector.New(s.Store).Collector(ctx, name)
	if err != nil {
		return view, err
	}
	if view.Waiting+view.Backoff > 0 {
		view.Why = append(s.whoIsAway(ctx, view.Spec.Endpoint), view.Why...)
	}
	view.Why = append([]collector.CollectorReason{}, view.Why...) // not null
	return view, nil
}

func (s *collectorRoutes) whoIsAway(ctx context.Context, endpoint string) []collector.CollectorReason {
	if !s.NC.IsConnected() {
		return []collector.CollectorReason{{Code: "nats_unreachable",
			Text: "this node cannot reach NATS; it reconnects automatically as soon as NATS answers"}}
	}
	listeners, err := wire.Discover(ctx, s.NC, apicore.ListenWait)
	if err != nil || slices.ContainsFunc(listeners, func(l wire.Listener) bool { return l.Endpoint == endpoint }) {
		return nil
	}
	return []collector.CollectorReason{{Code: "no_listeners", Text: "no service listens on endpoint " + endpoint +
		"; start a service that does: it is there when tranche endpoints show " + endpoint + " names it"}}
}

func (s *collectorRoutes) setCollector(
	ctx context.Context, name, state, actor string,
) (workqueue.ControlledDocument, error) {
	return s.engine.SetCollector(ctx, name, state, false, actor)
}

func (s *collectorRoutes) deleteCollector(ctx context.Context, in *struct {
	DocumentChange
	Force bool `query:"force" doc:"delete its operations, too"`
},
) (workqueue.ControlledDocument, error) {
	out, err := s.engine.SetCollector(ctx, in.Document, workqueue.DocumentDeleted, in.Force, in.Name)
	return out, apicore.Seen(err, seeCollectors)
}

func (s *collectorRoutes) drainCollector(ctx context.Context, in *DocumentChange) (collector.Drained, error) {
	out, err := s.engine.DrainCollector(ctx, in.Document, in.Name)
	return out, apicore.Seen(err, seeCollectors)
}

// AddedOperations is the result of adding operations.
type AddedOperations struct {
	Collector string `json:"collector"`
	collector.AddedOps
	DryRun bool           `json:"dry_run,omitempty" doc:"true: nothing was added, and this is what would have been"`
	Sample []collector.Op `json:"sample,omitempty" doc:"of a dry run: the first operations, as they would be stored"`
}

// OperationChoice selects operations. At least one condition is required; all given ones must match.
type OperationChoice struct {
	IDs  []string `json:"ids,omitempty" maxItems:"10000" nullable:"false" doc:"these"`
	Keys []string `json:"keys,omitempty" maxItems:"10000" nullable:"false" doc:"those of these keys"`
	Code string   `json:"code,omitempty" maxLength:"200" doc:"those whose last error had this code"`
	All  bool     `json:"all,omitempty" doc:"all"`
}

// DropChoice selects the operations to drop.
type DropChoice struct {
	OperationChoice

	Waiting bool `json:"waiting,omitempty" doc:"also those that are not parked; else parked ones only"`
}

// RequeuedOperations counts the requeued operations.
type RequeuedOperations struct {
	Requeued int64 `json:"requeued"`
}

// DroppedOperations counts the dropped operations.
type DroppedOperations struct {
	Dropped int64 `json:"dropped"`
}

const addOperationsDescription = `The body is operations, one JSON object after the other, or {"ops":[…]} with a list of
them: {"id":"order-17","key":"CUST-7","priority":0,"payload":{…}}. Required are the payload, and the key if
the collector has no order_by. All are added or none, up to 100,000 and 32 MiB per request; the answer means that they
are stored. An id that the collector still remembers counts as a duplicate and is not added again, so a request whose
answer was lost can be repeated. With dry_run nothing is added: the answer says what would be, or what is wrong. Adds
are not in the audit log: there are too many.`

func (s *collectorRoutes) registerOperations(api huma.API) {
	apicore.Register(s.Core, api, apicore.Streamed(apicore.Post("add-operations", "/collectors/{name}/ops",
		"Add operations to a collector", addOperationsDescription), apicore.Files(apicore.MimeNDJSON)), s.addOperations)
	apicore.Register(s.Core, api, apicore.ReadsItems(apicore.Held(apicore.Get("list-operations", "/collectors/{name}/ops",
		"List operations, oldest first"))), s.listOperations)
	apicore.Register(s.Core, api, apicore.Post("requeue-operations", "/collectors/{name}/requeue",
		"Retry parked operations, and those in backoff",
		"They regain all attempts, and join the next flush of their keys."), s.requeueOperations)
	apicore.Register(s.Core, api, apicore.Post("drop-operations", "/collectors/{name}/drop",
		"Drop operations",
		"They are deleted. Those of a flush in progress may have been executed."), s.dropOperations)
}

type addOperationsInput struct {
	DocumentPath
	apicore.Actor
	DryRun bool `query:"dry_run" doc:"add nothing; show what would be added, or what is wrong"`

	apicore.Stream
}

func (s *collectorRoutes) addOperations(ctx context.Context, in *addOperationsInput) (AddedOperations, error) {
	out := AddedOperations{Collector: in.Document, DryRun: in.DryRun}
	body := apicore.Whole(in.Body(), "the body", "nothing was added")
	var err error
	if !in.DryRun {
		out.AddedOps, err = s.producers.AddFrom(ctx, in.Document, body)
		return out, apicore.Seen(err, seeCollectors)
	}
	out.AddedOps, out.Sample, err = s.producers.TryFrom(ctx, in.Document, body)
	return out, apicore.Seen(err, seeCollectors)
}

func (s *collectorRoutes) listOperations(
	ctx context.Context, filter *collector.OpsFilter,
) (page collector.OperationPage, err error) {
	for field, value := range map[string]string{"key": filter.Key, "id": filter.ID, "code": filter.Code} {
		if err := apicore.CheckText(field, value, collector.MaxOpKey); err != nil {
			return page, err
		}
	}
	page, err = collector.New(s.Store).Ops(ctx, *filter)
	return page, apicore.Seen(err, seeCollectors)
}

type requeueOperationsInput struct {
	DocumentPath
	apicore.Actor
	Body OperationChoice
}

func (s *collectorRoutes) requeueOperations(
	ctx context.Context, in *requeueOperationsInput,
) (RequeuedOperations, error) {
	sel, err := in.Body.Selection(in.Name)
	if err != nil {
		return RequeuedOperations{}, err
	}
	n, err := s.engine.RequeueOps(ctx, in.Document, sel, in.Name)
	return RequeuedOperations{Requeued: n}, apicore.Seen(err, seeCollectors)
}

type dropOperationsInput struct {
	DocumentPath
	apicore.Actor
	Body DropChoice
}

func (s *collectorRoutes) dropOperations(ctx context.Context, in *dropOperationsInput) (DroppedOperations, error) {
	sel, err := in.Body.Selection(in.Name)
	if err != nil {
		return DroppedOperations{}, err
	}
	sel.Waiting = in.Body.Waiting
	n, err := collector.New(s.Store).DropOps(ctx, in.Document, sel, in.Name)
	return DroppedOperations{Dropped: n}, apicore.Seen(err, seeCollectors)
}

// Selection validates a choice.
func (c *OperationChoice) Selection(actor string) (collector.OpsSelection, error) {
	sel := collector.OpsSelection{All: c.All, IDs: c.IDs, Keys: c.Keys, Code: c.Code}
	narrowed := len(c.IDs) > 0 || len(c.Keys) > 0 || c.Code != ""
	switch {
	case c.All && narrowed:
		return sel, apicore.BadInput("all is given with ids, keys or code; give all, or what narrows it")
	case !c.All && !narrowed:
		return sel, apicore.BadInput("say which operations: ids, keys, code, or all")
	}
	err := errors.Join(apicore.CheckText("header "+apicore.ActorHeader, actor, apicore.MaxActorBytes),
		apicore.CheckText("code", c.Code, apicore.MaxCodeBytes))
	for _, id := range c.IDs {
		err = errors.Join(err, apicore.CheckText("ids", id, collector.MaxOpID))
	}
	for _, key := range c.Keys {
		err = errors.Join(err, apicore.CheckText("keys", key, collector.MaxOpKey))
	}
	return sel, err
}
