package endpointstest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Part is an element of a request: an item, parameter or header.
type Part func(*draft)

type draft struct {
	meta   wire.Meta
	items  []item
	params map[string]string
	header nats.Header
}

type item struct {
	ordinal int
	key     string
	payload any
	parts   map[string]any
}

// Item adds an item with a payload that can be written as JSON. Ordinals count from 0.
func Item(key string, payload any) Part {
	return func(d *draft) {
		next := 0
		if n := len(d.items); n > 0 {
			next = d.items[n-1].ordinal + 1
		}
		d.items = append(d.items, item{ordinal: next, key: key, payload: payload})
	}
}

// ItemAt adds an item with the given ordinal.
func ItemAt(ordinal int, key string, payload any) Part {
	return func(d *draft) { d.items = append(d.items, item{ordinal: ordinal, key: key, payload: payload}) }
}

// InputPart adds the named step's result to the previous item: JSON, or an endpoints.Binary.
func InputPart(name string, value any) Part {
	return func(d *draft) {
		if len(d.items) == 0 {
			panic("endpointstest: InputPart comes before the first Item")
		}
		last := &d.items[len(d.items)-1]
		last.parts = maps.Clone(last.parts)
		if last.parts == nil {
			last.parts = map[string]any{}
		}
		last.parts[name] = value
	}
}

// Param sets a run parameter.
func Param(name, value string) Part {
	return func(d *draft) {
		if d.params == nil {
			d.params = map[string]string{}
		}
		d.params[name] = value
	}
}

// Header sets a header, such as traceparent.
func Header(name, value string) Part {
	return func(d *draft) { d.header[name] = []string{value} }
}

// Meta changes the request's metadata, such as run, generation or mode.
func Meta(change func(*wire.Meta)) Part {
	return func(d *draft) { change(&d.meta) }
}

// Request is a sent request.
type Request struct {
	wire.Meta
	Endpoint string
	Keys     map[int]string // of the items, by ordinal

	draft draft
	msg   *nats.Msg
}

func (k *Kit) request(endpoint string, parts []Part) *Request {
	k.t.Helper()
	d := draft{header: nats.Header{}}
	d.meta = wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
	for _, part := range parts {
		part(&d)
	}
	return k.build(endpoint, d)
}

func (k *Kit) build(endpoint string, d draft) *Request {
	k.t.Helper()
	r := &Request{Meta: d.meta, Endpoint: endpoint, Keys: map[int]string{}, draft: d}
	builder := wire.NewRequestBuilder(endpoint, d.meta, int(k.nc.MaxPayload()))
	if len(d.params) > 0 {
		builder.SetParams(k.encode("the parameters", d.params))
	}
	for _, item := range d.items {
		if !k.add(builder, item) {
			k.t.Fatalf("endpointstest: item %s does not fit the request to endpoint %s: a message has %d bytes", item.key,
				endpoint, k.nc.MaxPayload())
		}
		r.Keys[item.ordinal] = item.key
	}
	r.msg = builder.Msg()
	maps.Copy(r.msg.Header, d.header)
	return r
}

func (k *Kit) add(builder *wire.RequestBuilder, item item) bool {
	k.t.Helper()
	payload := k.encode("the payload of item "+item.key, item.payload)
	if item.parts == nil {
		return builder.Add(item.ordinal, item.key, payload)
	}
	for _, name := range slices.Sorted(maps.Keys(item.parts)) {
		if binary, ok := item.parts[name].(wire.Binary); ok {
			builder.Part(name, wire.Part{Data: binary.Data, ContentType: binary.ContentType})
			continue
		}
		builder.Part(name, wire.Part{Data: k.encode("part "+name+" of item "+item.key, item.parts[name])})
	}
	return builder.AddParts(item.ordinal, item.key, payload)
}

func (k *Kit) encode(what string, value any) []byte {
	k.t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		k.t.Fatalf("endpointstest: %s cannot be written as JSON: %v", what, err)
	}
	return encoded
}

// Send sends a request and returns its reply.
func (k *Kit) Send(endpoint string, parts ...Part) *Reply {
	k.t.Helper()
	return k.Post(endpoint, parts...).Wait()
}

// Post sends a request without waiting for the reply.
func (k *Kit) Post(endpoint string, parts ...Part) *Pending {
	k.t.Helper()
	return k.post(k.request(endpoint, parts))
}

// Redeliver delivers a request again, as JetStream does without an acknowledgement, and returns the new reply.
func (k *Kit) Redeliver(r *Request) *Reply {
	k.t.Helper()
	return k.PostAgain(r).Wait()
}

// PostAgain is Redeliver without the wait.
func (k *Kit) PostAgain(r *Request) *Pending {
	k.t.Helper()
	k.inbox.forget(r.Slice)
	again := *r
	again.msg = nats.NewMsg(r.msg.Subject)
	again.msg.Header, again.msg.Data = maps.Clone(r.msg.Header), r.msg.Data
	// With its own ID, the stream would drop it as a duplicate.
	again.msg.Header.Set(wire.HeaderMsgID, uuid.NewString())
	return k.post(&again)
}

// Reissue sends items of a request again, as a node does when they were left out or are retryable: in a new slice, as
// the next attempt. No keys means all items.
func (k *Kit) Reissue(r *Request, keys ...string) *Reply {
	k.t.Helper()
	return k.PostReissue(r, keys...).Wait()
}

// PostReissue is Reissue without the wait.
func (k *Kit) PostReissue(r *Request, keys ...string) *Pending {
	k.t.Helper()
	d := r.draft
	d.meta.Slice, d.meta.Root = uuid.New(), uuid.Nil
	d.meta.Attempt++
	if len(keys) > 0 {
		d.items = slices.DeleteFunc(slices.Clone(d.items), func(i item) bool { return !slices.Contains(keys, i.key) })
		if len(d.items) != len(keys) {
			k.t.Fatalf("endpointstest: the request has not all of the items %q", keys)
		}
	}
	return k.post(k.build(r.Endpoint, d))
}

func (k *Kit) post(r *Request) *Pending {
	k.t.Helper()
	ctx, cancel := k.own()
	defer cancel()
	if _, err := k.js.PublishMsg(ctx, r.msg); err != nil {
		k.t.Fatalf("endpointstest: send a request to endpoint %s: %v", r.Endpoint, err)
	}
	return &Pending{kit: k, Request: r}
}

// Pending is a request whose reply is pending.
type Pending struct {
	Request *Request
	kit     *Kit
}

// Wait returns the next complete reply, or fails the test on timeout.
func (p *Pending) Wait() *Reply {
	p.kit.t.Helper()
	reply, ok := p.kit.inbox.next(p.kit.ctx, p.kit.patience, p.Request)
	if !ok {
		p.kit.t.Fatal(p.kit.explain(p.Request))
	}
	return reply
}

func (k *Kit) explain(r *Request) string {
	text := fmt.Sprintf("endpointstest: in %s no reply of endpoint %s to a request with %d items",
		k.patience, r.Endpoint, len(r.Keys))
	ctx, cancel := k.own()
	defer cancel()
	consumer, err := k.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(r.Endpoint))
	if err != nil {
		text += ": no instance has served the endpoint: Serve one"
	} else {
		info := consumer.CachedInfo()
		text += fmt.Sprintf(": %d requests wait to be fetched, %d are at work, %d were delivered again",
			info.NumPending, info.NumAckPending, info.NumRedelivered)
		if info.NumWaiting == 0 && info.NumPending > 0 {
			text += "; no instance serves the endpoint now: Serve one"
		}
	}
	return strings.Join(append([]string{text}, k.Log()...), "\n    ")
}

// Reply is a complete reply, assembled from its messages.
type Reply struct {
	Request *Request
	// Slots are sorted by ordinal.
	Slots []wire.Slot
	// Failure applies to items without a slot, or is nil.
	Failure *wire.SlotError
	// Messages is the number of messages.
	Messages int
	// Service is the service that answered: "name@version instance".
	Service string
	// Header is the final message's.
	Header nats.Header
}

// Slot returns an item's slot, or false without one.
func (r *Reply) Slot(key string) (wire.Slot, bool) {
	for _, slot := range r.Slots {
		if have, ok := r.Request.Keys[slot.Ordinal]; ok && have == key {
			return slot, true
		}
	}
	return wire.Slot{}, false
}

// Err returns an item's error: its slot's, or Failure without a slot. It is nil for a result or an item left out.
func (r *Reply) Err(key string) *wire.SlotError {
	slot, ok := r.Slot(key)
	if !ok {
		return r.Failure
	}
	return slot.Err
}

// LeftOut returns the keys of items without a slot, by ordinal. Failure applies to them; nil means a retry.
func (r *Reply) LeftOut() []string {
	answered := map[int]bool{}
	for _, slot := range r.Slots {
		answered[slot.Ordinal] = true
	}
	var keys []string
	for _, ordinal := range slices.Sorted(maps.Keys(r.Request.Keys)) {
		if !answered[ordinal] {
			keys = append(keys, r.Request.Keys[ordinal])
		}
	}
	return keys
}

// Result returns an item's result as T (endpoints.Binary for bytes), or fails the test.
func Result[T any](t testing.TB, r *Reply, key string) T {
	t.Helper()
	var result T
	slot, ok := r.Slot(key)
	switch {
	case !ok && r.Failure != nil:
		t.Fatalf("item %s has no result: the chunk failed with %v", key, r.Failure)
	case !ok:
		t.Fatalf("item %s has no result: it was left out; these were: %q", key, r.LeftOut())
	case slot.Err != nil:
		t.Fatalf("item %s has no result but an error: %v (retry: %t)", key, slot.Err, slot.Err.Retry)
	}
	if binary, ok := any(&result).(*wire.Binary); ok {
		*binary = wire.Binary{ContentType: slot.ContentType, Data: slot.Data}
		return result
	}
	if slot.ContentType != "" {
		t.Fatalf("item %s has a binary result, of type %s: read it as endpoints.Binary", key, slot.ContentType)
	}
	if err := json.Unmarshal(slot.Data, &result); err != nil {
		t.Fatalf("the result of item %s does not fit %T: %v: %.200s", key, &result, err, slot.Data)
	}
	return result
}
