package orchestrator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
)

// pulse is what a node says of itself with each heartbeat.
type pulse struct {
	Stats
	NATS    bool                    `json:"nats"`              // it is connected; explanations read it
	Stalled *streams.StalledStreams `json:"stalled,omitempty"` // it is, and the streams do not answer; likewise
	Refused string                  `json:"refused,omitempty"` // what NATS refuses its user; likewise
	Locals  []string                `json:"locals"`            // its functions for steps of kind local; likewise
	// Duties are there while it leads; the view of the nodes reads them.
	Duties []inspect.DutyPulse `json:"duties,omitempty"`
}

func (n *Node) pulse() pulse {
	return pulse{n.Stats(), n.kernel.NC.IsConnected(), n.streams.Stalled(), stream.UserRefused(n.kernel.NC), n.Locals(),
		n.Leading().pulses()}
}

// beat keeps the session alive. A node that finds its session gone (it was asleep, or cut off) opens a new one: the
// claims of the old one belong to others by then, and every write about them is fenced.
func (n *Node) beat(ctx context.Context) {
	tick := time.NewTicker(n.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		timed, cancel := context.WithTimeout(ctx, n.cfg.Heartbeat*2)
		err := session.New(n.kernel.Store).Heartbeat(timed, n.kernel.Session(), n.cfg.SessionTTL, n.pulse())
		if errors.Is(err, workqueue.ErrSessionLost) {
			n.kernel.Stats.SessionsLost.Add(1)
			n.kernel.Log.Warn("the session expired; starting a new one", zap.Stringer("session", n.kernel.Session()))
			n.fetching.Abandon(n.kernel.Session())
			n.flushing.Abandon(n.kernel.Session())
			err = n.newSession(timed)
			n.kernel.Wake()
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			n.kernel.Log.Warn("heartbeat", zap.Error(err))
		}
	}
}

// Locals returns the names of the node's functions for steps of kind local, in order.
func (n *Node) Locals() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(n.cfg.Locals)) // never nil: heartbeats carry it as a list
	slices.Sort(names)
	return names
}
