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
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// AckTimeout is short: publishing again under the same id is harmless, and a request lost with its stream's leader
	// is never acknowledged.
	AckTimeout   = 2 * time.Second
	publishStall = 10 * time.Second // wait for a place among the pending publishes
	// MaxPendingPublishes limits the unacknowledged requests.
	MaxPendingPublishes = 64
	// maxPendingBytes limits their bytes; the server may hold two more copies.
	maxPendingBytes = 8 << 20
	// Postponement is the least time that a slice rests after a failed publish; the most is twice as long.
	Postponement = time.Second
)

// publication is a request published but not acknowledged.
type publication struct {
	Assignment
	request *wire.RequestBuilder
	msg     *nats.Msg
	future  jetstream.PubAckFuture
	epoch   int64 // of the streams, before publishing
	// published is called once with the outcome: nil once the request is in the stream.
	published func(error)
	weight    int64 // share of maxPendingBytes, held until the acknowledgement
}

// publishAssigned publishes claimed slices, and abandons claims that may soon be reissued. After ctx ends it does
// nothing: the end of the session releases the rest.
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

// publishOrPostpone publishes a slice, or postpones it so that it holds up no others.
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
		// It stays claimed until dispatch.DefaultClaimTTL has passed.
		d.node.Log.Warn("postpone", zap.Error(err))
	}
}

// publishOne builds the request of a slice and publishes it. A slice too large for one request is cut into pieces.
func (d *Dispatcher) publishOne(ctx context.Context, a Assignment, published chan<- publication) error {
	request, kept := d.requests.Get().(*wire.RequestBuilder)
	if !kept {
		request = &wire.RequestBuilder{}
	}
	request.Reset(a.Endpoint, d.metaOf(a), int(d.node.NC.MaxPayload()))
	params, err := d.node.Params(ctx, a.Run, a.Params)
	if errors.Is(err, database.ErrDamaged) {
		return d.refuse(ctx, a, core.CodeItemDamaged, func(workqueue.Ordinal) string { return err.Error() })
	}
	if err != nil {
		return err
	}
	request.SetParams(params)
	damaged := map[workqueue.Ordinal]error{}
	fits, err := d.addInputs(ctx, request, a, damaged)
	switch {
	case err != nil:
		return err
	case len(damaged) > 0:
		return d.refuseDamaged(ctx, a, damaged, published)
	case !fits:
		return d.cut(ctx, a, request.Len(), published)
	}
	p := publication{Assignment: a, request: request, msg: request.Msg(),
		weight: min(int64(request.Size()), maxPendingBytes)}
	if err := d.pending.Acquire(ctx, p.weight); err != nil {
		return err
	}
	d.tracePublishing(ctx, &p)
	if err := d.send(ctx, &p); err != nil {
		d.pending.Release(p.weight)
		p.published(err)
		return err
	}
	published <- p // read until the publishers end, so that its weight is released
	return nil
}

// addInputs adds a slice's items and the results that the step sees, except damaged ones, and reports whether all fit.
func (d *Dispatcher) addInputs(ctx context.Context, request *wire.RequestBuilder, a Assignment,
	damaged map[workqueue.Ordinal]error,
) (fits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	want := dispatch.InputRequest{Run: a.Run, Block: a.Block, Mask: &a.Mask, Step: a.Work.Name, Inputs: a.Work.Inputs,
		NoItem: a.Work.NoItem}
	fits = true
	err = d.queue.EachInput(ctx, want, func(item dispatch.Input) bool {
		if item.Damaged != nil {
			damaged[item.Ordinal] = item.Damaged
			return true
		}
		if len(want.Inputs) == 0 && !want.NoItem {
			fits = request.Add(int(item.Ordinal), string(item.Key), item.Payload)
			return fits
		}
		for i, part := range item.Parts {
			if part.Missing {
				continue
			}
			of := wire.Part{Data: part.Data, ContentType: part.ContentType}
			if part.Large.Valid {
				of.Ref = new(wire.PartRef(part.Ref))
			}
			request.Part(want.Inputs[i].Name, of)
		}
		fits = request.ReferParts(int(item.Ordinal), string(item.Key), item.Payload)
		return fits
	})
	return fits, err
}

// metaOf returns the headers of a slice's request. A slice that may have killed its services gets few deliveries.
func (d *Dispatcher) metaOf(a Assignment) wire.Meta {
	meta := wire.Meta{Run: uuid.UUID(a.Run), Slice: uuid.UUID(a.ID), Step: int(a.Step), Attempt: a.Attempt,
		Generation: int(a.Generation), Mode: wire.ModeBatch, Origin: d.node.Name}
	if a.Suspect {
		meta.Deliveries = wire.SuspectDeliveries
	}
	return meta
}

// send ensures that the consumer exists, and publishes the request without waiting for the acknowledgement.
func (d *Dispatcher) send(ctx context.Context, p *publication) error {
	epoch, err := d.endpoints.Ensure(ctx, p.Endpoint)
	if err != nil {
		return err
	}
	p.epoch = epoch
	d.node.Awaited.Sent(p.ID.String())
	p.future, err = d.node.JS.PublishMsgAsync(p.msg, jetstream.WithStallWait(publishStall))
	if err != nil {
		return fmt.Errorf("publish slice %s: %w", p.ID, err)
	}
	return nil
}

// cut replaces a slice larger than max_payload. The first items, as many as fit, are published; the rest is claimed
// again. A single item fails.
func (d *Dispatcher) cut(ctx context.Context, a Assignment, fitting int, published chan<- publication) error {
	if a.Mask.Count() == 1 {
		return d.refuse(ctx, a, core.CodeItemTooLarge,
			func(workqueue.Ordinal) string { return d.node.TooLarge(a.Work.Inputs) })
	}
	var masks []bitfield.Set
	if fitting == 0 {
		first := a.Mask.Take(1)
		masks = []bitfield.Set{first, a.Mask.AndNot(first)}
	} else {
		masks = a.Mask.Split(fitting)
	}
	return d.split(ctx, a, masks, settle.TooMuch, published)
}

// split publishes the first of the masks, or records its failures; the rest is claimed again.
func (d *Dispatcher) split(ctx context.Context, a Assignment, masks []bitfield.Set, why string,
	published chan<- publication,
) error {
	first, err := d.claims.Split(ctx, a.Session, a.ID, masks, dispatch.DefaultClaimTTL, why)
	if err != nil || first == nil {
		return err
	}
	d.node.Stats.Splits.Add(1)
	d.node.Wake()
	d.publishOrPostpone(ctx, Assignment{*first, a.Session, a.Endpoint, a.Params, a.Work, time.Now()}, published)
	return nil
}

// refuseDamaged fails the items that cannot be read, separately from the others.
func (d *Dispatcher) refuseDamaged(ctx context.Context, a Assignment, damaged map[workqueue.Ordinal]error,
	published chan<- publication,
) error {
	var bad bitfield.Set
	for ordinal := range damaged {
		_, bit := ordinal.Block()
		bad.Add(bit)
	}
	if rest := a.Mask.AndNot(bad); !rest.Empty() {
		return d.split(ctx, a, []bitfield.Set{bad, rest}, "some of its items cannot be read", published)
	}
	return d.refuse(ctx, a, core.CodeItemDamaged, func(of workqueue.Ordinal) string { return damaged[of].Error() })
}

// refuse fails all items of a slice.
func (d *Dispatcher) refuse(ctx context.Context, a Assignment, code string, why func(workqueue.Ordinal) string) error {
	refusal := settle.Answer{Slice: a.ID, Endpoint: a.Endpoint, Service: "tranche", Answered: a.Mask.Count()}
	for bit := range a.Mask.All() {
		of := a.Block.Ordinal(bit)
		refusal.Slots = append(refusal.Slots, settle.Slot{Ordinal: of,
			Err: &workqueue.SlotError{Code: code, Message: why(of)}})
	}
	out, err := d.claims.Record(ctx, []settle.Answer{refusal})
	if err != nil {
		return err
	}
	d.after.Seen(out, time.Now())
	return nil
}

// confirm awaits acknowledgements in order, and marks the acknowledged slices as sent together. Slices whose replies
// are being recorded are retried with the next batch, or after markAgain.
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
			// They stay claimed. Replies are recorded anyway; without one they are reissued at their deadline.
			if left = nil; ctx.Err() == nil {
				d.node.Log.Warn("mark slices as sent", zap.Int("slices", len(batch)), zap.Error(err))
			}
		}
	}
}

// markAgain is the time until a locked slice is marked as sent again.
const markAgain = 20 * time.Millisecond

// nextPublication waits for the next publication, or, with a leftover, for at most markAgain: then first is nil.
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
	case <-later: // the only case once published is closed
		return nil, true
	}
}

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

// confirmOne adds a publication once acknowledged. It republishes an unacknowledged one under the same id, which the
// stream stores once. At last it abandons the claim: the slice gets a new id, since this one may be in the stream.
func (d *Dispatcher) confirmOne(ctx context.Context, batch []workqueue.Sent, p publication) []workqueue.Sent {
	defer d.pending.Release(p.weight)
	for level := zap.WarnLevel; ; level = zap.DebugLevel { // repetitions are not news
		ack, err := d.await(ctx, &p)
		if err == nil {
			if p.published(nil); level == zap.WarnLevel && cap(p.request.Body) <= wire.MaxPooled {
				d.requests.Put(p.request) // sent once, so that nothing reads it any more
			}
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
				return batch // the node stops, and the end of the session releases the rest
			}
		}
	}
}

// giveUpClaim makes the leader reissue a slice, so that none waits for the end of its claim once JetStream recovers.
func (d *Dispatcher) giveUpClaim(ctx context.Context, a Assignment) {
	if ctx.Err() != nil {
		return // the end of the session releases the rest
	}
	giving, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	if err := d.claims.GiveUpClaim(giving, a.Session, a.ID); err != nil {
		// It stays claimed until dispatch.DefaultClaimTTL has passed.
		d.node.Log.Warn("abandon a claim", zap.Stringer("slice", a.ID), zap.Error(err))
	}
}

// republishPause is the time between attempts to publish, until half a claim's life has passed.
const republishPause = 200 * time.Millisecond

// errStreamsChanged ends the wait for an acknowledgement: the stream may be gone.
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
