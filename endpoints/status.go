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

// EndpointStats is what one instance has done for an endpoint since Run, and what it is doing.
type EndpointStats struct {
	Endpoint string
	Chunks   int64 // worked on; a flow works on one in each stage
	Items    int64 // answered
	Errors   int64 // items of those that got an error slot
	// Redelivered counts requests that came not for the first time, GivenUp those answered with CodeDeliveries, Dead those
	// dead-lettered, and Rebinds how often the endpoint has lost its consumer and found it again.
	Redelivered, GivenUp, Dead, Rebinds int64

	InFlight    int // chunks held: at work, or waiting their turn
	Concurrency int
	// Lane says that calls are read apart from chunks.
	Lane   bool
	Stages int // of a flow; otherwise 0
	// Stale counts replies to a flow whose chunk had gone on, Refused those that no one waited for, or not from there.
	Stale, Refused int64

	State      wire.State
	Reason     string        // of StateWaiting, or what is denied to one that listens anyway
	Rate       float64       // items a second, in the last minute
	P50, P99   time.Duration // an item, in the last minute: the time of its chunk divided by the chunk's items
	AvgPerItem time.Duration // since Run
}

// Stats returns what each endpoint has done, in the order in which they were added: for metrics.
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

// announce lists the service through NATS's own discovery ($SRV.PING, INFO, STATS), so that a node, or the nats tool,
// can see who listens. It returns what takes it off the list.
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
			// STATS, which nodes ask for all the time, leaves the contract out.
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

// NotReadyError says which endpoint of a service takes no requests, and why.
type NotReadyError struct {
	Endpoint string
	State    wire.State // empty: the service does not run
	Reason   string
}

// Error says it in a line.
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

// Ready returns nil while every endpoint of the service listens, and a *NotReadyError otherwise: for the readiness
// probe of Kubernetes. A service that waits for NATS or for a node is not ready, and not ill: it needs no restart.
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

// SetConcurrency changes how many chunks (HandleList, HandleFlow) or items (HandleEach) of an endpoint this instance
// handles at once, from 1 to MaxConcurrency; 0 goes back to the option. It may be called at any time. More is of use at
// once; less takes effect as chunks end, or, with HandleEach, items. What operators set for the endpoint comes first:
// while they do, n waits for its turn.
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
