package record

import (
	"context"
	"errors"
	"strings"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// codeUnreadable is the error code of a chunk whose reply could not be read.
const codeUnreadable = "unreadable"

// unreadable is a reply that cannot be taken, whatever is done with it.
type unreadable struct {
	msg            kernel.Message
	reason, detail string
	slice          workqueue.SliceID // zero when it does not say
}

func asUnreadable(msg kernel.Message, err error) unreadable {
	bad, ok := errors.AsType[*wire.MalformedError](err)
	if !ok {
		bad = &wire.MalformedError{Reason: codeUnreadable, Detail: err.Error()}
	}
	return unreadable{msg, bad.Reason, bad.Detail, workqueue.SliceID(bad.Slice)}
}

// takeUnreadable ends the slice that the message is about, so that its items go on at once in smaller ones, and then
// puts the message aside: a crash in between has the first done again, which changes nothing.
func (r *Recorder) takeUnreadable(ctx context.Context, u unreadable) {
	if err := r.failUnreadable(ctx, u); err != nil && !workqueue.Refused(err) {
		r.node.Log.Error("cannot record that a reply is unreadable; giving it back", zap.Error(err))
		r.replies.Settle(u.msg, kernel.GiveBack)
		kernel.Signal(r.unrecorded)
		return
	}
	r.quarantine(ctx, u.msg, u.reason, u.detail, u.slice)
}

// failUnreadable records the failure of a slice, provided that the message came on the subject of the endpoint that the
// slice was sent to. Anything else is no more than a message to put aside.
func (r *Recorder) failUnreadable(ctx context.Context, u unreadable) error {
	if u.slice == (workqueue.SliceID{}) {
		return nil
	}
	endpoint, found := strings.CutPrefix(u.msg.Subject(), wire.ReplySubject(""))
	if !found {
		return nil
	}
	out, err := r.node.Settling.Record(ctx, []settle.Answer{{Slice: u.slice, Endpoint: endpoint, Answered: -1,
		Service: u.msg.Headers().Get(wire.HeaderService), Unreadable: true,
		Failure: &workqueue.SlotError{Code: codeUnreadable, Retry: true,
			Message: "the service's reply could not be read (" + u.reason + "): " + u.detail}}})
	if err == nil {
		r.after.Seen(out, cameAt([]reading{{msg: u.msg}}))
	}
	return err
}
