// Package flow takes the chunks of an endpoint through stages: it suspends a chunk, asks other endpoints, gathers their
// replies and goes on, on whatever instance the last of them comes to. It knows items and states as bytes only; the
// package above has their types.
package flow

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/consume"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Flow is what an endpoint in stages has beside an endpointServer.
type Flow struct {
	Server         *serve.Server
	Stages         int
	open           func(*Work) Sheet
	reopen         func(*Work, *Suspended) (Sheet, error)
	Store          Store
	replies        *consume.Puller // to what the flow has asked
	Recent         *Recent
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

// New has a server take its chunks through stages.
func New(
	e *serve.Server, stages int, open func(*Work) Sheet, reopen func(*Work, *Suspended) (Sheet, error),
) *Flow {
	f := &Flow{Server: e, Stages: stages, open: open, reopen: reopen, Recent: NewRecent(), Most: MaxState,
		Patience: statePatience}
	e.Stages = stages
	e.Begin = func(j *serve.Job) serve.Work { return f.start(j) }
	return f
}

// Attach sets up what needs a service, once the server has it.
func (f *Flow) Attach() {
	e := f.Server
	out := e.Host.Outbox
	f.Store = Store{NC: out.NC, out: out, endpoint: e.Name, TTL: wire.TTLHeader(e.Settings.Timeout)}
	room := consume.NewRoom(e.Slots, false)
	room.Beyond = repliesBeyond
	f.replies = consume.New(out, wire.StreamStage, e.Name, room, e.Log.With(zap.Bool("stages", true)))
	f.replies.Deal = f.deal
	f.replies.Ensure = func(ctx context.Context) error { return stream.EnsureStageConsumer(ctx, out.JS, e.Name) }
	e.More = []*consume.Puller{f.replies}
}

func (f *Flow) step(name string) {
	if f.Crash != nil {
		f.Crash(name)
	}
}

// start returns the work of the first stage.
func (f *Flow) start(j *serve.Job) serve.Work {
	w := &Work{Flow: f, Job: j, Total: len(j.Request.Items)}
	w.Sheet = f.open(w)
	return w
}
