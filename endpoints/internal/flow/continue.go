package flow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/pull"
)

const (
	// changedDelay is how long a reply waits if another version of the service suspended its chunk.
	changedDelay = time.Second
	// MaxChanged is after how many such deliveries the chunk fails.
	MaxChanged = 5
)

// missingDelays are the delays after each of the first deliveries of a reply whose chunk is not found. After that,
// the chunk has moved on.
//
//nolint:gochecknoglobals // a constant
var missingDelays = [...]time.Duration{250 * time.Millisecond, time.Second, 3 * time.Second}

// continuation is one reply that may move a chunk to its next stage, from delivery to acknowledgement.
type continuation struct {
	flow   *Flow
	scope  serve.Scope
	origin serve.Queued
	msg    *nats.Msg
	log    *zap.Logger

	reply StageReply
	id    wire.FlowID
	state *stored
	from  *Suspended
	parts []string // parts to remove besides the state
}

// deal handles one reply, through its acknowledgement.
func (f *Flow) deal(scope serve.Scope, id serve.RequestID, msg jetstream.Msg) (items int, took time.Duration) {
	meta, err := msg.Metadata()
	if err != nil {
		return 0, 0 // hold rejects these
	}
	f.Server.Stats.Came(meta.NumDelivered)
	c := &continuation{flow: f, scope: scope, origin: serve.Queued{Puller: f.replies, ID: id, Times: meta.NumDelivered},
		msg: &nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()}, log: f.Server.Log}
	if err := c.read(); err != nil {
		c.log = c.log.With(serve.OfHeader(c.msg.Header)...)
		c.refuse(err)
		return 0, 0
	}
	started := time.Now()
	items, err = c.take(scope.Sending)
	switch {
	case mayAppear(err) && c.origin.Delivered() <= len(missingDelays):
		// The replica that answered may be behind, or the state is being rewritten.
		c.log.Debug("a reply came for an unknown chunk; looking for it again", zap.Error(err))
		c.origin.Nak(missingDelays[c.origin.Delivered()-1])
	case errors.Is(err, errNoState):
		f.Stale.Add(1)
		c.log.Debug("a reply came to a chunk that has continued; it is dropped", zap.Error(err))
		c.origin.Acknowledge()
	case err != nil:
		c.log.Warn("a reply could not be taken; it is handed back", zap.Error(err))
		c.origin.Nak(serve.NakDelay)
	}
	return items, time.Since(started)
}

func (c *continuation) refuse(why error) {
	c.flow.Refused.Add(1)
	c.log.Error("a reply to a flow is refused", zap.String("subject", c.msg.Subject), zap.Error(why))
	c.origin.Terminate(why)
}

func (c *continuation) read() error {
	to, err := wire.ParseReturn(c.msg.Subject)
	if err != nil || to.Asker != c.flow.Server.Name {
		return wire.Malformed(wire.ReasonSubject, "subject %.200q leads to no stage of this flow", c.msg.Subject)
	}
	reply, err := wire.ReceiveReply(to.Callee, c.msg.Header, c.msg.Data, c.flow.Server.Host.Limits)
	if err != nil {
		return err
	}
	var request int
	c.id, request = wire.SplitSlice(reply.Slice)
	c.reply = StageReply{reply, request}
	if request != to.Request {
		return wire.About(reply.Meta, wire.Malformed(wire.ReasonHeader,
			"%s is of request %d, and the subject of request %d", wire.HeaderSlice,
			request, to.Request))
	}
	c.log = c.log.With(append(serve.Fields(reply.Meta), zap.Stringer("flow", c.id), zap.Int("stage", to.Stage))...)
	return nil
}

// take finds the reply's chunk and runs its next stage if all replies have arrived. An error: nothing was handled.
func (c *continuation) take(ctx context.Context) (items int, err error) {
	f := c.flow
	if f.Recent.isDone(c.id) {
		return 0, fmt.Errorf("chunk %s: %w", c.id, errDone)
	}
	if c.state, err = f.Store.read(ctx, c.id); err != nil {
		return 0, err
	}
	if c.from, err = DecodeSuspended(c.state.body, f.Server.Host.Limits); err == nil {
		err = f.continues(c.from)
	}
	switch {
	case err != nil:
		return 0, c.changed(err)
	case c.refused():
		return 0, nil
	case c.origin.Delivered() > c.deliveries():
		c.log.Warn("a reply was delivered many times and its stage never ended; the chunk goes back as failed")
		return 0, c.giveUp(wire.NewSlotError(wire.CodeDeliveries, fmt.Sprintf(
			"stage %d of flow %s was begun many times and never ended", c.from.Stage, f.Server.Name), true))
	}
	return c.gather(ctx)
}

// continues returns an error unless this version of the service can continue the chunk.
func (f *Flow) continues(s *Suspended) error {
	if s.Stages != f.Stages || s.Revision != f.Server.Settings.Revision {
		return fmt.Errorf("the chunk was suspended by a flow of %d stages, revision %.80q; this one has %d, revision %q",
			s.Stages, s.Revision, f.Stages, f.Server.Settings.Revision)
	}
	return nil
}

func (c *continuation) refused() bool {
	why := c.fits()
	if why != nil {
		c.refuse(why)
	}
	return why != nil
}

// fits returns an error unless the chunk waits for this reply from this endpoint.
func (c *continuation) fits() error {
	to, _ := wire.ParseReturn(c.msg.Subject)
	switch {
	case to.Stage != c.from.Stage:
		return wire.Malformed(wire.ReasonSubject, "it is for stage %d; the chunk waits for stage %d", to.Stage, c.from.Stage)
	case to.Request >= len(c.from.Requests):
		return wire.Malformed(wire.ReasonSubject, "it answers request %d; there are %d", to.Request, len(c.from.Requests))
	case to.Callee != c.from.Requests[to.Request].Endpoint:
		return wire.Malformed(wire.ReasonSubject, "endpoint %s answers a request to endpoint %s", to.Callee,
			c.from.Requests[to.Request].Endpoint)
	}
	return nil
}

// gather runs the stage if this reply is the last, and parks the reply otherwise.
func (c *continuation) gather(ctx context.Context) (items int, err error) {
	f := c.flow
	g := &gathering{store: &f.Store, turns: &f.turns, id: c.id, from: c.from,
		limits: f.Server.Host.Limits, crash: f.step}
	name := fmt.Sprintf("p%d-%s", c.origin.ID.Sequence, strconv.FormatInt(c.origin.ID.Stored, 36)) // the same each time
	replies, err := g.take(ctx, name, c.reply, c.msg)
	c.parts = g.parts
	if err != nil {
		return 0, err
	}
	if replies == nil || !f.Recent.begin(c.id) {
		// The message is stored, known, or being handled here in another delivery, which is redelivered if it fails.
		f.step("before ack of part")
		c.origin.Acknowledge()
		return 0, nil
	}
	done := false
	defer func() { f.Recent.end(c.id, done) }()
	done, err = c.Run(replies)
	return len(c.from.Items), err
}

func (c *continuation) job() (*serve.Job, error) {
	meta, err := wire.ParseMeta(c.state.header)
	if err != nil {
		return nil, fmt.Errorf("read the requester of chunk %s: %w", c.id, err)
	}
	r := &wire.Request{Meta: meta, Params: map[string]string{}}
	if c.from != nil && c.from.Params != nil {
		r.Params = c.from.Params
	}
	j := c.flow.Server.NewJob(c.scope, c.origin, c.state.header, nil, r)
	if c.from != nil {
		j.Log = j.Log.With(zap.Int("stage", c.from.Stage))
	}
	j.Answers.Resume(c.state.header)
	j.Answers.Total, _ = strconv.Atoi(c.state.header.Get(wire.HeaderFlowAnswered)) // 0 if malformed
	return j, nil
}

func (c *continuation) deliveries() int {
	meta, err := wire.ParseMeta(c.state.header)
	if err != nil {
		return wire.DefaultDeliveries
	}
	return meta.Deliveries
}

// Run runs the chunk's stage. It returns false if the message will be redelivered.
func (c *continuation) Run(replies []StageReply) (done bool, err error) {
	j, err := c.job()
	if err != nil {
		return false, err
	}
	w := &Work{Flow: c.flow, Job: j, Stage: c.from.Stage, Total: c.from.Total, failure: c.from.Failure.slotError()}
	if w.Sheet, err = c.flow.reopen(w, c.from); err != nil {
		return false, c.changed(err)
	}
	w.Merge(c.from, replies)
	ctx, cancel := context.WithCancelCause(c.scope.Working)
	defer cancel(nil)
	j.Answers.GiveUp = cancel
	failure, begun := w.Run(&serve.JobContext{Context: ctx, Job: j}, c.flow.Server.Slots, c.scope.Stopping)
	total := j.Answers.Close()
	switch {
	case !begun, total == c.from.Answered && failure != nil && failure.Code == wire.CodeShutdown && c.from.Failure == nil:
		c.origin.Nak(2 * pull.Settling) // nothing was done: another instance may take it
		return false, nil
	case total >= c.from.Total:
		failure = nil // all items are answered
	}
	c.flow.step("stage run")
	if !c.settle(j, failure) {
		return false, nil
	}
	answered := len(c.from.Items)
	if j.Answers.Unfinished {
		answered = total - c.from.Answered
	}
	c.flow.Server.Stats.Add(len(c.from.Items), answered, j.Answers.Errors, time.Since(j.Started))
	return true, nil
}

// settle sends the reply, removes the state and acknowledges the message.
func (c *continuation) settle(j *serve.Job, failure *wire.SlotError) bool {
	c.flow.Server.Stats.Failed(failure)
	if err := j.Answers.Send(failure); err != nil {
		j.Log.Error("the reply could not be sent; the stage is handed back", zap.Error(err))
		c.origin.Nak(serve.NakDelay)
		return false
	}
	c.flow.step("answered")
	// JetStream has acknowledged everything derived from this state, so a redelivered reply may find nothing.
	for n := range c.state.parts {
		c.parts = append(c.parts, strconv.Itoa(n))
	}
	c.flow.Store.remove(c.id, c.parts...)
	c.flow.step("state removed")
	c.origin.Acknowledge()
	return true
}

func (c *continuation) giveUp(failure *wire.SlotError) error {
	j, err := c.job()
	if err != nil {
		return err
	}
	if c.settle(j, failure) {
		c.flow.Recent.end(c.id, true)
	}
	return nil
}

// changed leaves the chunk to other instances MaxChanged times, then fails it.
func (c *continuation) changed(why error) error {
	if c.origin.Times <= MaxChanged {
		c.log.Info("a suspended chunk is left to instances of another version", zap.Error(why))
		c.origin.Nak(c.flow.Rest)
		return nil
	}
	c.log.Warn("no instance can take a suspended chunk on; it goes back as failed", zap.Error(why))
	return c.giveUp(wire.NewSlotError(wire.CodeFlowChanged,
		fmt.Sprintf("flow %s has changed since the chunk was suspended: %v",
			c.flow.Server.Name, why), true))
}
