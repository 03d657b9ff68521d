package stream

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// laneKnown is no wait: how long it is taken for true that an endpoint reads calls apart from chunks.
	laneKnown = 5 * time.Second
	// laneUnknown is no wait: how long it is taken for true that an endpoint does not.
	laneUnknown = time.Second
	// laneTimeout is how long a caller waits to hear whether an endpoint does; then the call goes where chunks go.
	laneTimeout = 250 * time.Millisecond
)

// laneState is what is known of one endpoint.
type laneState struct {
	has   bool
	until time.Time
}

// knownLanes is what is known over one connection. The zero value is ready.
type knownLanes struct {
	mu sync.Mutex
	of map[string]laneState
}

// HasLane reports whether the instances of an endpoint read calls apart from chunks. Of those the one that answers
// first speaks for all. Where nobody answers, or nobody may be asked, calls go where chunks go.
func HasLane(ctx context.Context, nc *nats.Conn, endpoint string) bool {
	p := PermissionsOf(nc)
	p.lanes.mu.Lock()
	known := p.lanes.of[endpoint]
	p.lanes.mu.Unlock()
	if time.Now().Before(known.until) {
		return known.has
	}
	known = laneState{until: time.Now().Add(laneUnknown)}
	if known.has = p.askLane(ctx, endpoint); known.has {
		known.until = time.Now().Add(laneKnown)
	}
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	if p.lanes.of == nil {
		p.lanes.of = map[string]laneState{}
	}
	p.lanes.of[endpoint] = known
	return known.has
}

func (p *Permissions) askLane(ctx context.Context, endpoint string) bool {
	ctx, cancel := context.WithTimeout(ctx, laneTimeout)
	defer cancel()
	subject := wire.StatusSubject(endpoint)
	var status struct {
		Lane bool `json:"lane"`
	}
	err := p.During(ctx, func(ctx context.Context) error {
		msg, err := p.nc.RequestWithContext(ctx, subject, nil)
		if err == nil {
			err = json.Unmarshal(msg.Data, &status)
		}
		return err
	}, subject)
	return err == nil && status.Lane
}
