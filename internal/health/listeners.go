package health

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	// listenWait is how long services have to answer discovery.
	listenWait = 300 * time.Millisecond
	// asksAtOnce limits concurrent requests to JetStream.
	asksAtOnce = 8
)

type unheard struct {
	health.WorkingEndpoint
	like string // a similar endpoint with listeners that may have been meant; may be empty
}

// unheard finds targets without listeners; known is false if that could not be checked.
func (w *Watch) unheard(ctx context.Context, db *health.Facts) (none []unheard, known bool) {
	var services []health.WorkingEndpoint
	for _, e := range db.Working {
		switch kind, target := workqueue.TargetKind(e.Endpoint); kind {
		case workqueue.KindEndpoint:
			services = append(services, e)
		case workqueue.KindLocal:
			if !slices.ContainsFunc(db.Nodes, func(n health.NodeHealth) bool { return n.Has(target) }) {
				none = append(none, unheard{WorkingEndpoint: e})
			}
		default: // every node can do it
		}
	}
	if len(services) == 0 {
		return none, true
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	if services = w.withoutPulls(ctx, services); len(services) == 0 {
		return none, true
	}
	heard, err := wire.Discover(ctx, w.cfg.NC, listenWait)
	if err != nil {
		return none, false
	}
	for _, e := range services {
		if !slices.ContainsFunc(heard, func(l wire.Listener) bool { return l.Endpoint == e.Endpoint }) {
			none = append(none, unheard{e, wire.Nearest(e.Endpoint, heard)})
		}
	}
	return none, true
}

// withoutPulls returns the endpoints without a pulling client in JetStream: without listeners, or with busy ones
// only. In most cases this saves the discovery of services.
func (w *Watch) withoutPulls(ctx context.Context, all []health.WorkingEndpoint) []health.WorkingEndpoint {
	js, err := jetstream.New(w.cfg.NC)
	if err != nil {
		return all
	}
	var mu sync.Mutex
	var left []health.WorkingEndpoint
	var asks sync.WaitGroup
	free := make(chan struct{}, asksAtOnce)
	for _, e := range all {
		free <- struct{}{}
		asks.Go(func() {
			defer func() { <-free }()
			if e.Plain || !pulled(ctx, js, e.Endpoint) {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, e)
			}
		})
	}
	asks.Wait()
	return left
}

func pulled(ctx context.Context, js jetstream.JetStream, endpoint string) bool {
	consumer, err := js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(endpoint))
	return err == nil && consumer.CachedInfo().NumWaiting > 0 // just fetched
}
