package endpoints

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// flow is what an endpoint in stages has beside an endpointServer.
type flow struct {
	Server         *endpointServer
	Stages         int
	open           func(*flowWork) sheet
	reopen         func(*flowWork, *suspended) (sheet, error)
	Store          flowStore
	replies        *puller // to what the flow has asked
	Recent         *recent
	turns          turns
	Stale, Refused atomic.Int64

	// Most is how many bytes a state may take: MaxState, or less in tests.
	Most int
	// Patience is how long room for a state is waited for: statePatience, or less in tests.
	Patience time.Duration
	// Crash is called at each step at which a service may die; tests let it die there.
	Crash func(step string)
}

// repliesBeyond is how many replies are fetched beyond what is worked on. Those that somebody waits for come by the
// same consumer as the others, and are begun first once they are here.
const repliesBeyond = 16

// newFlow has a server take its chunks through stages.
func newFlow(
	e *endpointServer, stages int, open func(*flowWork) sheet, reopen func(*flowWork, *suspended) (sheet, error),
) *flow {
	f := &flow{Server: e, Stages: stages, open: open, reopen: reopen, Recent: newRecent(), Most: MaxState,
		Patience: statePatience}
	e.Stages = stages
	e.Begin = func(j *job) work { return f.start(j) }
	return f
}

// Attach sets up what needs a service, once the server has it.
func (f *flow) Attach() {
	e := f.Server
	out := e.Host.Outbox
	f.Store = flowStore{NC: out.NC, out: out, endpoint: e.Name, TTL: wire.TTLHeader(e.Settings.Timeout)}
	room := newRoom(e.Slots, false)
	room.Beyond = repliesBeyond
	f.replies = newPuller(out, wire.StreamStage, e.Name, room, e.Log.With(zap.Bool("stages", true)))
	f.replies.Deal = f.deal
	f.replies.Ensure = func(ctx context.Context) error { return stream.EnsureStageConsumer(ctx, out.JS, e.Name) }
	e.More = []*puller{f.replies}
}

func (f *flow) step(name string) {
	if f.Crash != nil {
		f.Crash(name)
	}
}

// start returns the work of the first stage.
func (f *flow) start(j *job) work {
	w := &flowWork{Flow: f, Job: j, Total: len(j.Request.Items)}
	w.Sheet = f.open(w)
	return w
}
