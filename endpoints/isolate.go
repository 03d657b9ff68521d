package endpoints

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// suspectFrom is at which delivery a request is held to be one that may have killed those who had it before.
const suspectFrom = 3

// suspicious reports whether a request may have killed those who had it before: it comes for the third time, or is a
// piece of one that was given up as such.
func (j *job) suspicious() bool {
	return j.origin.delivered() >= suspectFrom || j.request.Deliveries < wire.DefaultDeliveries
}

// isolate waits until the job may be handled: see suspects. It is called with a slot taken. Its end must be called when
// the handler has returned. There is none, and the job may not be handled, when stopping was closed before (begun is
// false then), and when a suspect was begun alone often enough and never finished: then the failure says so.
func (j *job) isolate(ctx context.Context, stopping <-chan struct{}) (end func(), failure *wire.SlotError, begun bool) {
	if j.host == nil { // it is nobody's
		return func() {}, nil, true
	}
	if !j.suspicious() {
		stay, ok := j.host.suspects.enter(j.request.Root, false, stopping)
		if !ok {
			return nil, nil, false
		}
		if stay.late {
			j.log.Warn("a suspect takes its time; others are handled beside it")
		}
		return stay.end, nil, true
	}
	mark := newBegunMark(j.host.outbox, j.endpoint, j.request.Slice, j.log)
	times := mark.read(ctx)
	if times >= maxBegun {
		j.log.Warn("a request was begun alone twice and never finished; it goes back as failed")
		j.spent = true
		return nil, wire.NewSlotError(wire.CodeDeliveries, "the chunk was begun alone twice, and its service died",
			true), true
	}
	stay, ok := j.host.suspects.enter(j.request.Root, true, stopping)
	if !ok {
		return nil, nil, false
	}
	j.log.Info("a suspect is handled", zap.Int("delivered", j.origin.delivered()), zap.Bool("alone", stay.alone))
	if stay.alone { // otherwise nobody could say who it was
		times++
		mark.write(ctx, times)
	}
	return func() {
		stay.end()
		if times > 0 {
			mark.write(context.WithoutCancel(ctx), 0)
		}
	}, nil, true
}
