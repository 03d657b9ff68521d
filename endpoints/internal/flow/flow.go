// Package flow takes the chunks of an endpoint through stages: it suspends a chunk, asks other endpoints, gathers their
// replies and goes on, on whatever instance the last of them comes to. It knows items and states as bytes only; the
// package above has their types.
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

// Flow is what an endpoint in stages has beside an endpointServer.
type Flow struct {
	Server         *serve.Server
	Stages         int
	open           func(*Work) Sheet
	reopen         func(*Work, *Suspended) (Sheet, error)
	Store          Store
	replies        *serve.Puller // to what the flow has asked
	Recent         *Recent
	turns          turns
	Stale, Refused atomic.Int64

	// Most is how many bytes a state may take: MaxState, or less in tests.
	Most int
	// Timeout is how long room for a state is waited for: stateTimeout, or less in tests.
	Timeout time.Duration
	// Rest is how long what another version has suspended is left to it: changedDelay, or less in tests.
	Rest time.Duration
	// Crash is called at each step at which a service may die; tests let it die there.
	Crash func(step string)
}

// repliesBeyond is how many replies are fetched beyond what is worked on. Those that someone waits for come by the
// same consumer as the others, and are begun first once they are here.
const repliesBeyond = 16

// New has a server take its chunks through stages.
func New(
	e *serve.Server, stages int, open func(*Work) Sheet, reopen func(*Work, *Suspended) (Sheet, error),
) *Flow {
	f := &Flow{Server: e, Stages: stages, open: open, reopen: reopen, Recent: NewRecent(), Most: MaxState,
		Timeout: stateTimeout, Rest: changedDelay}
	e.Stages = stages
	e.Begin = func(j *serve.Job) serve.Work { return f.start(j) }
	return f
}

// Attach sets up what needs a service, once the server has it.
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

// start returns the work of the first stage.
func (f *Flow) start(j *serve.Job) serve.Work {
	w := &Work{Flow: f, Job: j, Total: len(j.Request.Items)}
	w.Sheet = f.open(w)
	return w
}

// question is one request that a stage makes.
type question struct {
	suspendedRequest
	msg *nats.Msg
}

// questions writes the requests for what the stage has asked. None means that the chunk need not be suspended.
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
	// A stage that is repeated may ask in another order, and must still make the same requests.
	slices.SortFunc(w.Asked, (*asked).compare)
	for _, asked := range w.Asked {
		slices.SortFunc(asked.items, func(a, b askedItem) int { return a.item.At - b.item.At })
		if failure := q.Ask(asked); failure != nil {
			return nil, failure
		}
	}
	return q.Made, nil
}

// asks reports whether anything is asked for an item that goes on.
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

// Questioner writes the requests of one stage. Its methods are called with answers.mu held.
type Questioner struct {
	Work   *Work
	Flow   wire.FlowID
	params []byte
	Trace  nats.Header // of the work
	Limit  int         // bytes of a message, its trace not counted in
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

// Ask writes one request to a target, or several when one would be too large.
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

// open ends the request being written and begins another.
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

// meta is what the headers of the next request say.
func (q *Questioner) meta(asked *asked) wire.Meta {
	w, m := q.Work, q.Work.Job.Request.Meta
	next := w.Stage + 1
	return wire.Meta{Run: m.Run, Slice: q.Flow.Slice(len(q.Made)), Step: m.Step, Attempt: m.Attempt,
		Generation: m.Generation,
		Mode:       m.Mode, Root: m.Root, Origin: m.Origin, Deliveries: m.Deliveries,
		Stack:   m.Stack.PushAs(w.Flow.Server.Name, next, asked.label()),
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

// label is what tells two targets of one endpoint apart.
func (a *asked) label() string {
	if a.name == a.endpoint {
		return ""
	}
	return a.name
}

// asks names the endpoints that questions go to, each once.
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

// asked is what one stage has asked one target.
type asked struct {
	name, endpoint string
	keep           bool
	queries        bytes.Buffer
	items          []askedItem
}

// is reports whether a is what was asked of a target.
func (a *asked) is(name, endpoint string, keep bool) bool {
	return a.name == name && a.endpoint == endpoint && a.keep == keep
}

// compare orders targets, of whatever kind.
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
	start, end int // of its query, in queries
}
