package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	publishTimeout      = 5 * time.Second  // for JetStream's acknowledgement of one message
	publishStall        = 30 * time.Second // for room among the pending ones
	maxPendingPublishes = 64               // requests of up to RequestBytes: 32 MiB, a quarter of what a stream takes in
)

// readTimeout bounds a read from PostgreSQL: a connection that has gone mute is given up after it.
const readTimeout = 15 * time.Second

// CodeItemTooLarge is the error code of an item that fits in no request.
const CodeItemTooLarge = "item_too_large"

// publication is a request that was handed to the client and not acknowledged yet.
type publication struct {
	assignment
	msg    *nats.Msg
	future jetstream.PubAckFuture
	epoch  int64 // of the streams, as known before publishing
}

func (n *Node) publishAssigned(ctx context.Context, assigned <-chan assignment, published chan<- publication) {
	for a := range assigned {
		n.publishPatiently(ctx, a, published) // once cut off it does nothing: what is left goes back with the session
	}
}

// publishPatiently publishes a slice, however long PostgreSQL and NATS take to be there again, while the slice is this
// node's and not due. To leave it claimed after the first error would cost its deadline when the session lives on.
func (n *Node) publishPatiently(ctx context.Context, a assignment, published chan<- publication) {
	for pause := republishPause; ctx.Err() == nil; pause = min(2*pause, maxRepublishPause) {
		err := n.publishOne(ctx, a, published)
		if err == nil || ctx.Err() != nil {
			return
		}
		n.log.Warn("publish; trying again", zap.Stringer("slice", a.ID), zap.Error(err), zap.Duration("in", pause))
		sleep(ctx, pause)
		if n.Session() != a.session || time.Since(a.claimed) > a.timeout {
			return // it belongs to others by now, or is about to
		}
	}
}

// publishOne builds the request of a slice and publishes it. A slice whose items do not fit in one request is cut in
// pieces that do.
func (n *Node) publishOne(ctx context.Context, a assignment, published chan<- publication) error {
	meta := endpoints.Meta{Run: uuid.UUID(a.Run), Slice: uuid.UUID(a.ID), Step: int(a.Step), Attempt: a.Attempt,
		Generation: int(a.Generation), Mode: endpoints.ModeBatch}
	request := endpoints.NewRequestBuilder(a.endpoint, meta, int(n.nc.MaxPayload()))
	request.SetParams(a.params)
	fits := true
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := n.store.EachItem(reading, a.Run, a.Block, &a.Mask, func(item workqueue.Item) bool {
		fits = request.Add(int(item.Ordinal), string(item.Key), item.Payload)
		return fits
	})
	if err != nil {
		return err
	}
	if !fits {
		return n.cut(ctx, a, request.Len(), published)
	}
	p := publication{assignment: a, msg: request.Msg()}
	if err := n.send(ctx, &p); err != nil {
		return err
	}
	select {
	case published <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send ensures that somebody can be handed the request, and publishes it without waiting for the acknowledgement.
func (n *Node) send(ctx context.Context, p *publication) error {
	epoch, err := n.ensureEndpoint(ctx, p.endpoint)
	if err != nil {
		return err
	}
	p.epoch = epoch
	p.future, err = n.js.PublishMsgAsync(p.msg, jetstream.WithStallWait(publishStall))
	if err != nil {
		return fmt.Errorf("publish slice %s: %w", p.ID, err)
	}
	return nil
}

// cut replaces a slice whose request would be larger than max_payload. The first fitting items fit in one; a single
// item that does not gets its error at once.
func (n *Node) cut(ctx context.Context, a assignment, fitting int, published chan<- publication) error {
	if a.Mask.Count() == 1 {
		return n.refuseItem(ctx, a)
	}
	var masks []bitfield.Set
	if fitting == 0 {
		first := a.Mask.Take(1)
		masks = []bitfield.Set{first, a.Mask.AndNot(first)}
	} else {
		masks = a.Mask.Split(fitting)
	}
	pieces, err := n.store.Split(ctx, a.session, a.ID, masks, a.timeout)
	if err != nil {
		return err
	}
	n.stats.splits.Add(1)
	for _, piece := range pieces {
		n.publishPatiently(ctx, assignment{piece, a.session, a.endpoint, a.timeout, a.params, time.Now()}, published)
	}
	return nil
}

func (n *Node) refuseItem(ctx context.Context, a assignment) error {
	lo, _ := a.Mask.Bounds()
	message := fmt.Sprintf("the item is larger than a message may be: max_payload of the NATS server is %d bytes; "+
		"make the item smaller or raise max_payload", n.nc.MaxPayload())
	out, err := n.store.Record(ctx, []workqueue.Answer{{
		Slice: a.ID, Endpoint: a.endpoint, Service: "tranche", Answered: 1,
		Slots: []workqueue.Slot{{Ordinal: a.Block.Ordinal(lo),
			Err: &workqueue.SlotError{Code: CodeItemTooLarge, Message: message}}},
	}})
	if err != nil {
		return err
	}
	n.announce(out.Completed)
	return nil
}

// confirm waits for JetStream's acknowledgements, in the order of publishing, and marks slices as sent, as many at once
// as are at hand.
func (n *Node) confirm(ctx context.Context, published <-chan publication) {
	for p := range published {
		batch := n.confirmOne(ctx, nil, p)
	more:
		for len(batch) < maxPendingPublishes {
			select {
			case next, open := <-published:
				if !open {
					break more
				}
				batch = n.confirmOne(ctx, batch, next)
			default:
				break more
			}
		}
		if len(batch) == 0 {
			continue
		}
		n.cfg.Faults.Hit(fault.PublishAcked)
		n.stats.requests.Add(int64(len(batch)))
		if err := n.store.MarkSent(ctx, batch); err != nil && ctx.Err() == nil {
			// They stay claimed. A reply is taken all the same; without one they are issued again at their deadline.
			n.log.Warn("mark slices as sent", zap.Int("slices", len(batch)), zap.Error(err))
		}
	}
}

// confirmOne adds a publication to the batch once it is acknowledged. One whose outcome is unknown is published again
// under the same id, which the stream takes only once, until it is due.
func (n *Node) confirmOne(ctx context.Context, batch []workqueue.Sent, p publication) []workqueue.Sent {
	for {
		ack, err := await(ctx, p.future)
		if err == nil {
			return append(batch, workqueue.Sent{ID: p.ID, StreamSeq: int64(ack.Sequence), PipeEpoch: p.epoch})
		}
		if ctx.Err() != nil || time.Since(p.claimed) > p.timeout {
			return batch
		}
		n.log.Warn("publish; trying again", zap.Stringer("slice", p.ID), zap.Error(err))
		n.stats.republished.Add(1)
		n.Look()
		for {
			if !sleep(ctx, republishPause) || time.Since(p.claimed) > p.timeout {
				return batch
			}
			if err := n.send(ctx, &p); err == nil {
				break
			}
		}
	}
}

const (
	republishPause    = 200 * time.Millisecond
	maxRepublishPause = 2 * time.Second
)

func await(ctx context.Context, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, err
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), errors.New("no acknowledgement yet"))
	}
}
