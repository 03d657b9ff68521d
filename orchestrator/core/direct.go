package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
)

const (
	// stragglerTimeout is how long the rest of a reply may take after its final message, as messages may overtake it.
	stragglerTimeout = 2 * time.Second
	// ResendTimeout is how long services may take to reconnect and answer after a lost connection.
	ResendTimeout = 2 * time.Second
)

// Error codes of requests over core NATS.
const (
	codeNoListeners = "no_listeners" // no service listens on the endpoint
	codeBadReply    = "bad_reply"    // the reply is invalid
	codePermission  = "permission"   // NATS denies the node's request
	CodeUnsent      = "unsent"       // the request could not be published
)

// Calls sends requests to services over core NATS for steps of kind direct. Nothing is persisted: what is lost is
// sent again, by any node. Requests and replies have the same form as in the streams.
type Calls struct {
	node    *Core
	limits  wire.Limits
	asker   string
	limit   int          // of backlog, and of the bytes that nats.go buffers
	backlog atomic.Int64 // bytes of replies received and not yet processed
	// Renew, if set, is called before requests are resent. It returns those to resend now, and those to ask about later.
	Renew func(tokens []string) (again, later []string)

	mu      sync.Mutex
	sub     *nats.Subscription // nil until the first call
	closed  func()
	waiting map[string]*directCall // by the token in the reply subject
}

type directCall struct {
	msg *nats.Msg

	mu   sync.Mutex
	come []*nats.Msg
	lost bool // a message was dropped at the limit
	over bool // the caller no longer waits
	news chan struct{}
}

// NewCalls returns calls that buffer at most backlog bytes of replies.
func NewCalls(k *Core, limits wire.Limits, backlog int) *Calls {
	return &Calls{node: k, limits: limits, asker: wire.NodeAsker(nuid.Next()), limit: backlog,
		waiting: map[string]*directCall{}}
}

// Open subscribes to the replies. When the connection recovers, open requests are resent.
func (d *Calls) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sub != nil && d.sub.IsValid() {
		return nil
	}
	nc := d.node.NC
	subject := wire.Return{Asker: d.asker, Call: "0", Callee: "0"}.String()
	subject = strings.TrimSuffix(subject, "0.0") + ">"
	sub, err := nc.Subscribe(subject, d.receive)
	if err == nil {
		err = sub.SetPendingLimits(-1, d.limit)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	back := nc.StatusChanged(nats.CONNECTED)
	go func() {
		for range back {
			d.again()
		}
	}()
	d.sub, d.closed = sub, func() { nc.RemoveStatusListener(back) }
	return nil
}

// Close ends the subscription.
func (d *Calls) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sub == nil {
		return
	}
	d.closed()
	if err := d.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		d.node.Log.Debug("unsubscribe from replies", zap.Error(err))
	}
}

// dropped returns how many messages nats.go dropped because [Calls.receive] was too slow.
func (d *Calls) dropped() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sub == nil {
		return 0
	}
	n, _ := d.sub.Dropped() // an error means it is closed
	return n
}

// again resends unanswered requests after a lost connection. By then most services have reconnected and answered.
func (d *Calls) again() {
	d.mu.Lock()
	lost := slices.Collect(maps.Keys(d.waiting))
	d.mu.Unlock()
	if len(lost) > 0 {
		time.AfterFunc(ResendTimeout, func() { d.resend(lost) })
	}
}

func (d *Calls) resend(tokens []string) {
	if d.Renew != nil {
		var later []string
		if tokens, later = d.Renew(tokens); len(later) > 0 {
			time.AfterFunc(ResendTimeout, func() { d.resend(later) })
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, token := range tokens {
		call := d.waiting[token]
		if call == nil {
			continue
		}
		d.node.Stats.Republished.Add(1)
		if err := d.node.NC.PublishMsg(call.msg); err != nil {
			d.node.Log.Debug("ask again", zap.Error(err)) // it ends at its timeout
		}
	}
}

// receive hands a message to its call, within the limit. It must not block: it serves all calls of the node.
func (d *Calls) receive(msg *nats.Msg) {
	to, err := wire.ParseReturn(msg.Subject)
	if err != nil {
		return
	}
	d.mu.Lock()
	call := d.waiting[to.Call]
	d.mu.Unlock()
	if call == nil {
		d.node.Stats.Stale.Add(1) // too late
		return
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	size := int64(len(msg.Data))
	switch {
	case call.over:
		return
	case d.backlog.Add(size) > max(int64(d.limit), size):
		d.backlog.Add(-size)
		call.lost = true
	default:
		call.come = append(call.come, msg)
	}
	Signal(call.news)
}

func (c *directCall) take() (come []*nats.Msg, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	come, c.come = c.come, nil
	return come, c.lost
}

// end drops unread messages and refuses more.
func (d *Calls) end(c *directCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, msg := range c.come {
		d.backlog.Add(-int64(len(msg.Data)))
	}
	c.come = nil
}

// Taker takes the slots of replies. It is called by one goroutine.
type Taker interface {
	Answered(reply *wire.Reply)
	Take(slot fetch.Slot)
}

// Question is one request, and the items still unanswered.
type Question struct {
	endpoint string
	call     *directCall
	Token    string
	Slice    uuid.UUID
	First    int         // ordinal of the block's first item
	Places   map[int]int // replaces First where the items are of no block: the bits of their ordinals
	Asked    bitfield.Set
	left     bitfield.Set

	dropped int // messages that nats.go had dropped before the request

	Slots   int  // received so far, for any items, each item once
	Final   int  // number of slots announced; -1 until known
	Whole   bool // the final message held all slots
	Failure *wire.SlotError
}

// NewQuestion returns a question without a request, about a slice or something similar.
func NewQuestion(endpoint string, slice uuid.UUID) *Question {
	return &Question{endpoint: endpoint, Token: nuid.Next(), Slice: slice, Final: -1,
		call: &directCall{news: make(chan struct{}, 1)}}
}

// Returns returns where the reply to a question goes.
func (d *Calls) Returns(q *Question) wire.Return {
	return wire.Return{Asker: d.asker, Call: q.Token, Callee: q.endpoint}
}

// Put builds the question's request, and returns its headers.
func (q *Question) Put(b *wire.RequestBuilder, to wire.Return) nats.Header {
	q.left = q.Asked
	q.call.msg = b.Msg()
	q.call.msg.Subject, q.call.msg.Reply = wire.DirectSubject(q.endpoint), to.String()
	return q.call.msg.Header
}

// Ask publishes a request and takes its replies until none is missing, or ctx ends.
func (d *Calls) Ask(ctx context.Context, q *Question, c Taker) error {
	d.mu.Lock()
	d.waiting[q.Token] = q.call
	d.mu.Unlock()
	q.dropped = d.dropped()
	defer func() {
		d.mu.Lock()
		delete(d.waiting, q.Token)
		d.mu.Unlock()
		d.end(q.call)
	}()
	nc := d.node.NC
	err := stream.During(ctx, nc, func(ctx context.Context) error {
		if err := nc.PublishMsg(q.call.msg); err != nil {
			return wire.Retry(CodeUnsent, "publish to endpoint %s: %v", q.endpoint, err)
		}
		d.node.Stats.Requests.Add(1)
		return d.await(ctx, q, c)
	}, q.call.msg.Subject, q.call.msg.Reply)
	if denied, ok := errors.AsType[*stream.PermissionError](err); ok {
		return wire.Retry(codePermission, "%v", denied)
	}
	return err
}

func (d *Calls) await(ctx context.Context, q *Question, c Taker) error {
	var patience <-chan time.Time
	look := time.NewTicker(stragglerTimeout)
	defer look.Stop()
	for {
		over, err := q.wait(ctx, look.C, patience)
		if err != nil {
			return err
		}
		come, lost := q.call.take()
		lost = lost || d.dropped() > q.dropped // perhaps another call's, which costs this one a reissue but no attempt
		err = d.readAll(q, come, c)
		switch {
		case err != nil || q.left.Empty():
			return err
		case lost:
			return wire.Retry(wire.CodeOverloaded, "more replies came than the node has room for, which is %d MiB; "+
				"set a smaller chunk for the step", d.limit>>20)
		case over:
			return nil // lost slots are requested again
		case q.Final >= 0 && (q.Whole || q.Slots >= q.Final):
			if q.Failure != nil {
				return q.Failure
			}
			return nil
		case q.Final >= 0 && patience == nil:
			patience = time.After(stragglerTimeout)
		}
	}
}

// wait returns at news or when a check is due; over when patience expired.
func (q *Question) wait(ctx context.Context, look, patience <-chan time.Time) (over bool, err error) {
	select {
	case <-q.call.news:
	case <-look:
	case <-patience:
		over = true
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return over, err
}

func (d *Calls) readAll(q *Question, come []*nats.Msg, c Taker) (err error) {
	for _, msg := range come {
		if err == nil {
			err = d.read(q, msg, c)
		}
		d.backlog.Add(-int64(len(msg.Data)))
	}
	return err
}

func (d *Calls) read(q *Question, msg *nats.Msg, c Taker) error {
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return wire.Retry(codeNoListeners, "no service listens for endpoint %s; start one", q.endpoint)
	}
	reply, err := wire.ParseReply(wire.ReplySubject(q.endpoint), msg.Header, msg.Data, d.limits)
	switch {
	case err != nil:
		return wire.Retry(codeBadReply, "the reply of endpoint %s (service %.80q) cannot be read: %v", q.endpoint,
			msg.Header.Get(wire.HeaderService), err)
	case reply.Slice != q.Slice:
		return nil // of another question
	}
	d.node.Stats.Replies.Add(1)
	c.Answered(reply)
	for _, slot := range reply.Slots {
		q.count(slot.Ordinal)
		c.Take(fetch.Slot(slot))
	}
	if reply.Answered >= 0 && q.Final < 0 {
		q.Final, q.Failure, q.Whole = reply.Answered, reply.Failure, len(reply.Slots) >= reply.Answered
	}
	return nil
}

// count counts a slot, but no duplicate for an item: it may be from the reply to a resent request.
func (q *Question) count(ordinal int) {
	bit := ordinal - q.First
	if q.Places != nil {
		place, known := q.Places[ordinal]
		if bit = place; !known {
			bit = -1
		}
	}
	if bit < 0 || bit >= bitfield.Size || !q.Asked.Has(bit) {
		q.Slots++ // unrequested, but included in the announced number
		return
	}
	if q.left.Has(bit) {
		q.Slots++
		q.left.Remove(bit)
	}
}
