package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// request is one request before and after it is sent. Checks change it before.
type request struct {
	header   nats.Header
	items    []item
	body     []byte
	sequence uint64 // in the stream, once sent
}

type item struct {
	ordinal int
	key     string
	payload json.RawMessage
	parts   json.RawMessage // "p"; nil without
}

func (r *request) slice() string { return r.header.Get(wire.HeaderSlice) }

// newRequest makes a request without a flaw.
func newRequest(items ...item) *request {
	slice := uuid.NewString()
	r := &request{items: items, header: nats.Header{
		wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderRun: {uuid.NewString()},
		wire.HeaderSlice: {slice}, wire.HeaderMsgID: {slice}, wire.HeaderStep: {"0"},
		wire.HeaderAttempt: {"1"}, wire.HeaderGeneration: {"1"}, wire.HeaderMode: {"batch"},
	}}
	r.body = fmt.Appendf(nil, `{"items":%s}`, writeItems(items))
	return r
}

func writeItems(items []item) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for n, item := range items {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"i":%d,"k":%s`, item.ordinal, quote(item.key))
		if item.payload != nil {
			fmt.Fprintf(&b, `,"d":%s`, item.payload)
		}
		if item.parts != nil {
			fmt.Fprintf(&b, `,"p":%s`, item.parts)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return b.Bytes()
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be written
	}
	return string(quoted)
}

// sample returns a request for n items with ordinals from 0.
func (n *node) sample(count int) *request {
	items := make([]item, count)
	for i := range items {
		items[i] = n.item(i)
	}
	return newRequest(items...)
}

// item returns an item that any service of the endpoint should be able to answer.
func (n *node) item(ordinal int) item {
	payload := n.config.Items[ordinal%len(n.config.Items)]
	if n.contract {
		payload = fmt.Appendf(nil, `{"do":"echo","value":{"n":%d}}`, ordinal)
	}
	return item{ordinal: ordinal, key: fmt.Sprintf("KEY-%d", ordinal), payload: payload}
}

// order is a payload of the contract.
type order map[string]any

// orders returns a request that asks the conformance endpoint for one thing after the other.
func orders(list ...order) *request {
	items := make([]item, len(list))
	for i, o := range list {
		payload, err := json.Marshal(o)
		if err != nil {
			panic(err) // the orders are ours
		}
		items[i] = item{ordinal: i, key: fmt.Sprintf("KEY-%d", i), payload: payload}
	}
	return newRequest(items...)
}
