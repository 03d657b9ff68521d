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
	server         *endpointServer
	stages         int
	open           func(*flowWork) sheet
	reopen         func(*flowWork, *suspended) (sheet, error)
	store          flowStore
	replies        *puller // to what the flow has asked
	recent         *recent
	turns          turns
	stale, refused atomic.Int64

	// most is how many bytes a state may take: MaxState, or less in tests.
	most int
	// patience is how long room for a state is waited for: statePatience, or less in tests.
	patience time.Duration
	// crash is called at each step at which a service may die; tests let it die there.
	crash func(step string)
}

// repliesBeyond is how many replies are fetched beyond what is worked on. Those that somebody waits for come by the
// same consumer as the others, and are begun first once they are here.
const repliesBeyond = 16

// newFlow has a server take its chunks through stages.
func newFlow(
	e *endpointServer, stages int, open func(*flowWork) sheet, reopen func(*flowWork, *suspended) (sheet, error),
) *flow {
	f := &flow{server: e, stages: stages, open: open, reopen: reopen, recent: newRecent(), most: MaxState,
		patience: statePatience}
	e.stages = stages
	e.begin = func(j *job) work { return f.start(j) }
	return f
}

// attach sets up what needs a service, once the server has it.
func (f *flow) attach() {
	e := f.server
	out := e.host.outbox
	f.store = flowStore{nc: out.nc, out: out, endpoint: e.name, ttl: wire.TTLHeader(e.settings.timeout)}
	room := newRoom(e.slots, false)
	room.beyond = repliesBeyond
	f.replies = newPuller(out, wire.StreamStage, e.name, room, e.log.With(zap.Bool("stages", true)))
	f.replies.deal = f.deal
	f.replies.ensure = func(ctx context.Context) error { return stream.EnsureStageConsumer(ctx, out.js, e.name) }
	e.more = []*puller{f.replies}
}

func (f *flow) step(name string) {
	if f.crash != nil {
		f.crash(name)
	}
}

// start returns the work of the first stage.
func (f *flow) start(j *job) work {
	w := &flowWork{flow: f, job: j, total: len(j.request.Items)}
	w.sheet = f.open(w)
	return w
}
