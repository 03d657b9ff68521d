// Package endpoint looks after the consumers by which services are handed their requests: it makes them, and brings
// what operators have set to them.
package endpoint

import (
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
)

// endpointSet is the endpoints whose consumers are known to exist in the present epoch.
type endpointSet struct {
	making singleflight.Group

	mu    sync.Mutex
	epoch int64
	known map[string]bool
}

func (s *endpointSet) has(epoch int64, endpoint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch == s.epoch && s.known[endpoint]
}

func (s *endpointSet) add(epoch int64, endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch > s.epoch {
		s.epoch, s.known = epoch, map[string]bool{}
	}
	if epoch == s.epoch {
		s.known[endpoint] = true
	}
}

// exhaustedSweeper sees to messages that are delivered no more.
type exhaustedSweeper interface {
	// Sweep gives up those that two sweeps in a row find left in the streams.
	Sweep(ctx context.Context, all []ConsumersOf) error
	// Forget begins anew.
	Forget()
}

// Consumers are those of endpoints: what services are handed their requests by.
type Consumers struct {
	node     *kernel.Kernel
	streams  kernel.Epochs
	interval time.Duration // between two looks, by the node that leads
	made     endpointSet
	places   places // of services
}

// New returns what looks after consumers, at an interval.
func New(k *kernel.Kernel, streams kernel.Epochs, interval time.Duration) *Consumers {
	return &Consumers{node: k, streams: streams, interval: interval, made: endpointSet{known: map[string]bool{}}}
}

// Forget has the next who asks for an endpoint's consumer look whether it is there.
func (e *Consumers) Forget(endpoint string) { e.made.forget(endpoint) }

// Ensure sees to it that the endpoint's durable consumer exists, and returns the epoch in which it does. One
// that cannot be made keeps no other endpoint waiting.
func (e *Consumers) Ensure(ctx context.Context, endpoint string) (int64, error) {
	epoch, _ := e.streams.Now()
	if e.made.has(epoch, endpoint) {
		return epoch, nil
	}
	_, err, _ := e.made.making.Do(endpoint+" "+strconv.FormatInt(epoch, 10), func() (any, error) {
		timed, cancel := context.WithTimeout(ctx, kernel.PublishTimeout)
		defer cancel()
		settings, err := e.settings(timed, endpoint)
		if err != nil {
			return nil, err
		}
		if err := stream.EnsureConsumer(timed, e.node.JS, endpoint, settings); err != nil {
			return nil, err
		}
		e.made.add(epoch, endpoint)
		return nil, nil
	})
	return epoch, err
}

// forget makes the next publication to an endpoint ensure its consumer again.
func (s *endpointSet) forget(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, endpoint)
}
