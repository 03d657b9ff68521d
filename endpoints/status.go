package endpoints

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"
)

// Keys of the metadata with which a service is listed.
const (
	metaProtocol = "tranche"
	metaHost     = "host"
	metaInstance = "instance"
)

// stats counts what an endpoint has done since Run.
type stats struct {
	chunks, items, errors atomic.Int64
	busy                  atomic.Int64 // nanoseconds from the delivery of a chunk to its last acknowledgement
}

func (s *stats) add(items, errors int, took time.Duration) {
	s.chunks.Add(1)
	s.items.Add(int64(items))
	s.errors.Add(int64(errors))
	s.busy.Add(int64(took))
}

// endpointStatus is the "data" of an endpoint in a $SRV.STATS answer.
type endpointStatus struct {
	Chunks    int64 `json:"chunks"`
	Processed int64 `json:"processed"`    // items
	Errors    int64 `json:"errors"`       // items of those that got an error slot
	InFlight  int   `json:"in_flight"`    // chunks held
	Average   int64 `json:"avg_per_item"` // nanoseconds
}

func (e *endpointServer) status() endpointStatus {
	status := endpointStatus{Chunks: e.stats.chunks.Load(), Processed: e.stats.items.Load(),
		Errors: e.stats.errors.Load(), InFlight: e.held()}
	if status.Processed > 0 {
		status.Average = e.stats.busy.Load() / status.Processed
	}
	return status
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
		Metadata: map[string]string{metaProtocol: ProtocolVersion, metaHost: s.host, metaInstance: s.instance},
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
			micro.WithEndpointSubject(statusPrefix+e.name))
		if err != nil {
			unlist()
			return nil, fmt.Errorf("announce endpoint %s: %w", e.name, err)
		}
	}
	return unlist, nil
}
