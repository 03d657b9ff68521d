package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// listenWait is how long services have to say that they listen.
const listenWait = 300 * time.Millisecond

// Info says what this server is and where its parts are.
type Info struct {
	Version string              `json:"version"`
	Session workqueue.SessionID `json:"session"`
	NATS    string              `json:"nats"`
	Parts   map[string]string   `json:"parts"`
}

// Endpoint is one endpoint with those who listen on it and the work there is for it.
type Endpoint struct {
	Name       string     `json:"name"`
	Listeners  []Listener `json:"listeners"`
	Runs       int        `json:"runs" doc:"running runs that use it"`
	Ready      int64      `json:"ready" doc:"items that could be sent"`
	InFlight   int64      `json:"in_flight" doc:"items asked for and not answered"`
	Scheduled  int64      `json:"scheduled" doc:"items that wait to be tried again"`
	Backlog    uint64     `json:"backlog" doc:"requests that no service has taken"`
	Processing int        `json:"processing" doc:"requests that a service has taken and not answered"`
}

// Listener is one instance of a service.
type Listener struct {
	Service    string  `json:"service"`
	Version    string  `json:"version"`
	Instance   string  `json:"instance"`
	Host       string  `json:"host,omitempty"`
	Items      int64   `json:"items" doc:"since it started"`
	Errors     int64   `json:"errors"`
	ItemMillis float64 `json:"item_millis" doc:"time for one item, on average"`
}

// EndpointList is the answer to a question for endpoints.
type EndpointList struct {
	Endpoints []Endpoint `json:"endpoints"`
}

func (s *Server) registerSystem(api huma.API) {
	register(s, api, get("info", "/info", "What this server is"), s.info)
	register(s, api, get("list-endpoints", "/endpoints", "Who listens, and the work there is"), s.listEndpoints)
	check := get("doctor", "/doctor", "Check the invariants over the whole database")
	registerWithin(s, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (workqueue.Report, error) {
		return s.store.Doctor(ctx)
	})
}

func (s *Server) info(context.Context, *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Version, Session: s.engine.Session(), NATS: s.nc.ConnectedUrlRedacted(),
		Parts: map[string]string{},
	}
	maps.Copy(info.Parts, s.config.Info)
	return info, nil
}

func (s *Server) listEndpoints(ctx context.Context, _ *struct{}) (EndpointList, error) {
	loads, err := s.store.EndpointLoads(ctx)
	if err != nil {
		return EndpointList{}, err
	}
	if !s.nc.IsConnected() {
		return EndpointList{}, errNoNATS
	}
	listeners, err := endpoints.Discover(ctx, s.nc, listenWait)
	if err != nil {
		return EndpointList{}, err
	}
	byName := map[string]*Endpoint{}
	named := func(name string) *Endpoint {
		if byName[name] == nil {
			byName[name] = &Endpoint{Name: name, Listeners: []Listener{}}
		}
		return byName[name]
	}
	for _, l := range loads {
		e := named(l.Endpoint)
		e.Runs, e.Ready, e.InFlight, e.Scheduled = l.Runs, l.Ready, l.InFlight, l.Scheduled
	}
	for _, l := range listeners {
		e := named(l.Endpoint)
		e.Listeners = append(e.Listeners, Listener{
			Service: l.Service, Version: l.Version, Instance: l.Instance, Host: l.Host, Items: l.Processed,
			Errors: l.Errors, ItemMillis: float64(l.AvgPerItem) / float64(time.Millisecond),
		})
	}
	list := EndpointList{Endpoints: []Endpoint{}}
	for _, e := range byName {
		if err := s.backlog(ctx, e); err != nil {
			return EndpointList{}, err
		}
		list.Endpoints = append(list.Endpoints, *e)
	}
	slices.SortFunc(list.Endpoints, func(a, b Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// backlog asks JetStream. An endpoint without a consumer has had no request yet.
func (s *Server) backlog(ctx context.Context, e *Endpoint) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("look at the backlog of %s: %w", e.Name, err)
	}
	consumer, err := js.Consumer(ctx, endpoints.StreamWork, endpoints.ConsumerName(e.Name))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the backlog of %s: %w", e.Name, err)
	}
	info := consumer.CachedInfo() // just fetched
	e.Backlog, e.Processing = info.NumPending, info.NumAckPending
	return nil
}

// warnings says what keeps a running run from going on.
func (s *Server) warnings(ctx context.Context, run *workqueue.RunView) []string {
	if run.State != "running" {
		return []string{}
	}
	names := []string{}
	for i := range run.Steps {
		if st := &run.Steps[i]; st.Done+st.Failed < st.Items {
			names = append(names, st.Endpoint)
		}
	}
	return s.unheard(ctx, names)
}

const noNATSWarning = "NATS does not answer, so nothing is sent to services at the moment"

// unheard warns of endpoints that no service listens on.
func (s *Server) unheard(ctx context.Context, names []string) []string {
	warnings := []string{}
	if len(names) > 0 && !s.nc.IsConnected() {
		return append(warnings, noNATSWarning)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return s.pulled(ctx, name) })
	if len(names) == 0 {
		return warnings
	}
	listeners, err := endpoints.Discover(ctx, s.nc, listenWait)
	if err != nil {
		return append(warnings, noNATSWarning)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		heard := slices.ContainsFunc(listeners, func(l endpoints.Listener) bool { return l.Endpoint == name })
		if !heard {
			warnings = append(warnings, "no service listens on endpoint "+name+"; the run goes on as soon as one does")
		}
	}
	return warnings
}

// pulled reports whether somebody takes requests for an endpoint right now. It is much quicker than to ask who listens,
// but a service that pauses between two pulls goes unseen.
func (s *Server) pulled(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, listenWait)
	defer cancel()
	js, err := jetstream.New(s.nc)
	if err != nil {
		return false
	}
	consumer, err := js.Consumer(ctx, endpoints.StreamWork, endpoints.ConsumerName(name))
	if err != nil {
		return false // asking who listens will tell
	}
	info := consumer.CachedInfo() // just fetched
	return info.NumWaiting > 0    // what is unacknowledged may be in the hands of a service that is dead
}
