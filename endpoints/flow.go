package endpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
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
	e := endpointOf(endpoint, o, contractOf[In, Out](), nil)
	e.flow = flow.New(e.Server, len(stages),
		func(w *flow.Work) flow.Sheet { return newStage(w, stages) },
		func(w *flow.Work, s *flow.Suspended) (flow.Sheet, error) { return resumeStage(w, stages, s) })
	return svc.register(e, o.wrap)
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
func Revision(name string) Option { return func(o *options) { o.Revision = name } }

const maxRevision = 64

func validRevision(name string) bool {
	for i := range len(name) {
		if name[i] <= 0x20 || name[i] >= 0x7f {
			return false
		}
	}
	return len(name) <= maxRevision
}
