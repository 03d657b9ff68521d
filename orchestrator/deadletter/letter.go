package deadletter

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// causeUnreadable is the cause of a dead letter that does not even say which endpoint it was for.
const causeUnreadable = "unreadable"

// deadLetterIn is a message from the stream of dead letters, as the store keeps it. Whatever it is, it becomes a dead
// letter: a message that cannot be understood is for a person to look at, and must not come again for ever.
func deadLetterIn(msg jetstream.Msg) deadletter.DeadLetter {
	d, err := wire.ParseDeadLetter(msg.Subject(), msg.Headers(), msg.Data())
	letter := deadLetterOf(&d)
	if err != nil {
		letter.Endpoint, letter.Cause = "", causeUnreadable // it can be sent nowhere
		letter.Message = fmt.Sprintf("%v; its cause was %s: %s", err, d.Cause, d.Message)
	}
	return letter
}

// deadLetterOf is a dead letter as the store keeps it.
func deadLetterOf(d *wire.DeadLetter) deadletter.DeadLetter {
	letter := deadletter.DeadLetter{
		MsgID: d.MsgID, Endpoint: d.Endpoint, Cause: d.Cause, Message: d.Message, Mode: string(d.Mode),
		Run: known[workqueue.RunID](d.Run), Slice: known[workqueue.SliceID](d.Slice),
		Root: known[workqueue.SliceID](d.Root), Stack: d.Stack, Origin: d.Origin, Service: d.Service,
		Deliveries: d.Deliveries, Requeued: d.Requeued, Items: d.Items, Headers: d.Header, Body: d.Body,
		NoBody: d.Omitted > 0,
	}
	if sane(d.At) {
		letter.At = d.At
	}
	return letter
}

// exhaustedDeadLetter is a message that was delivered too often, as the store keeps it.
func exhaustedDeadLetter(endpoint string, x exhaustion, msg *jetstream.RawStreamMsg) deadletter.DeadLetter {
	d, _ := wire.ParseDeadLetter(wire.DeadSubject(endpoint), msg.Header, msg.Data) // the endpoint is known
	letter := deadLetterOf(&d)
	letter.MsgID = wire.DeadMsgID(msg.Header)
	if letter.MsgID == "" { // its place stands for it
		letter.MsgID = fmt.Sprintf("dead.%s.%d.%d", x.Stream, msg.Sequence, msg.Time.UnixNano())
	}
	letter.Endpoint, letter.Cause, letter.Deliveries = endpoint, wire.CodeDeliveries, x.Deliveries
	letter.Message = fmt.Sprintf("delivered %d times and never acknowledged", x.Deliveries)
	if x.Deliveries < 1 { // somebody took the limit from its consumer
		letter.Message = "delivered no more, and never acknowledged"
	}
	return letter
}

// givenUpDeadLetter is a slice that a service has given up after too many deliveries. It has the id that a node gives
// it when it is the one to give the request up. The request is gone by now.
func givenUpDeadLetter(a *settle.Answer, run uuid.UUID) deadletter.DeadLetter {
	request := nats.Header{wire.HeaderMsgID: {a.Slice.String()}}
	return deadletter.DeadLetter{
		MsgID: wire.DeadMsgID(request), Endpoint: a.Endpoint, Cause: a.Failure.Code, Message: a.Failure.Message,
		Mode: string(wire.ModeBatch), Run: known[workqueue.RunID](run), Slice: &a.Slice, Root: &a.Slice,
		Service: a.Service, State: deadletter.LetterReissued, NoBody: true,
	}
}

// known is nil for the zero id.
func known[T ~[16]byte](id uuid.UUID) *T {
	if id == uuid.Nil {
		return nil
	}
	known := T(id)
	return &known
}

// sane reports whether a time from outside is one that PostgreSQL can hold and a person believe.
func sane(at time.Time) bool {
	return at.Year() >= 2000 && at.Before(time.Now().Add(24*time.Hour))
}
