package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	publishTimeout = 5 * time.Second // for JetStream's acknowledgement of a message that is sent alone
	// ackTimeout is for that of a request. It is short because to publish it again under the same id is harmless, and a
	// request that was lost with the leader of its stream is not to be waited for.
	ackTimeout          = 2 * time.Second
	publishStall        = 10 * time.Second // for room among the pending ones
	maxPendingPublishes = 64
	// maxPendingBytes is a quarter of what a stream takes in before it refuses more.
	maxPendingBytes = 32 << 20
	// postponement is how long a slice rests that could not be published.
	postponement = time.Second
)

// readTimeout bounds a read from PostgreSQL: a connection that has gone silent is given up after it.
const readTimeout = 15 * time.Second

// CodeItemTooLarge is the error code of an item that fits in no request.
const CodeItemTooLarge = "item_too_large"

// publication is a request that was handed to the client and not acknowledged yet.
type publication struct {
	assignment
	msg    *nats.Msg
	future jetstream.PubAckFuture
	epoch  int64 // of the streams, as known before publishing
	// published is told once how the publication ended: nil when the request is in the stream.
	published func(error)
	weight    int64 // of maxPendingBytes, held until the acknowledgement
}

// publishAssigned publishes what is claimed. What has waited for so long that it may soon be issued again is given up.
// Once cut off it does nothing: what is left goes back with the session.
func (n *Node) publishAssigned(ctx context.Context, assigned <-chan assignment, published chan<- publication) {
	for a := range assigned {
		switch {
		case ctx.Err() != nil:
		case time.Since(a.claimed) > dispatch.DefaultClaimTTL/2:
			n.giveUpClaim(ctx, a)
		default:
			n.publishOrPostpone(ctx, a, published)
		}
	}
}

// publishOrPostpone publishes a slice, or gives it back for a while, so that one that cannot be published (its endpoint
// may not be, or PostgreSQL is away) does not keep others waiting.
func (n *Node) publishOrPostpone(ctx context.Context, a assignment, published chan<- publication) {
	err := n.publishOne(ctx, a, published)
	if err == nil || ctx.Err() != nil {
		return
	}
	n.log.Warn("cannot publish; the slice is taken up again in a while", zap.Stringer("run", a.Run),
		zap.Stringer("slice", a.ID), zap.String("endpoint", a.endpoint), zap.Error(err))
	if stream.Unanswered(err) {
		n.reach.doubt()
	}
	n.stats.postponed.Add(1)
	postponing, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := n.settling.Postpone(postponing, a.session, a.ID, jitter(2*postponement), err); err != nil {
		// It stays claimed until workqueue.DefaultClaimTTL has passed.
		n.log.Warn("postpone", zap.Error(err))
	}
}

// publishOne builds the request of a slice and publishes it. A slice whose items do not fit in one request is cut in
// pieces that do.
func (n *Node) publishOne(ctx context.Context, a assignment, published chan<- publication) error {
	request := wire.NewRequestBuilder(a.endpoint, n.metaOf(a), int(n.nc.MaxPayload()))
	request.SetParams(a.params)
	var large largeInputs
	fits, err := n.addInputs(ctx, request, a, &large)
	if err != nil {
		return err
	}
	if !large.items.Empty() {
		return large.refuse(ctx, n, a)
	}
	if !fits {
		return n.cut(ctx, a, request.Len(), published)
	}
	p := publication{assignment: a, msg: request.Msg(), weight: min(int64(request.Size()), maxPendingBytes)}
	if err := n.pending.Acquire(ctx, p.weight); err != nil {
		return err
	}
	n.tracePublishing(ctx, &p)
	if err := n.send(ctx, &p); err != nil {
		n.pending.Release(p.weight)
		p.published(err)
		return err
	}
	published <- p // read until the publishers are done, so that what is held is released
	return nil
}

// addInputs adds the items of a slice to its request, with the parts that the step sees, and reports whether all fit.
// Items with parts that no step sees go to large instead.
func (n *Node) addInputs(ctx context.Context, request *wire.RequestBuilder, a assignment, large *largeInputs,
) (fits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	want := dispatch.InputRequest{Run: a.Run, Block: a.Block, Mask: &a.Mask, Inputs: a.work.Inputs,
		NoItem: a.work.NoItem}
	fits = true
	err = dispatch.New(n.store).EachInput(ctx, want, func(item dispatch.Input) bool {
		if len(want.Inputs) == 0 && !want.NoItem {
			fits = request.Add(int(item.Ordinal), string(item.Key), item.Payload)
			return fits
		}
		if large.take(&a, &item) {
			return true
		}
		for i, part := range item.Parts {
			if !part.Missing {
				request.Part(want.Inputs[i].Name, wire.Part{Data: part.Data, ContentType: part.ContentType})
			}
		}
		fits = request.AddParts(int(item.Ordinal), string(item.Key), item.Payload)
		return fits
	})
	return fits, err
}

// metaOf is what the headers of a slice's request say. What may have killed its services gets few deliveries.
func (n *Node) metaOf(a assignment) wire.Meta {
	meta := wire.Meta{Run: uuid.UUID(a.Run), Slice: uuid.UUID(a.ID), Step: int(a.Step), Attempt: a.Attempt,
		Generation: int(a.Generation), Mode: wire.ModeBatch, Origin: n.name()}
	if a.Suspect {
		meta.Deliveries = wire.SuspectDeliveries
	}
	return meta
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

// cut replaces a slice whose request would be larger than max_payload. The first fitting items fit in one, which is
// published; the rest is claimed anew. A single item that does not fit gets its error at once.
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
	first, err := n.settling.Split(ctx, a.session, a.ID, masks, dispatch.DefaultClaimTTL)
	if err != nil || first == nil {
		return err
	}
	n.stats.splits.Add(1)
	n.Wake()
	n.publishOrPostpone(ctx, assignment{*first, a.session, a.endpoint, a.params, a.work, time.Now()}, published)
	return nil
}

func (n *Node) refuseItem(ctx context.Context, a assignment) error {
	lo, _ := a.Mask.Bounds()
	message := n.tooLarge(a.work.Inputs)
	out, err := n.settling.Record(ctx, []settle.Answer{{
		Slice: a.ID, Endpoint: a.endpoint, Service: "tranche", Answered: 1,
		Slots: []settle.Slot{{Ordinal: a.Block.Ordinal(lo),
			Err: &workqueue.SlotError{Code: CodeItemTooLarge, Message: message}}},
	}})
	if err != nil {
		return err
	}
	n.followUp(out, time.Now())
	return nil
}

func (n *Node) tooLarge(inputs []workqueue.StepInput) string {
	return fmt.Sprintf("the item%s is larger than a message may be: max_payload of the NATS server is %d bytes; "+
		"make the item smaller or raise max_payload (16 MiB count)", withParts(inputs), n.nc.MaxPayload())
}

// withParts names the parts that make an item large.
func withParts(inputs []workqueue.StepInput) string {
	if len(inputs) == 0 {
		return ""
	}
	names := make([]string, len(inputs))
	for i := range inputs {
		names[i] = inputs[i].Name
	}
	return " with its parts (" + strings.Join(names, ", ") + ")"
}

// confirm waits for JetStream's acknowledgements, in the order of publishing, and marks slices as sent, as many at once
// as are at hand. Those whose replies are being recorded are looked at again with the next ones, or a little later.
func (n *Node) confirm(ctx context.Context, published <-chan publication) {
	var left []workqueue.Sent
	for published != nil || len(left) > 0 {
		first, open := nextPublication(published, len(left) > 0)
		if !open {
			published = nil
			continue
		}
		batch := n.confirmMore(ctx, left, first, published)
		left = nil
		if len(batch) == 0 {
			continue
		}
		n.cfg.Faults.Hit(fault.PublishAcked)
		var err error
		if left, err = n.settling.MarkSent(ctx, batch); err != nil {
			// They stay claimed. A reply is taken all the same; without one they are issued again at their deadline.
			if left = nil; ctx.Err() == nil {
				n.log.Warn("mark slices as sent", zap.Int("slices", len(batch)), zap.Error(err))
			}
		}
	}
}

// markAgain is in how long a slice is marked as sent that was held when it was to be.
const markAgain = 20 * time.Millisecond

// nextPublication waits for the next one, or, when something is left over, for a little while: then there is none.
func nextPublication(published <-chan publication, leftover bool) (first *publication, open bool) {
	var later <-chan time.Time
	if leftover {
		timer := time.NewTimer(markAgain)
		defer timer.Stop()
		later = timer.C
	}
	select {
	case p, open := <-published:
		return &p, open
	case <-later: // the only way on once there are no more
		return nil, true
	}
}

// confirmMore adds to a batch the first publication, if there is one, and what else is at hand.
func (n *Node) confirmMore(ctx context.Context, batch []workqueue.Sent, first *publication,
	published <-chan publication,
) []workqueue.Sent {
	if first == nil {
		return batch
	}
	before := len(batch)
	batch = n.confirmOne(ctx, batch, *first)
more:
	for len(batch) < before+maxPendingPublishes {
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
	n.stats.requests.Add(int64(len(batch) - before))
	return batch
}

// confirmOne adds a publication to the batch once it is acknowledged. One whose outcome is unknown is published again
// under the same id, which the stream takes only once. When that does not help either, the slice is given up: it is
// issued again under a new id, since this one may be in the stream.
func (n *Node) confirmOne(ctx context.Context, batch []workqueue.Sent, p publication) []workqueue.Sent {
	defer n.pending.Release(p.weight)
	for level := zap.WarnLevel; ; level = zap.DebugLevel { // that it goes on is not news
		ack, err := n.await(ctx, &p)
		if err == nil {
			p.published(nil)
			n.cfg.Meter.Took(TimingPublish, time.Since(p.claimed))
			measureSent(n.cfg.Meter, &p.assignment)
			return append(batch, workqueue.Sent{ID: p.ID, StreamSeq: int64(ack.Sequence), StreamsEpoch: p.epoch})
		}
		if ctx.Err() != nil {
			p.published(err)
			return batch
		}
		err = stream.PermissionsOf(n.nc).Explain(err, p.msg.Subject)
		n.log.Log(level, "publish; trying again", zap.Stringer("run", p.Run), zap.Stringer("slice", p.ID), zap.Error(err))
		n.stats.republished.Add(1)
		n.Look()
		pause := republishPause
		switch {
		case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
			n.suspect(wire.StreamWork)
			n.reach.doubt()
			pause = 0 // it has waited, and so have those behind it
		case errors.Is(err, errStreamsChanged):
			pause = 0
		}
		for again := errors.New("not sent"); again != nil; {
			if backoff.Sleep(ctx, pause) != nil || time.Since(p.claimed) > dispatch.DefaultClaimTTL/2 {
				p.published(err)
				n.giveUpClaim(ctx, p.assignment)
				return batch
			}
			if again, pause = n.send(ctx, &p), republishPause; errors.Is(again, nats.ErrConnectionClosed) {
				p.published(again)
				return batch // the node ends, and what is left goes back with its session
			}
		}
	}
}

// giveUpClaim has the leader issue a slice again at once. Until JetStream takes requests again, each so comes to be
// tried anew, and none waits for the end of its claim when it does.
func (n *Node) giveUpClaim(ctx context.Context, a assignment) {
	if ctx.Err() != nil {
		return // what is left goes back with the session
	}
	giving, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := n.settling.GiveUpClaim(giving, a.session, a.ID); err != nil {
		// It stays claimed until workqueue.DefaultClaimTTL has passed.
		n.log.Warn("give up a claim", zap.Stringer("slice", a.ID), zap.Error(err))
	}
}

// Between two tries to publish; after half a claim's life the slice is left to the sweep.
const republishPause = 200 * time.Millisecond

// errStreamsChanged ends the wait for an acknowledgement by a stream that may be gone.
var errStreamsChanged = errors.New("a new epoch of the streams has begun")

func (n *Node) await(ctx context.Context, p *publication) (*jetstream.PubAck, error) {
	epoch, changed := n.streams.now()
	if epoch > p.epoch {
		select {
		case ack := <-p.future.Ok():
			return ack, nil
		default:
			return nil, errStreamsChanged
		}
	}
	select {
	case ack := <-p.future.Ok():
		return ack, nil
	case err := <-p.future.Err():
		return nil, err
	case <-changed:
		return nil, errStreamsChanged
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), errors.New("no acknowledgement yet"))
	}
}
