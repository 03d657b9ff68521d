package main

import (
	"context"
	"errors"
	"os"
)

// tranche measures the real program from outside: a node with the NATS server in it, and the echo service, each a
// process. The clock runs from the first byte of a CSV stream sent to the HTTP API until the completion event is here.
// What is in it, and not in the floor: parsing CSV, an index on the items' keys, state, attempts and fences, two hops
// through JetStream's file store, JSON decoded and encoded by the service, the tracker.
type tranche struct {
	label    string
	endpoint string
	cfg      config
	pg       *cluster
	input    items
	how      string
}

func newTranche(cfg config, pg *cluster, input items) *tranche {
	return &tranche{label: "tranche", endpoint: echoEndpoint, cfg: cfg, pg: pg, input: input}
}

// newFlow measures the same with an endpoint in three stages: each item is asked about twice on its way.
func newFlow(cfg config, pg *cluster, input items) *tranche {
	return &tranche{label: "flow", endpoint: flowEndpoint, cfg: cfg, pg: pg, input: input}
}

func (t *tranche) name() string { return t.label }
func (t *tranche) size() int    { return t.input.n }
func (t *tranche) setup() string {
	if t.endpoint == flowEndpoint {
		return "as tranche; an endpoint of three stages asks another of the same service twice for each item"
	}
	return t.how
}

func (t *tranche) measure(ctx context.Context) (s sample, err error) {
	b, err := openBed(ctx, t.cfg, t.pg)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	t.how = b.String()
	watch, err := t.pg.startWatch(ctx, processes{
		"node": b.node.pid(), "service": b.service.pid(), "client": os.Getpid(),
	})
	if err != nil {
		return s, err
	}
	peaks := watchPeaks(b.node.pid(), b.storeDir())
	done, err := b.complete(ctx, work{endpoint: t.endpoint}, t.input)
	if err != nil {
		peaks.stop()
		return s, err
	}
	s, err = watch.stop(ctx, t.input.n)
	s.Intake = done.loaded.Sub(watch.begun).Seconds()
	s.PeakAnon, s.PeakStore = peaks.stop()
	if err != nil {
		return s, err
	}
	return s, b.check(ctx, done.run, t.input.n)
}
