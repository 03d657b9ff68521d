package serve

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// SuspectFrom is at which delivery a request is held to be one that may have killed those who had it before.
const SuspectFrom = 3

// suspicious reports whether a request may have killed those who had it before: it comes for the third time, or is a
// piece of one that was given up as such.
func (j *Job) suspicious() bool {
	return j.Origin.Delivered() >= SuspectFrom || j.Request.Deliveries < wire.DefaultDeliveries
}

// Isolate waits until the job may be handled: see suspects. It is called with a slot taken. Its end must be called when
// the handler has returned. There is none, and the job may not be handled, when stopping was closed before (begun is
// false then), and when a suspect was begun alone often enough and never finished: then the failure says so.
func (j *Job) Isolate(ctx context.Context, stopping <-chan struct{}) (end func(), failure *wire.SlotError, begun bool) {
	if j.Host == nil { // it is nobody's
		return func() {}, nil, true
	}
	if !j.suspicious() {
		stay, ok := j.Host.Suspects.Enter(j.Request.Root, false, stopping)
		if !ok {
			return nil, nil, false
		}
		if stay.Late {
			j.Log.Warn("a suspect takes its time; others are handled beside it")
		}
		return stay.End, nil, true
	}
	mark := newBegunMark(j.Host.Outbox, j.Endpoint, j.Request.Slice, j.Log)
	times := mark.read(ctx)
	if times >= MaxBegun {
		j.Log.Warn("a request was begun alone twice and never finished; it goes back as failed")
		j.spent = true
		return nil, wire.NewSlotError(wire.CodeDeliveries, "the chunk was begun alone twice, and its service died",
			true), true
	}
	stay, ok := j.Host.Suspects.Enter(j.Request.Root, true, stopping)
	if !ok {
		return nil, nil, false
	}
	j.Log.Info("a suspect is handled", zap.Int("delivered", j.Origin.Delivered()), zap.Bool("alone", stay.Alone))
	if stay.Alone { // otherwise nobody could say who it was
		times++
		mark.write(ctx, times)
	}
	return func() {
		stay.End()
		if times > 0 {
			mark.write(context.WithoutCancel(ctx), 0)
		}
	}, nil, true
}
