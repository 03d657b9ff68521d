package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Endpoint is an endpoint with its listeners and its work. Rate, Items and Errors are totals of its listeners.
type Endpoint struct {
	Name        string     `json:"name" doc:"or another target: http:HOST, sql:SOURCE, local:FUNCTION"`
	Kind        string     `json:"kind" enum:"endpoint,direct,http,sql,local" doc:"direct: called in plain requests only"`
	Listeners   []Listener `json:"listeners" doc:"instances of services; of endpoints only"`
	Nodes       []string   `json:"nodes,omitempty" doc:"that do the work, where it is not an endpoint"`
	Runs        int        `json:"runs" doc:"running runs that use it"`
	Waiting     int64      `json:"waiting" doc:"items that wait for other steps, or are held"`
	Ready       int64      `json:"ready" doc:"items that could be sent"`
	InFlight    int64      `json:"in_flight" doc:"items in flight"`
	Scheduled   int64      `json:"scheduled" doc:"items that wait to be retried"`
	Backlog     uint64     `json:"backlog" doc:"requests that no service has taken, without calls_backlog"`
	Processing  int        `json:"processing" doc:"requests that a service has taken and not answered, also"`
	Concurrency int        `json:"concurrency" doc:"set by an operator, for each instance; 0: left to the service"`
	Rate        float64    `json:"rate" doc:"items a second, in the last minute"`
	Items       int64      `json:"items" doc:"since the listeners started"`
	Errors      int64      `json:"errors" doc:"of those"`
	P50Millis   float64    `json:"p50_millis" doc:"time for one item: the listeners' medians, weighted by their rates"`
	P99Millis   float64    `json:"p99_millis" doc:"time for one item, of the slowest listener"`

	// The lane, where services read requests that a caller waits for.
	CallsBacklog    uint64 `json:"calls_backlog" doc:"calls that no service has taken"`
	CallsProcessing int    `json:"calls_processing" doc:"of those, taken and not answered"`

	MaxInFlight int                 `json:"max_in_flight" doc:"budget of requests over all runs; 0: none"`
	RateLimit   float64             `json:"rate_limit" doc:"items a second over all runs, set by an operator; 0: none"`
	RequestRate float64             `json:"request_rate" doc:"requests a second in all, set by an operator; 0: none"`
	Namespaces  []string            `json:"namespaces,omitempty" doc:"whose runs and collectors may use it; absent: all"`
	Canary      *EndpointCanaryView `json:"canary,omitempty" doc:"canary: a new version that gets a share of runs' requests"`
	Pace        *inspect.PaceView   `json:"pace,omitempty" doc:"what nodes found out about it"`
	Reads       json.RawMessage     `json:"reads,omitempty" doc:"of one endpoint: a JSON Schema of the items that it reads"`
	Answers     json.RawMessage     `json:"answers,omitempty" doc:"of one endpoint: a JSON Schema of its results"`
	Changes     []inspect.PastPace  `json:"changes,omitempty" doc:"of one endpoint: the last changes of its pace"`
}

// Listener is an instance of a service.
type Listener struct {
	Service     string  `json:"service"`
	Version     string  `json:"version"`
	Instance    string  `json:"instance"`
	Host        string  `json:"host,omitempty"`
	State       string  `json:"state,omitempty" doc:"listening, waiting or draining; absent when it does not say"`
	Reason      string  `json:"reason,omitempty" doc:"why it waits"`
	Concurrency int     `json:"concurrency" doc:"concurrent chunks or items"`
	InFlight    int     `json:"in_flight" doc:"chunks it holds"`
	Lane        bool    `json:"lane,omitempty" doc:"it reads the lane of calls"`
	Stages      int     `json:"stages,omitempty" doc:"of a flow"`
	Items       int64   `json:"items" doc:"since it started"`
	Errors      int64   `json:"errors"`
	ItemMillis  float64 `json:"item_millis" doc:"time for one item, on average since it started"`
	Rate        float64 `json:"rate" doc:"items a second, in the last minute"`
	P50Millis   float64 `json:"p50_millis" doc:"time for one item, in the last minute"`
	P99Millis   float64 `json:"p99_millis"`
	Redelivered int64   `json:"redelivered" doc:"redelivered requests"`
	GivenUp     int64   `json:"given_up" doc:"requests that were delivered too often"`
	Dead        int64   `json:"dead" doc:"requests that were dead-lettered"`
	Rebinds     int64   `json:"rebinds" doc:"how often it bound its consumer again"`
}

// EndpointList lists all endpoints.
type EndpointList struct {
	Endpoints []Endpoint `json:"endpoints"`
}

// Requeuer requeues dead letters.
type Requeuer interface {
	Requeue(ctx context.Context, sel deadletter.DeadSelection, actor string) (deadletter.Requeue, error)
}

// Setter changes endpoints and notifies their services.
type Setter interface {
	ChangeEndpoint(
		ctx context.Context, change pace.EndpointChange, actor string,
	) (pace.EndpointSetting, error)
}

type endpointRoutes struct {
	*apicore.Core

	setter  Setter
	letters Requeuer
}

func (s *endpointRoutes) Register(api huma.API) {
	s.registerEndpoints(api)
	s.registerLetters(api)
}

func (s *endpointRoutes) registerEndpoints(api huma.API) {
	apicore.Register(s.Core, api, apicore.Get("list-endpoints", "/endpoints", "List endpoints, with listeners and work"),
		s.listEndpoints)
	apicore.Register(s.Core, api, apicore.Get("get-endpoint", "/endpoints/{name}",
		"An endpoint's listeners and work"), s.getEndpoint)
	apicore.Register(s.Core, api, apicore.Post("set-endpoint", "/endpoints/{name}/settings",
		"Set an endpoint's concurrency, budget, rate or canary, or close its breaker",
		"Limits apply immediately on every node; instances adopt their concurrency within seconds. The "+
			"endpoint need not be known yet."), s.setEndpoint)
}

func (s *endpointRoutes) listEndpoints(ctx context.Context, _ *struct{}) (EndpointList, error) {
	found, err := s.endpoints(ctx)
	if err != nil {
		return EndpointList{}, err
	}
	list := EndpointList{Endpoints: []Endpoint{}}
	for _, e := range found {
		if err := s.doers(ctx, e); err != nil {
			return EndpointList{}, err
		}
		list.Endpoints = append(list.Endpoints, *e)
	}
	slices.SortFunc(list.Endpoints, func(a, b Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func (s *endpointRoutes) getEndpoint(ctx context.Context, in *apicore.EndpointPath) (Endpoint, error) {
	if err := apicore.CheckTarget(&in.Endpoint); err != nil {
		return Endpoint{}, err
	}
	found, err := s.endpoints(ctx)
	if err != nil {
		return Endpoint{}, err
	}
	e, ok := found[in.Endpoint]
	if !ok {
		return s.unused(ctx, in.Endpoint)
	}
	if e.Changes, err = inspect.New(s.Store).PastPaces(ctx, in.Endpoint, shownChanges); err != nil {
		return Endpoint{}, err
	}
	s.compare(ctx, e)
	if len(e.Listeners) > 0 {
		asking, cancel := context.WithTimeout(ctx, apicore.ListenWait)
		defer cancel()
		said, err := wire.AskContract(asking, s.NC, e.Name)
		if err != nil {
			return Endpoint{}, err
		}
		e.Reads, e.Answers = said.In, said.Out
	}
	return *e, s.doers(ctx, e)
}

func (s *endpointRoutes) unused(ctx context.Context, name string) (Endpoint, error) {
	kind, _ := workqueue.TargetKind(name)
	if kind == workqueue.KindEndpoint {
		return Endpoint{}, apicore.Seen(fmt.Errorf("no service listens on endpoint %q, and no running run uses it: %w", name,
			workqueue.ErrNotFound), "tranche endpoints")
	}
	e := Endpoint{Name: name, Kind: string(kind), Listeners: []Listener{}}
	err := s.doers(ctx, &e)
	if err == nil {
		e.Changes, err = inspect.New(s.Store).PastPaces(ctx, name, shownChanges)
	}
	return e, err
}

func (s *endpointRoutes) doers(ctx context.Context, e *Endpoint) (err error) {
	if workqueue.Kind(e.Kind) == workqueue.KindEndpoint || workqueue.Kind(e.Kind) == workqueue.KindDirect {
		return s.backlog(ctx, e)
	}
	e.Nodes, err = inspect.New(s.Store).NodesFor(ctx, e.Name)
	return err
}

const shownChanges = 20

type setEndpointInput struct {
	apicore.EndpointPath
	apicore.Changer
	Body pace.EndpointChange
}

func (s *endpointRoutes) setEndpoint(ctx context.Context, in *setEndpointInput) (pace.EndpointSetting, error) {
	if err := apicore.CheckTarget(&in.Endpoint); err != nil {
		return pace.EndpointSetting{}, err
	}
	if reflect.ValueOf(in.Body).IsZero() {
		return pace.EndpointSetting{}, apicore.BadInput(
			"give concurrency, max_in_flight, rate, request_rate, namespaces, canary, chunk_cap or breaker")
	}
	if err := s.checkCanary(ctx, in.Endpoint, in.Body.Canary); err != nil {
		return pace.EndpointSetting{}, err
	}
	if err := apicore.CheckIfWas(in.Body, in.Body.IfWas); err != nil {
		return pace.EndpointSetting{}, err
	}
	in.Body.Endpoint = in.Endpoint
	return s.setter.ChangeEndpoint(ctx, in.Body, in.Name)
}

func (s *endpointRoutes) endpoints(ctx context.Context) (map[string]*Endpoint, error) {
	loads, err := inspect.New(s.Store).EndpointLoads(ctx)
	if err != nil {
		return nil, err
	}
	settings, err := pace.New(s.Store).EndpointSettings(ctx)
	if err != nil {
		return nil, err
	}
	paces, err := inspect.New(s.Store).Paces(ctx)
	if err != nil {
		return nil, err
	}
	if !s.NC.IsConnected() {
		return nil, apicore.ErrNoNATS
	}
	listeners, err := wire.Discover(ctx, s.NC, apicore.ListenWait)
	if err != nil {
		return nil, err
	}
	byName := map[string]*Endpoint{}
	named := func(name string) *Endpoint {
		if byName[name] == nil {
			byName[name] = newEndpoint(name)
		}
		return byName[name]
	}
	for _, l := range loads {
		e := named(l.Endpoint)
		e.Runs, e.Waiting, e.Ready, e.InFlight, e.Scheduled = l.Runs, l.Waiting, l.Ready, l.InFlight, l.Scheduled
		if l.Plain {
			e.Kind = string(workqueue.KindDirect)
		}
	}
	for _, set := range settings {
		if isSet(&set) {
			e := named(set.Endpoint)
			e.Concurrency, e.MaxInFlight, e.RateLimit = set.Concurrency, set.MaxInFlight, set.Rate
			e.RequestRate, e.Namespaces = set.RequestRate, set.Namespaces
		}
	}
	for i := range listeners {
		named(listeners[i].Endpoint).add(&listeners[i])
	}
	addPaces(byName, paces)
	addCanaries(byName, settings)
	return byName, nil
}

// isSet reports whether an endpoint has settings that count while it has neither runs nor services.
func isSet(s *pace.EndpointSetting) bool {
	return s.Concurrency > 0 || s.MaxInFlight > 0 || s.Rate > 0 || s.RequestRate > 0 || s.CanaryShare > 0 ||
		s.Namespaces != nil
}

func newEndpoint(name string) *Endpoint {
	kind, _ := workqueue.TargetKind(name)
	return &Endpoint{Name: name, Kind: string(kind), Listeners: []Listener{}}
}

// addPaces adds what nodes learned about endpoints. Paces of past endpoints are kept too, but listed only if the
// breaker of a collector's endpoint is open: a name that only a past run used may never have been an endpoint.
func addPaces(byName map[string]*Endpoint, paces []inspect.PaceView) {
	for i := range paces {
		p := &paces[i]
		if byName[p.Endpoint] == nil && p.Collected && p.Breaker == workqueue.BreakerOpen {
			byName[p.Endpoint] = newEndpoint(p.Endpoint)
		}
		if e := byName[p.Endpoint]; e != nil {
			e.Pace = p
		}
	}
}

func (e *Endpoint) add(l *wire.Listener) {
	one := Listener{
		Service: l.Service, Version: l.Version, Instance: l.Instance, Host: l.Host, State: string(l.State),
		Reason: l.Reason, Concurrency: l.Concurrency, InFlight: l.InFlight, Lane: l.Lane, Stages: l.Stages,
		Items: l.Processed, Errors: l.Errors, ItemMillis: millis(l.AvgPerItem), Rate: l.Rate, P50Millis: millis(l.P50),
		P99Millis: millis(l.P99), Redelivered: l.Redelivered, GivenUp: l.GivenUp, Dead: l.Dead, Rebinds: l.Rebinds,
	}
	if rate := e.Rate + one.Rate; rate > 0 {
		e.P50Millis = (e.P50Millis*e.Rate + one.P50Millis*one.Rate) / rate
	}
	e.Rate += one.Rate
	e.P99Millis = max(e.P99Millis, one.P99Millis)
	e.Items += one.Items
	e.Errors += one.Errors
	e.Listeners = append(e.Listeners, one)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// backlog adds the chunks waiting in JetStream and those in the lane of waiting callers.
func (s *endpointRoutes) backlog(ctx context.Context, e *Endpoint) error {
	js, err := jetstream.New(s.NC)
	if err == nil {
		e.Backlog, e.Processing, err = queued(ctx, js, e.Name)
	}
	if err == nil {
		e.CallsBacklog, e.CallsProcessing, err = queued(ctx, js, wire.LaneOf(e.Name))
	}
	if err != nil {
		return fmt.Errorf("check the backlog of %s: %w", e.Name, err)
	}
	return nil
}

// queued returns how many requests wait at an endpoint's consumer and how many are taken. A missing consumer has had
// no request yet.
func queued(ctx context.Context, js jetstream.JetStream, name string) (waiting uint64, taken int, err error) {
	consumer, err := js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(name))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	info := consumer.CachedInfo() // just fetched
	return info.NumPending, info.NumAckPending, nil
}
