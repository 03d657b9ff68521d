package endpoints

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// request is a list request as it came: payloads are raw and alias the body.
type request struct {
	Meta
	params map[string]string // of the run
	items  []rawItem
}

type rawItem struct {
	ordinal int
	key     string
	payload []byte // nil when the request does not carry it
	parts   parts
}

// parseRequest reads a message from StreamWork. The error is always a *MalformedError. When only the body is at fault,
// or how many endpoints wait for one another, the request is returned with it, without items, so that the fault can be
// reported to whoever asked.
func parseRequest(h nats.Header, body []byte, limits Limits) (*request, error) {
	limits = limits.withDefaults()
	meta, err := parseMeta(h)
	if relayed := notRelayed(h); relayed != nil {
		err = relayed
	}
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return &request{Meta: meta, params: map[string]string{}}, about(meta, err)
	}
	if err != nil {
		return nil, about(meta, err)
	}
	r := &request{Meta: meta, params: map[string]string{}}
	if body, err = decode(h, body, limits.MaxBody); err != nil {
		return r, about(meta, err)
	}
	in := newBodyReader(body, limits.MaxDepth)
	r.scan(in, limits.MaxSlots)
	if in.err != nil {
		r.items = nil
		return r, about(meta, in.err)
	}
	return r, nil
}

func (r *request) scan(in *bodyReader, maxItems int) {
	var seenItems, seenParams bool
	in.open('{')
	for in.more() {
		switch string(in.name()) {
		case `"items"`:
			once(in, &seenItems, "items")
			r.scanItems(in, maxItems)
		case `"params"`:
			once(in, &seenParams, "params")
			r.params = scanParams(in)
		default:
			in.value()
		}
	}
	in.end()
	if len(r.items) == 0 {
		in.fail(ReasonSlot, `the body has no "items"`)
	}
}

// scanParams reads {"year":"2026"}.
func scanParams(in *bodyReader) map[string]string {
	params := map[string]string{}
	in.open('{')
	for in.more() {
		name, value := string(in.text(nil)), string(in.text(nil))
		if _, twice := params[name]; twice {
			in.fail(ReasonSlot, "the parameter that ends at byte %d, %.80q, stands twice", in.pos(), name)
		}
		params[name] = value
	}
	return params
}

// scanItems reads the items. Their keys share one string: half the garbage of one each.
func (r *request) scanItems(in *bodyReader, maxItems int) {
	var keys []byte
	var ends []int
	names := map[string]string{} // of parts
	in.open('[')
	for in.more() {
		if len(r.items) == maxItems {
			in.fail(ReasonTooMany, "more than %d items", maxItems)
			return
		}
		start := in.pos()
		var item rawItem
		item, keys = scanItem(in, keys, names)
		if in.err != nil {
			return
		}
		if r.items == nil {
			room := min((len(in.body)-start)/(in.pos()-start)+2, maxItems)
			r.items, ends = make([]rawItem, 0, room), make([]int, 0, room)
		}
		r.items = append(r.items, item)
		ends = append(ends, len(keys))
	}
	all, start := string(keys), 0
	for i, end := range ends {
		r.items[i].key = all[start:end]
		start = end
	}
}

// scanItem reads {"i":17,"k":"CUST-18","d":…,"p":{…}} and appends the key to keys.
func scanItem(in *bodyReader, keys []byte, names map[string]string) (item rawItem, grown []byte) {
	var seenI, seenK, seenD, seenP bool
	in.open('{')
	for in.more() {
		switch string(in.name()) {
		case `"i"`:
			once(in, &seenI, "i")
			item.ordinal = in.ordinal()
		case `"k"`:
			once(in, &seenK, "k")
			keys = in.text(keys)
		case `"d"`:
			once(in, &seenD, "d")
			item.payload = in.value()
		case `"p"`:
			once(in, &seenP, "p")
			item.parts = scanParts(in, names)
		default:
			in.value()
		}
	}
	if in.err == nil && (!seenI || !seenK || !seenD && !seenP) {
		in.fail(ReasonSlot, `the item that ends at byte %d must have "i", "k", and "d" or "p"`, in.pos())
	}
	return item, keys
}
