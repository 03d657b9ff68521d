package endpoints

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"

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
	// Stale counts replies to a flow whose chunk had gone on, Refused those that nobody waited for, or not from there.
	Stale, Refused int64

	State      wire.State
	Reason     string        // of StateWaiting, or what is denied to one that listens all the same
	Rate       float64       // items a second, in the last minute
	P50, P99   time.Duration // an item, in the last minute: the time of its chunk divided by the chunk's items
	AvgPerItem time.Duration // since Run
}

// stats counts what an endpoint has done since Run.
type stats struct {
	chunks, items, errors      atomic.Int64
	redelivered, givenUp, dead atomic.Int64
	busy                       atomic.Int64 // nanoseconds from the delivery of a chunk to its last acknowledgement
	latency                    latency
}

// add counts a chunk of which items were worked on, and answered ones answered: a stage of a flow may answer none.
func (s *stats) add(items, answered, errors int, took time.Duration) {
	s.chunks.Add(1)
	s.items.Add(int64(answered))
	s.errors.Add(int64(errors))
	s.busy.Add(int64(took))
	s.latency.add(time.Now(), items, answered, took)
}

// came counts a request, or a reply to a flow, by which delivery it is.
func (s *stats) came(delivered uint64) {
	if delivered > 1 {
		s.redelivered.Add(1)
	}
}

// failed counts what speaks for a chunk in the end, if anything does.
func (s *stats) failed(failure *wire.SlotError) {
	if failure != nil && failure.Code == wire.CodeDeliveries {
		s.givenUp.Add(1)
	}
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

func (e *endpointServer) snapshot() EndpointStats {
	pace := e.stats.latency.pace(time.Now())
	all := EndpointStats{
		Endpoint: e.name, Chunks: e.stats.chunks.Load(), Items: e.stats.items.Load(), Errors: e.stats.errors.Load(),
		Redelivered: e.stats.redelivered.Load(), GivenUp: e.stats.givenUp.Load(), Dead: e.stats.dead.Load(),
		InFlight: e.held(), Concurrency: e.slots.len(), Lane: e.lane(), Rate: pace.rate, P50: pace.p50, P99: pace.p99,
	}
	if e.flow != nil {
		all.Stages, all.Stale, all.Refused = e.flow.stages, e.flow.stale.Load(), e.flow.refused.Load()
	}
	if all.Items > 0 {
		all.AvgPerItem = time.Duration(e.stats.busy.Load() / all.Items)
	}
	all.State = wire.StateListening
	for _, p := range e.pullers() {
		all.Rebinds += p.life.rebinds.Load()
		if state, reason := p.life.state(); state != wire.StateListening && all.State != wire.StateDraining {
			all.State, all.Reason = state, reason
		}
	}
	if all.Reason == "" {
		all.Reason = e.service.outbox.perms.Reason(e.name)
	}
	return all
}

// lane reports whether calls are read apart from chunks. Until a node has made the consumer for them they come with
// these.
func (e *endpointServer) lane() bool {
	state, _ := e.calls.life.state()
	return state == wire.StateListening
}

// pullers returns all that fetch for the endpoint.
func (e *endpointServer) pullers() []*puller {
	if e.flow != nil {
		return []*puller{e.work, e.flow.replies}
	}
	return []*puller{e.work}
}

// endpointStatus is the "data" of an endpoint in a $SRV.STATS answer.
type endpointStatus struct {
	Chunks      int64      `json:"chunks"`
	Processed   int64      `json:"processed"`    // items
	Errors      int64      `json:"errors"`       // items of those that got an error slot
	InFlight    int        `json:"in_flight"`    // chunks held
	Average     int64      `json:"avg_per_item"` // nanoseconds
	Rate        float64    `json:"rate"`         // items a second, in the last minute
	P50         int64      `json:"p50"`          // nanoseconds an item, in the last minute
	P99         int64      `json:"p99"`
	Concurrency int        `json:"concurrency"`
	Each        bool       `json:"each"` // concurrency is of items
	Lane        bool       `json:"lane"`
	State       wire.State `json:"state"`
	Reason      string     `json:"reason,omitempty"` // of StateWaiting, or what is denied
	Redelivered int64      `json:"redelivered"`
	GivenUp     int64      `json:"given_up"`
	Dead        int64      `json:"dead"`
	Stages      int        `json:"stages"` // 0 when it is not a flow
	Rebinds     int64      `json:"rebinds"`
}

func (e *endpointServer) status() endpointStatus {
	all := e.snapshot()
	return endpointStatus{Chunks: all.Chunks, Processed: all.Items, Errors: all.Errors, InFlight: all.InFlight,
		Average: int64(all.AvgPerItem), Rate: all.Rate, P50: int64(all.P50), P99: int64(all.P99),
		Concurrency: all.Concurrency, Each: e.byItem, Lane: all.Lane, State: all.State, Reason: all.Reason,
		Redelivered: all.Redelivered,
		GivenUp:     all.GivenUp, Dead: all.Dead, Stages: all.Stages, Rebinds: all.Rebinds}
}

// announce lists the service through NATS's own discovery ($SRV.PING, INFO, STATS), so that a node, or the nats tool,
// can see who listens. It returns what takes it off the list.
func (s *Service) announce() (unlist func(), err error) {
	byName := map[string]*endpointServer{}
	for _, e := range s.endpoints {
		byName[e.name] = e
	}
	listed, err := micro.AddService(s.nc, micro.Config{
		Name: s.config.Name, Version: s.config.Version, Description: "serves Tranche endpoints",
		Metadata: map[string]string{wire.MetaProtocol: wire.ProtocolVersion, wire.MetaHost: s.host,
			wire.MetaInstance: s.instance, wire.MetaSDK: "tranche-go " + buildinfo.Read().String()},
		StatsHandler: func(at *micro.Endpoint) any {
			if e := byName[at.Name]; e != nil {
				return e.status()
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
		// The subject answers a ping; what matters is that the endpoint appears in STATS.
		err := listed.AddEndpoint(e.name, micro.HandlerFunc(func(r micro.Request) { _ = r.RespondJSON(e.status()) }),
			micro.WithEndpointSubject(wire.StatusPrefix+e.name))
		if err != nil {
			unlist()
			return nil, fmt.Errorf("announce endpoint %s: %w", e.name, err)
		}
	}
	return unlist, nil
}
