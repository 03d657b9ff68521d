package endpoints

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// callBacklog bounds the bytes of answers that have come and were not looked at.
	callBacklog = 128 << 20
	// maxParams bounds the parameters of a call.
	maxParams = 16 << 10
	// defaultCaller is the name of a caller that has none.
	defaultCaller = "caller"
)

// call is one Call or CallList under way.
type call struct {
	nc       *nats.Conn
	js       jetstream.JetStream // nil for one over core NATS
	endpoint string
	meta     wire.Meta // of its requests, but for the slice
	trace    nats.Header
	params   []byte
	ttl      string
	lane     bool // the endpoint reads what somebody waits for apart from chunks
	box      *answerBox
}

func newCall(ctx context.Context, nc *nats.Conn, endpoint string, mode wire.Mode, opts []CallOption) (*call, error) {
	var o callOptions
	for _, set := range opts {
		set(&o)
	}
	if err := wire.ValidateName(endpoint); err != nil {
		return nil, fmt.Errorf("call: %w", err)
	}
	c := &call{nc: nc, endpoint: endpoint, trace: nats.Header{}}
	TraceOf(ctx).SetHeader(c.trace)
	if err := c.introduce(serve.JobOf(ctx), mode, o); err != nil {
		return nil, fmt.Errorf("call endpoint %s: %w", endpoint, err)
	}
	if len(o.params) > 0 {
		var err error
		if c.params, err = json.Marshal(o.params, json.Deterministic(true)); err != nil {
			return nil, fmt.Errorf("call endpoint %s: parameters: %w", endpoint, err)
		}
		if len(c.params) > maxParams {
			return nil, fmt.Errorf("call endpoint %s: the parameters take %d bytes; %d are allowed", endpoint, len(c.params),
				maxParams)
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.ttl = wire.TTLHeader(time.Until(deadline))
	}
	if o.direct {
		return c, nil
	}
	var err error
	if c.js, err = jetstream.New(nc); err != nil {
		return nil, fmt.Errorf("call endpoint %s: %w", endpoint, err)
	}
	c.lane = mode == wire.ModeSingle && stream.HasLane(ctx, nc, endpoint)
	return c, nil
}

// introduce says who asks, and on whose behalf when that is the handler of a job.
func (c *call) introduce(from *serve.Job, mode wire.Mode, o callOptions) error {
	c.meta = wire.Meta{Run: uuid.New(), Attempt: 1, Generation: 1, Mode: mode, Origin: o.origin}
	caller := defaultCaller
	if from != nil {
		caller = from.Endpoint
		c.meta.Stack = from.Request.Stack.Push(from.Endpoint, 0)
		c.meta.Root = from.Request.Root
		if o.origin == "" {
			c.meta.Origin = from.Request.Origin
		}
	}
	if o.caller != "" {
		caller = o.caller
	}
	if err := wire.ValidateName(caller); err != nil {
		return fmt.Errorf("CallerName: %w", err)
	}
	if c.meta.Stack.Depth() > wire.MaxStack {
		return wire.NewSlotError(wire.CodeStackTooDeep,
			fmt.Sprintf("more than %d endpoints would wait for one another; is there a "+
				"circle? %s", wire.MaxStack, c.meta.Stack), false)
	}
	c.meta.ReplyTo = wire.Return{Asker: caller, Callee: c.endpoint, Call: nuid.Next()}
	return nil
}

// Run asks for all items and returns nil once all are answered. item returns a key, and a pointer to the payload.
func (c *call) Run(ctx context.Context, item func(n int) (key string, payload any)) error {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.box.begin(cancel)
	answersTo := c.meta.ReplyTo.String()
	unwatch := c.watch(answersTo, cancel)
	defer unwatch()
	sub, err := c.nc.Subscribe(answersTo, c.box.receive)
	if err == nil {
		err = sub.SetPendingLimits(-1, callBacklog)
	}
	if err != nil {
		return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // answers that come later go nowhere
	var publishing errgroup.Group
	c.publishAll(asking, &publishing, cancel, item)
	select {
	case <-c.box.done:
	case <-asking.Done():
	}
	cancel(nil)
	answered := c.box.close()
	refused := publishing.Wait()
	if answered == len(c.box.answered) {
		return nil
	}
	if refused != nil {
		return refused
	}
	if cause := context.Cause(asking); ctx.Err() == nil || isCallError(cause) {
		return cause
	}
	dropped, _ := sub.Dropped()
	return &UnansweredError{Endpoint: c.endpoint, Items: len(c.box.answered), Answered: answered, Dropped: dropped,
		Err: ctx.Err(), Cause: context.Cause(ctx)}
}

// watch ends the call when NATS denies what it needs, instead of leaving it to its deadline.
func (c *call) watch(answersTo string, cancel context.CancelCauseFunc) (end func()) {
	request := c.subject()
	return stream.PermissionsOf(c.nc).Await(&stream.Watcher{
		Concerns: func(e *stream.PermissionError, subject string) bool {
			return e.Op == stream.OpSubscribe && subject == answersTo || e.Op == stream.OpPublish && subject == request
		},
		Tell: func(e *stream.PermissionError) { cancel(fmt.Errorf("call endpoint %s: %w", c.endpoint, e)) },
	}, nil)
}

func (c *call) subject() string {
	if c.js == nil {
		return wire.DirectSubject(c.endpoint)
	}
	if c.lane {
		return wire.WorkSubject(wire.LaneOf(c.endpoint))
	}
	return wire.WorkSubject(c.endpoint)
}
