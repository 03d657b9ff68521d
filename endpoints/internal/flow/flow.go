// Package flow runs the chunks of an endpoint in stages. It suspends a chunk, sends its questions to other endpoints,
// collects their replies, and continues on the instance that receives the last one. It handles items and states as
// bytes; package endpoints adds the types.
package flow

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Flow is the part of an endpoint with stages that serve.Server lacks.
type Flow struct {
	Server         *serve.Server
	Stages         int
	open           func(*Work) Sheet
	reopen         func(*Work, *Suspended) (Sheet, error)
	Store          Store
	replies        *serve.Puller // to the flow's questions
	Recent         *Recent
	turns          turns
	Stale, Refused atomic.Int64

	// Most bounds the bytes of a state: MaxState, or less in tests.
	Most int
	// Timeout is how long to wait for stream capacity for a state: stateTimeout, or less in tests.
	Timeout time.Duration
	// Rest is the delay before retrying a chunk suspended by another version: changedDelay, or less in tests.
	Rest time.Duration
	// Crash is called at each point where a service may die; tests stop it there.
	Crash func(step string)
}

// repliesBeyond is how many replies are prefetched beyond the slots, since replies for calls share the consumer.
const repliesBeyond = 16

// New makes a server run its chunks in stages.
func New(
	e *serve.Server, stages int, open func(*Work) Sheet, reopen func(*Work, *Suspended) (Sheet, error),
) *Flow {
	f := &Flow{Server: e, Stages: stages, open: open, reopen: reopen, Recent: NewRecent(), Most: MaxState,
		Timeout: stateTimeout, Rest: changedDelay}
	e.Stages = stages
	e.Begin = func(j *serve.Job) serve.Work {
		w := &Work{Flow: f, Job: j, Total: len(j.Request.Items)}
		w.Sheet = f.open(w)
		return w
	}
	return f
}

// Attach initializes the flow once the server has its host.
func (f *Flow) Attach() {
	e := f.Server
	out := e.Host.Outbox
	f.Store = Store{NC: out.NC, out: out, endpoint: e.Name, TTL: wire.TTLHeader(e.Settings.Timeout)}
	room := serve.NewRoom(e.Slots, false)
	room.Beyond = repliesBeyond
	f.replies = serve.NewPuller(out, wire.StreamStage, e.Name, room, e.Log.With(zap.Bool("stages", true)))
	f.replies.Deal = f.deal
	f.replies.Ensure = func(ctx context.Context) error { return stream.EnsureStageConsumer(ctx, out.JS, e.Name) }
	e.More = []*serve.Puller{f.replies}
}

func (f *Flow) step(name string) {
	if f.Crash != nil {
		f.Crash(name)
	}
}

type question struct {
	suspendedRequest
	msg *nats.Msg
}

// questions builds the requests of the stage. Without any, the chunk is not suspended.
func (w *Work) questions() ([]question, *wire.SlotError) {
	a := &w.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !w.asks() {
		return nil, nil
	}
	q := &Questioner{Work: w, Flow: wire.NewFlowID(w.Job.Request.Meta, w.Flow.Server.Name, w.Stage)}
	if failure := q.begin(); failure != nil {
		return nil, failure
	}
	// A repeated stage may ask in another order but must produce the same requests.
	slices.SortFunc(w.Asked, (*asked).compare)
	for _, asked := range w.Asked {
		slices.SortFunc(asked.items, func(a, b askedItem) int { return a.item.At - b.item.At })
		if failure := q.Ask(asked); failure != nil {
			return nil, failure
		}
	}
	return q.Made, nil
}

func (w *Work) asks() bool {
	for _, asked := range w.Asked {
		for _, ask := range asked.items {
			if !ask.item.answered {
				return true
			}
		}
	}
	return false
}

// Questioner builds the requests of one stage. Its methods require Answers.Mu.
type Questioner struct {
	Work   *Work
	Flow   wire.FlowID
	params []byte
	Trace  nats.Header // of the job
	Limit  int         // bytes of a message, without its trace headers
	Made   []question
	now    *wire.RequestBuilder // the request being written
}

func (q *Questioner) begin() *wire.SlotError {
	if params := q.Work.Job.Request.Params; len(params) > 0 {
		var err error
		if q.params, err = json.Marshal(params, json.Deterministic(true)); err != nil {
			return wire.NewSlotError(wire.CodeBadQuery,
				fmt.Sprintf("the parameters of the run cannot be passed on: %v", err), false)
		}
	}
	q.Trace = nats.Header{}
	wire.TraceOfHeader(q.Work.Job.Answers.Header).SetHeader(q.Trace)
	q.Limit = int(q.Work.Flow.Server.Host.NC.MaxPayload()) - wire.HeaderSize(q.Trace)
	return nil
}

// Ask writes requests to a target, more than one if they would be too large.
func (q *Questioner) Ask(asked *asked) *wire.SlotError {
	q.now = nil
	for _, ask := range asked.items {
		if ask.item.answered {
			continue
		}
		query := asked.queries.Bytes()[ask.start:ask.end]
		for !q.add(ask.item, query) {
			if q.now != nil && q.now.Len() == 0 {
				q.tooLarge(asked, ask.item, len(query))
				break
			}
			if failure := q.open(asked); failure != nil {
				return failure
			}
		}
	}
	q.close(asked)
	return nil
}

func (q *Questioner) add(item *Item, query []byte) bool {
	if q.now == nil || !q.now.Add(item.Ordinal, item.Key, query) {
		return false
	}
	item.waits = append(item.waits, len(q.Made))
	return true
}

func (q *Questioner) open(asked *asked) *wire.SlotError {
	q.close(asked)
	if len(q.Made) == wire.MaxRequests {
		return wire.NewSlotError(wire.CodeQueryTooLarge,
			fmt.Sprintf("stage %d would make more than %d requests for one chunk",
				q.Work.Stage, wire.MaxRequests), false)
	}
	q.now = wire.NewRequestBuilder(asked.endpoint, q.meta(asked), q.Limit)
	q.now.Body = slices.Grow(q.now.Body, min(asked.queries.Len()+len(asked.items)*itemOverhead+len(q.params), q.Limit))
	q.now.SetParams(q.params)
	return nil
}

func (q *Questioner) meta(asked *asked) wire.Meta {
	w, m := q.Work, q.Work.Job.Request.Meta
	next, label := w.Stage+1, asked.name
	if label == asked.endpoint {
		label = ""
	}
	return wire.Meta{Run: m.Run, Slice: q.Flow.Slice(len(q.Made)), Step: m.Step, Attempt: m.Attempt,
		Generation: m.Generation,
		Mode:       m.Mode, Root: m.Root, Origin: m.Origin, Deliveries: m.Deliveries,
		Stack:   m.Stack.PushAs(w.Flow.Server.Name, next, label),
		ReplyTo: wire.Return{Asker: w.Flow.Server.Name, Callee: asked.endpoint, Stage: next, Request: len(q.Made)}}
}

func (q *Questioner) close(asked *asked) {
	if q.now == nil || q.now.Len() == 0 {
		return
	}
	msg := q.now.Msg()
	maps.Copy(msg.Header, q.Trace)
	msg.Header[wire.HeaderTTL] = []string{q.Work.Flow.Store.TTL}
	q.Made = append(q.Made, question{suspendedRequest{asked.name, asked.endpoint, asked.keep}, msg})
	q.now = nil
}

func (q *Questioner) tooLarge(asked *asked, item *Item, size int) {
	item.giveUp(wire.NewSlotError(wire.CodeQueryTooLarge,
		fmt.Sprintf("the question to %s takes %d bytes, which does not fit "+
			"a message; raise the NATS server's max_payload (16 MiB count) or ask with where the data is",
			asked.name, size), false))
}

func asks(questions []question) string {
	var names []string
	seen := map[string]bool{}
	for _, q := range questions {
		if !seen[q.Endpoint] {
			seen[q.Endpoint] = true
			names = append(names, q.Endpoint)
		}
	}
	return strings.Join(names, ",")
}

// asked is a stage's questions to one target.
type asked struct {
	name, endpoint string
	keep           bool
	queries        bytes.Buffer
	items          []askedItem
}

func (a *asked) compare(b *asked) int {
	keeps := func(keep bool) int {
		if keep {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.endpoint, b.endpoint), keeps(a.keep)-keeps(b.keep))
}

type askedItem struct {
	item       *Item
	start, end int // of its query in queries
}
