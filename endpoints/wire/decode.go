package wire

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// Request is a list request as it came: payloads are raw and alias the body.
type Request struct {
	Meta
	Params map[string]string // of the run
	Items  []rawItem
}

type rawItem struct {
	Ordinal int
	Key     string
	Payload []byte // nil when the request does not carry it
	Parts   Parts
}

// ParseRequest reads a message from StreamWork. The error is always a *MalformedError. When only the body is at fault,
// or how many endpoints wait for one another, the request is returned with it, without items, so that the fault can be
// reported to whoever asked.
func ParseRequest(h nats.Header, body []byte, limits Limits) (*Request, error) {
	limits = limits.WithDefaults()
	meta, err := ParseMeta(h)
	if relayed := notRelayed(h); relayed != nil {
		err = relayed
	}
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return &Request{Meta: meta, Params: map[string]string{}}, About(meta, err)
	}
	if err != nil {
		return nil, About(meta, err)
	}
	r := &Request{Meta: meta, Params: map[string]string{}}
	if body, err = decode(h, body, limits.MaxBody); err != nil {
		return r, About(meta, err)
	}
	in := NewBodyReader(body, limits.MaxDepth)
	r.scan(in, limits.MaxSlots)
	if in.Err != nil {
		r.Items = nil
		return r, About(meta, in.Err)
	}
	return r, nil
}

func (r *Request) scan(in *BodyReader, maxItems int) {
	var seenItems, seenParams bool
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"items"`:
			Once(in, &seenItems, "items")
			r.scanItems(in, maxItems)
		case `"params"`:
			Once(in, &seenParams, "params")
			r.Params = scanParams(in)
		default:
			in.value()
		}
	}
	in.End()
	if len(r.Items) == 0 {
		in.Fail(ReasonSlot, `the body has no "items"`)
	}
}

// scanParams reads {"year":"2026"}.
func scanParams(in *BodyReader) map[string]string {
	params := map[string]string{}
	in.Open('{')
	for in.More() {
		name, value := string(in.Text(nil)), string(in.Text(nil))
		if _, twice := params[name]; twice {
			in.Fail(ReasonSlot, "the parameter that ends at byte %d, %.80q, stands twice", in.Pos(), name)
		}
		params[name] = value
	}
	return params
}

// scanItems reads the items. Their keys share one string: half the garbage of one each.
func (r *Request) scanItems(in *BodyReader, maxItems int) {
	var keys []byte
	var ends []int
	names := map[string]string{} // of parts
	in.Open('[')
	for in.More() {
		if len(r.Items) == maxItems {
			in.Fail(ReasonTooMany, "more than %d items", maxItems)
			return
		}
		start := in.Pos()
		var item rawItem
		item, keys = scanItem(in, keys, names)
		if in.Err != nil {
			return
		}
		if r.Items == nil {
			room := min((len(in.body)-start)/(in.Pos()-start)+2, maxItems)
			r.Items, ends = make([]rawItem, 0, room), make([]int, 0, room)
		}
		r.Items = append(r.Items, item)
		ends = append(ends, len(keys))
	}
	all, start := string(keys), 0
	for i, end := range ends {
		r.Items[i].Key = all[start:end]
		start = end
	}
}

// scanItem reads {"i":17,"k":"CUST-18","d":…,"p":{…}} and appends the key to keys.
func scanItem(in *BodyReader, keys []byte, names map[string]string) (item rawItem, grown []byte) {
	var seenI, seenK, seenD, seenP bool
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"i"`:
			Once(in, &seenI, "i")
			item.Ordinal = in.Ordinal()
		case `"k"`:
			Once(in, &seenK, "k")
			keys = in.Text(keys)
		case `"d"`:
			Once(in, &seenD, "d")
			item.Payload = in.value()
		case `"p"`:
			Once(in, &seenP, "p")
			item.Parts = scanParts(in, names)
		default:
			in.value()
		}
	}
	if in.Err == nil && (!seenI || !seenK || !seenD && !seenP) {
		in.Fail(ReasonSlot, `the item that ends at byte %d must have "i", "k", and "d" or "p"`, in.Pos())
	}
	return item, keys
}
