package endpoints

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// None is the type of a state that a flow does not need.
type None struct{}

// HandleFlow has svc serve an endpoint in stages, which read from top to bottom like one function. A stage may ask
// other endpoints, item by item, with a [Target]; the next stage begins when all the answers are there, on any instance
// of the service. In between nobody waits: the chunk is suspended, and its state (State of each item, Shared of the
// chunk) lies in a stream.
//
// In each stage an item is answered (Reply, Fail, Retry), asks for something, goes on as it is (Next), or is left out,
// and will then be tried again. An item that was answered is not seen by later stages. An item whose question came back
// as an error is answered with that error, unless the target keeps errors; so is one that was left out, with
// CodeUnanswered. When the whole chunk of a question failed, the failure speaks for its items here, too.
//
// A stage may run more than once. What it asks should follow from the items and their states alone: a stage that is
// repeated repeats its questions under their old ids. An error, or a panic, of a stage speaks for all items that are
// not answered; nothing is asked then. Timeout is how long one stage may take, and also how long a chunk may be
// suspended.
//
// It fails when the name cannot be an endpoint's, has a handler already, an option is out of range, or there is no
// stage.
func HandleFlow[In, Out, State, Shared any](
	svc *Service, endpoint string, stages []func(context.Context, *Stage[In, Out, State, Shared]) error, opts ...Option,
) error {
	o, err := newOptions(DefaultListConcurrency, opts)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	if err := checkStages(stages); err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	e := &endpointServer{name: endpoint, options: o}
	f := &flow{server: e, stages: len(stages), recent: newRecent(), most: MaxState, patience: statePatience}
	f.open = func(w *flowWork) sheet { return newStage(w, stages) }
	f.reopen = func(w *flowWork, s *suspended) (sheet, error) { return resumeStage(w, stages, s) }
	e.flow = f
	e.begin = func(j *job) work { return f.start(j) }
	if err := svc.register(e); err != nil {
		return err
	}
	f.attach(svc)
	return nil
}

func checkStages[S any](stages []func(context.Context, S) error) error {
	switch {
	case len(stages) == 0:
		return errors.New("a flow needs a stage")
	case len(stages) > wire.MaxStages:
		return fmt.Errorf("the flow has %d stages; %d are allowed", len(stages), wire.MaxStages)
	}
	for n, stage := range stages {
		if stage == nil {
			return fmt.Errorf("stage %d is nil", n)
		}
	}
	return nil
}

// Revision names what the stages of a flow mean. Change it when a chunk that one version of the service has suspended
// cannot be continued by the next: such chunks are then begun again instead. A changed number of stages counts as
// another revision by itself. It has up to 64 printable ASCII characters.
func Revision(name string) Option { return func(o *options) { o.revision = name } }

const maxRevision = 64

func validRevision(name string) bool {
	for i := range len(name) {
		if name[i] <= 0x20 || name[i] >= 0x7f {
			return false
		}
	}
	return len(name) <= maxRevision
}

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

// attach sets up what needs a service.
func (f *flow) attach(svc *Service) {
	e := f.server
	f.store = flowStore{nc: svc.nc, out: svc.outbox, endpoint: e.name, ttl: wire.TTLHeader(e.options.timeout)}
	room := newRoom(e.slots, false)
	room.beyond = repliesBeyond
	f.replies = svc.newPuller(wire.StreamStage, e.name, room, e.log.With(zap.Bool("stages", true)))
	f.replies.deal = f.deal
	f.replies.ensure = func(ctx context.Context) error { return stream.EnsureStageConsumer(ctx, svc.outbox.js, e.name) }
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
