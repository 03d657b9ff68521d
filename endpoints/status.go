package endpoints

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/buildinfo"
)

// EndpointStats is the state of an endpoint in one instance; counts are since Run.
type EndpointStats struct {
	Endpoint string
	Chunks   int64 // processed; a flow counts one per stage
	Items    int64 // answered
	Errors   int64 // of Items, those answered with an error slot
	// Redelivered counts repeated deliveries, GivenUp requests failed with CodeDeliveries, Dead dead letters, and
	// Rebinds how often the endpoint recovered its lost consumer.
	Redelivered, GivenUp, Dead, Rebinds int64

	InFlight    int // chunks processed or queued
	Concurrency int
	// Lane reports whether calls are read apart from chunks.
	Lane   bool
	Stages int // of a flow, else 0
	// Stale counts replies for chunks that had moved on, Refused unexpected replies or replies from the wrong endpoint.
	Stale, Refused int64

	State      wire.State
	Reason     string        // why StateWaiting, or which permission a listening endpoint lacks
	Rate       float64       // items per second, over the last minute
	P50, P99   time.Duration // per item, over the last minute: a chunk's time divided by its items
	AvgPerItem time.Duration // since Run
}

// Stats returns the statistics of all endpoints in registration order.
func (s *Service) Stats() []EndpointStats {
	s.mu.Lock()
	endpoints := slices.Clone(s.endpoints)
	s.mu.Unlock()
	all := make([]EndpointStats, len(endpoints))
	for i, e := range endpoints {
		all[i] = e.snapshot()
	}
	return all
}

func (e *endpoint) snapshot() EndpointStats {
	now := e.Status()
	all := EndpointStats{
		Endpoint: e.Name, Chunks: now.Chunks, Items: now.Processed, Errors: now.Errors, Redelivered: now.Redelivered,
		GivenUp: now.GivenUp, Dead: now.Dead, Rebinds: now.Rebinds, InFlight: now.InFlight, Concurrency: now.Concurrency,
		Lane: now.Lane, Stages: now.Stages, State: now.State, Reason: now.Reason, Rate: now.Rate,
		P50: time.Duration(now.P50), P99: time.Duration(now.P99), AvgPerItem: time.Duration(now.Average),
	}
	if e.flow != nil {
		all.Stale, all.Refused = e.flow.Stale.Load(), e.flow.Refused.Load()
	}
	return all
}

// announce registers the service with NATS discovery ($SRV.PING, INFO, STATS) for nodes and the nats CLI.
func (s *Service) announce() (unlist func(), err error) {
	byName := map[string]*endpoint{}
	for _, e := range s.endpoints {
		byName[e.Name] = e
	}
	listed, err := micro.AddService(s.host.NC, micro.Config{
		Name: s.config.Name, Version: s.config.Version, Description: "serves Tranche endpoints",
		Metadata: map[string]string{wire.MetaProtocol: wire.ProtocolVersion, wire.MetaHost: s.machine,
			wire.MetaInstance: s.instance, wire.MetaSDK: "tranche-go " + buildinfo.Read().String()},
		StatsHandler: func(at *micro.Endpoint) any {
			if e := byName[at.Name]; e != nil {
				return e.Status()
			}
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("announce: %w", err)
	}
	unlist = func() {
		if err := listed.Stop(); err != nil {
			s.config.Log.Debug("the service could not be taken off the list", zap.Error(err))
		}
	}
	for _, e := range s.endpoints {
		err := listed.AddEndpoint(e.Name, micro.HandlerFunc(func(r micro.Request) {
			// STATS, which nodes poll, omits the contract.
			_ = r.RespondJSON(struct {
				serve.Status
				Contract wire.Contract `json:"contract"`
			}{e.Status(), e.Contract})
		}),
			micro.WithEndpointSubject(wire.StatusPrefix+e.Name))
		if err != nil {
			unlist()
			return nil, fmt.Errorf("announce endpoint %s: %w", e.Name, err)
		}
	}
	return unlist, nil
}

// NotReadyError names an endpoint that takes no requests, and why.
type NotReadyError struct {
	Endpoint string
	State    wire.State // empty if the service does not run
	Reason   string
}

func (e *NotReadyError) Error() string {
	if e.State == "" {
		return fmt.Sprintf("endpoint %s is not served yet", e.Endpoint)
	}
	text := fmt.Sprintf("endpoint %s is %s", e.Endpoint, e.State)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Ready returns nil while all endpoints listen, else a *NotReadyError. Use it for Kubernetes readiness, not liveness:
// a service waiting for NATS or a node needs no restart.
func (s *Service) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.endpoints {
		state, reason := e.Work.Life.State()
		if !s.running {
			state, reason = "", ""
		}
		if state != wire.StateListening {
			return &NotReadyError{e.Name, state, reason}
		}
	}
	if len(s.endpoints) == 0 {
		return &NotReadyError{Endpoint: "none"}
	}
	return nil
}

// SetConcurrency changes an endpoint's concurrency for this instance: chunks (HandleList, HandleFlow) or items
// (HandleEach) in parallel, 1 to MaxConcurrency; 0 restores the option. It may be called at any time. An increase
// applies immediately, a decrease as chunks or items end. A value set by an operator has precedence while it is set.
func (s *Service) SetConcurrency(endpoint string, n int) error {
	if n < 0 || n > wire.MaxConcurrency {
		return fmt.Errorf("set concurrency of endpoint %s: %d is not 0 to %d", endpoint, n, wire.MaxConcurrency)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.endpoints {
		if e.Name == endpoint {
			e.Setting.SetOwn(n)
			return nil
		}
	}
	return fmt.Errorf("set concurrency of endpoint %.80q: it has no handler", endpoint)
}
