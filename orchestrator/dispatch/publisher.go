package dispatch

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
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// AckTimeout is for JetStream's acknowledgement of a request. It is short because to publish it again under the same
	// id is harmless, and a request that was lost with the leader of its stream is not to be waited for.
	AckTimeout   = 2 * time.Second
	publishStall = 10 * time.Second // for room among the pending ones
	// MaxPendingPublishes is how many requests JetStream may not have acknowledged.
	MaxPendingPublishes = 64
	// maxPendingBytes is a quarter of what a stream takes in before it refuses more.
	maxPendingBytes = 32 << 20
	// Postponement is how long a slice rests that could not be published.
	Postponement = time.Second
)

// publication is a request that was handed to the client and not acknowledged yet.
type publication struct {
	Assignment
	msg    *nats.Msg
	future jetstream.PubAckFuture
	epoch  int64 // of the streams, as known before publishing
	// published is told once how the publication ended: nil when the request is in the stream.
	published func(error)
	weight    int64 // of maxPendingBytes, held until the acknowledgement
}

// publishAssigned publishes what is claimed. What has waited for so long that it may soon be reissued is given up.
// Once cut off it does nothing: what is left goes back with the session.
func (d *Dispatcher) publishAssigned(ctx context.Context, assigned <-chan Assignment, published chan<- publication) {
	for a := range assigned {
		switch {
		case ctx.Err() != nil:
		case time.Since(a.Claimed) > dispatch.DefaultClaimTTL/2:
			d.giveUpClaim(ctx, a)
		default:
			d.publishOrPostpone(ctx, a, published)
		}
	}
}

// publishOrPostpone publishes a slice, or gives it back for a while, so that one that cannot be published (its endpoint
// may not be, or PostgreSQL is unavailable) does not keep others waiting.
func (d *Dispatcher) publishOrPostpone(ctx context.Context, a Assignment, published chan<- publication) {
	err := d.publishOne(ctx, a, published)
	if err == nil || ctx.Err() != nil {
		return
	}
	d.node.Log.Warn("cannot publish; the slice is taken up again in a while", zap.Stringer("run", a.Run),
		zap.Stringer("slice", a.ID), zap.String("endpoint", a.Endpoint), zap.Error(err))
	if stream.Unanswered(err) {
		d.doubted.Store(true)
	}
	d.node.Stats.Postponed.Add(1)
	postponing, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	if err := d.claims.Postpone(postponing, a.Session, a.ID, core.Jitter(2*Postponement), err); err != nil {
		// It stays claimed until workqueue.DefaultClaimTTL has passed.
		d.node.Log.Warn("postpone", zap.Error(err))
	}
}

// publishOne builds the request of a slice and publishes it. A slice whose items do not fit in one request is cut in
// pieces that do.
func (d *Dispatcher) publishOne(ctx context.Context, a Assignment, published chan<- publication) error {
	request := wire.NewRequestBuilder(a.Endpoint, d.metaOf(a), int(d.node.NC.MaxPayload()))
	request.SetParams(a.Params)
	var large LargeInputs
	fits, err := d.addInputs(ctx, request, a, &large)
	if err != nil {
		return err
	}
	if !large.Items.Empty() {
		return large.Refuse(ctx, d.node, d.after, a)
	}
	if !fits {
		return d.cut(ctx, a, request.Len(), published)
	}
	p := publication{Assignment: a, msg: request.Msg(), weight: min(int64(request.Size()), maxPendingBytes)}
	if err := d.pending.Acquire(ctx, p.weight); err != nil {
		return err
	}
	d.tracePublishing(ctx, &p)
	if err := d.send(ctx, &p); err != nil {
		d.pending.Release(p.weight)
		p.published(err)
		return err
	}
	published <- p // read until the publishers are done, so that what is held is released
	return nil
}

// addInputs adds the items of a slice to its request, with the parts that the step sees, and reports whether all fit.
// Items with parts that no step sees go to large instead.
func (d *Dispatcher) addInputs(ctx context.Context, request *wire.RequestBuilder, a Assignment, large *LargeInputs,
) (fits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	want := dispatch.InputRequest{Run: a.Run, Block: a.Block, Mask: &a.Mask, Inputs: a.Work.Inputs,
		NoItem: a.Work.NoItem}
	fits = true
	err = d.queue.EachInput(ctx, want, func(item dispatch.Input) bool {
		if len(want.Inputs) == 0 && !want.NoItem {
			fits = request.Add(int(item.Ordinal), string(item.Key), item.Payload)
			return fits
		}
		if large.Take(&a, &item) {
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
func (d *Dispatcher) metaOf(a Assignment) wire.Meta {
	meta := wire.Meta{Run: uuid.UUID(a.Run), Slice: uuid.UUID(a.ID), Step: int(a.Step), Attempt: a.Attempt,
		Generation: int(a.Generation), Mode: wire.ModeBatch, Origin: d.node.Name}
	if a.Suspect {
		meta.Deliveries = wire.SuspectDeliveries
	}
	return meta
}

// send ensures that someone can be handed the request, and publishes it without waiting for the acknowledgement.
func (d *Dispatcher) send(ctx context.Context, p *publication) error {
	epoch, err := d.endpoints.Ensure(ctx, p.Endpoint)
	if err != nil {
		return err
	}
	p.epoch = epoch
	p.future, err = d.node.JS.PublishMsgAsync(p.msg, jetstream.WithStallWait(publishStall))
	if err != nil {
		return fmt.Errorf("publish slice %s: %w", p.ID, err)
	}
	return nil
}

// cut replaces a slice whose request would be larger than max_payload. The first fitting items fit in one, which is
// published; the rest is claimed again. A single item that does not fit gets its error at once.
func (d *Dispatcher) cut(ctx context.Context, a Assignment, fitting int, published chan<- publication) error {
	if a.Mask.Count() == 1 {
		return d.refuseItem(ctx, a)
	}
	var masks []bitfield.Set
	if fitting == 0 {
		first := a.Mask.Take(1)
		masks = []bitfield.Set{first, a.Mask.AndNot(first)}
	} else {
		masks = a.Mask.Split(fitting)
	}
	first, err := d.claims.Split(ctx, a.Session, a.ID, masks, dispatch.DefaultClaimTTL)
	if err != nil || first == nil {
		return err
	}
	d.node.Stats.Splits.Add(1)
	d.node.Wake()
	d.publishOrPostpone(ctx, Assignment{*first, a.Session, a.Endpoint, a.Params, a.Work, time.Now()}, published)
	return nil
}

func (d *Dispatcher) refuseItem(ctx context.Context, a Assignment) error {
	lo, _ := a.Mask.Bounds()
	message := d.node.TooLarge(a.Work.Inputs)
	out, err := d.claims.Record(ctx, []settle.Answer{{
		Slice: a.ID, Endpoint: a.Endpoint, Service: "tranche", Answered: 1,
		Slots: []settle.Slot{{Ordinal: a.Block.Ordinal(lo),
			Err: &workqueue.SlotError{Code: core.CodeItemTooLarge, Message: message}}},
	}})
	if err != nil {
		return err
	}
	d.after.Seen(out, time.Now())
	return nil
}

// confirm waits for JetStream's acknowledgements, in the order of publishing, and marks slices as sent, as many at once
// as are at hand. Those whose replies are being recorded are looked at again with the next ones, or a little later.
func (d *Dispatcher) confirm(ctx context.Context, published <-chan publication) {
	var left []workqueue.Sent
	for published != nil || len(left) > 0 {
		first, open := nextPublication(published, len(left) > 0)
		if !open {
			published = nil
			continue
		}
		batch := d.confirmMore(ctx, left, first, published)
		left = nil
		if len(batch) == 0 {
			continue
		}
		d.node.Faults.Hit(fault.PublishAcked)
		var err error
		if left, err = d.claims.MarkSent(ctx, batch); err != nil {
			// They stay claimed. A reply is taken anyway; without one they are reissued at their deadline.
			if left = nil; ctx.Err() == nil {
				d.node.Log.Warn("mark slices as sent", zap.Int("slices", len(batch)), zap.Error(err))
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
func (d *Dispatcher) confirmMore(ctx context.Context, batch []workqueue.Sent, first *publication,
	published <-chan publication,
) []workqueue.Sent {
	if first == nil {
		return batch
	}
	before := len(batch)
	batch = d.confirmOne(ctx, batch, *first)
more:
	for len(batch) < before+MaxPendingPublishes {
		select {
		case next, open := <-published:
			if !open {
				break more
			}
			batch = d.confirmOne(ctx, batch, next)
		default:
			break more
		}
	}
	d.node.Stats.Requests.Add(int64(len(batch) - before))
	return batch
}

// confirmOne adds a publication to the batch once it is acknowledged. One whose outcome is unknown is published again
// under the same id, which the stream takes only once. When that does not help either, the slice is given up: it is
// reissued under a new id, since this one may be in the stream.
func (d *Dispatcher) confirmOne(ctx context.Context, batch []workqueue.Sent, p publication) []workqueue.Sent {
	defer d.pending.Release(p.weight)
	for level := zap.WarnLevel; ; level = zap.DebugLevel { // that it goes on is not news
		ack, err := d.await(ctx, &p)
		if err == nil {
			p.published(nil)
			d.node.Meter.Took(core.TimingPublish, time.Since(p.Claimed))
			d.node.Sent(p.Endpoint, p.Attempt)
			return append(batch, workqueue.Sent{ID: p.ID, StreamSeq: int64(ack.Sequence), StreamsEpoch: p.epoch})
		}
		if ctx.Err() != nil {
			p.published(err)
			return batch
		}
		err = stream.PermissionsOf(d.node.NC).Explain(err, p.msg.Subject)
		d.node.Log.Log(level, "publish; trying again", zap.Stringer("run", p.Run), zap.Stringer("slice", p.ID),
			zap.Error(err))
		d.node.Stats.Republished.Add(1)
		d.node.Look()
		pause := republishPause
		switch {
		case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
			d.streams.Suspect(wire.StreamWork)
			d.doubted.Store(true)
			pause = 0 // it has waited, and so have those behind it
		case errors.Is(err, errStreamsChanged):
			pause = 0
		}
		for again := errors.New("not sent"); again != nil; {
			if backoff.Sleep(ctx, pause) != nil || time.Since(p.Claimed) > dispatch.DefaultClaimTTL/2 {
				p.published(err)
				d.giveUpClaim(ctx, p.Assignment)
				return batch
			}
			if again, pause = d.send(ctx, &p), republishPause; errors.Is(again, nats.ErrConnectionClosed) {
				p.published(again)
				return batch // the node ends, and what is left goes back with its session
			}
		}
	}
}

// giveUpClaim has the leader issue a slice again at once. Until JetStream takes requests again, each so comes to be
// retried, and none waits for the end of its claim when it does.
func (d *Dispatcher) giveUpClaim(ctx context.Context, a Assignment) {
	if ctx.Err() != nil {
		return // what is left goes back with the session
	}
	giving, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	if err := d.claims.GiveUpClaim(giving, a.Session, a.ID); err != nil {
		// It stays claimed until workqueue.DefaultClaimTTL has passed.
		d.node.Log.Warn("give up a claim", zap.Stringer("slice", a.ID), zap.Error(err))
	}
}

// Between two tries to publish; after half a claim's life the slice is left to the sweep.
const republishPause = 200 * time.Millisecond

// errStreamsChanged ends the wait for an acknowledgement by a stream that may be gone.
var errStreamsChanged = errors.New("a new epoch of the streams has begun")

func (d *Dispatcher) await(ctx context.Context, p *publication) (*jetstream.PubAck, error) {
	epoch, changed := d.streams.Now()
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

// tracePublishing begins the span of a publication and lets its request carry it.
func (d *Dispatcher) tracePublishing(ctx context.Context, p *publication) {
	p.published = func(error) {}
	if d.node.Tracer == nil {
		return
	}
	var t wire.Trace
	t, p.published = d.node.Tracer.Publishing(ctx, core.TracedSlice{Run: uuid.UUID(p.Run), Slice: uuid.UUID(p.ID),
		Endpoint: p.Endpoint, Step: int(p.Step), Attempt: p.Attempt, Generation: int(p.Generation), Items: p.Mask.Count()})
	t.SetHeader(p.msg.Header)
}
