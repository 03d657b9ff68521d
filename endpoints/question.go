package endpoints

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// question is one request that a stage makes.
type question struct {
	suspendedRequest
	msg *nats.Msg
}

// questions writes the requests for what the stage has asked. None means that the chunk need not be suspended.
func (w *flowWork) questions() ([]question, *wire.SlotError) {
	a := &w.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if !w.asks() {
		return nil, nil
	}
	q := &questioner{work: w, flow: wire.NewFlowID(w.job.request.Meta, w.flow.server.name, w.stage)}
	if failure := q.begin(); failure != nil {
		return nil, failure
	}
	// A stage that is repeated may ask in another order, and must still make the same requests.
	slices.SortFunc(w.asked, (*asked).compare)
	for _, asked := range w.asked {
		slices.SortFunc(asked.items, func(a, b askedItem) int { return a.item.at - b.item.at })
		if failure := q.ask(asked); failure != nil {
			return nil, failure
		}
	}
	return q.made, nil
}

// asks reports whether anything is asked for an item that goes on.
func (w *flowWork) asks() bool {
	for _, asked := range w.asked {
		for _, ask := range asked.items {
			if !ask.item.answered {
				return true
			}
		}
	}
	return false
}

// questioner writes the requests of one stage. Its methods are called with answers.mu held.
type questioner struct {
	work   *flowWork
	flow   wire.FlowID
	params []byte
	trace  nats.Header // of the work
	limit  int         // bytes of a message, its trace not counted in
	made   []question
	now    *wire.RequestBuilder // the request being written
}

func (q *questioner) begin() *wire.SlotError {
	if params := q.work.job.request.Params; len(params) > 0 {
		var err error
		if q.params, err = json.Marshal(params, json.Deterministic(true)); err != nil {
			return wire.NewSlotError(wire.CodeBadQuery,
				fmt.Sprintf("the parameters of the run cannot be passed on: %v", err), false)
		}
	}
	q.trace = nats.Header{}
	wire.TraceOfHeader(q.work.job.answers.header).SetHeader(q.trace)
	q.limit = int(q.work.flow.server.host.nc.MaxPayload()) - wire.HeaderSize(q.trace)
	return nil
}

// ask writes one request to a target, or several when one would be too large.
func (q *questioner) ask(asked *asked) *wire.SlotError {
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

func (q *questioner) add(item *flowItem, query []byte) bool {
	if q.now == nil || !q.now.Add(item.ordinal, item.key, query) {
		return false
	}
	item.waits = append(item.waits, len(q.made))
	return true
}

// open ends the request being written and begins another.
func (q *questioner) open(asked *asked) *wire.SlotError {
	q.close(asked)
	if len(q.made) == wire.MaxRequests {
		return wire.NewSlotError(wire.CodeQueryTooLarge,
			fmt.Sprintf("stage %d would make more than %d requests for one chunk",
				q.work.stage, wire.MaxRequests), false)
	}
	q.now = wire.NewRequestBuilder(asked.endpoint, q.meta(asked), q.limit)
	q.now.Body = slices.Grow(q.now.Body, min(asked.queries.Len()+len(asked.items)*itemOverhead+len(q.params), q.limit))
	q.now.SetParams(q.params)
	return nil
}

// meta is what the headers of the next request say.
func (q *questioner) meta(asked *asked) wire.Meta {
	w, m := q.work, q.work.job.request.Meta
	next := w.stage + 1
	return wire.Meta{Run: m.Run, Slice: q.flow.Slice(len(q.made)), Step: m.Step, Attempt: m.Attempt,
		Generation: m.Generation,
		Mode:       m.Mode, Root: m.Root, Origin: m.Origin, Deliveries: m.Deliveries,
		Stack:   m.Stack.PushAs(w.flow.server.name, next, asked.label()),
		ReplyTo: wire.Return{Asker: w.flow.server.name, Callee: asked.endpoint, Stage: next, Request: len(q.made)}}
}

func (q *questioner) close(asked *asked) {
	if q.now == nil || q.now.Len() == 0 {
		return
	}
	msg := q.now.Msg()
	maps.Copy(msg.Header, q.trace)
	msg.Header[wire.HeaderTTL] = []string{q.work.flow.store.ttl}
	q.made = append(q.made, question{suspendedRequest{asked.name, asked.endpoint, asked.keep}, msg})
	q.now = nil
}

func (q *questioner) tooLarge(asked *asked, item *flowItem, size int) {
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
	item       *flowItem
	start, end int // of its query, in queries
}
