package endpoints

import "github.com/nats-io/nats.go"

// request is a list request as it came: payloads are raw and alias the body.
type request struct {
	Meta
	items []rawItem
}

type rawItem struct {
	ordinal int
	key     string
	payload []byte
}

// parseRequest reads a message from StreamWork. The error is always a *MalformedError. When only the body is at fault
// the request is returned with it, without items, so that the fault can be reported to whoever asked.
func parseRequest(h nats.Header, body []byte, limits Limits) (*request, error) {
	limits = limits.withDefaults()
	meta, err := parseMeta(h)
	if err != nil {
		return nil, about(meta, err)
	}
	r := &request{Meta: meta}
	if body, err = decode(h, body, limits.MaxBody); err != nil {
		return r, about(meta, err)
	}
	s := newScanner(body, limits.MaxDepth)
	r.scan(&s, limits.MaxSlots)
	if s.err != nil {
		r.items = nil
		return r, about(meta, s.err)
	}
	return r, nil
}

func (r *request) scan(s *scanner, maxItems int) {
	seen := false
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		switch string(s.name()) {
		case "items":
			once(s, &seen, "items")
			r.scanItems(s, maxItems)
		default:
			s.value()
		}
	}
	s.end()
	if len(r.items) == 0 {
		s.fail(ReasonSlot, `the body has no "items"`)
	}
}

// scanItems reads the items. Their keys share one string: half the garbage of one each.
func (r *request) scanItems(s *scanner, maxItems int) {
	var keys []byte
	var ends []int
	s.expect('[')
	for first := true; s.more(first, ']'); first = false {
		if len(r.items) == maxItems {
			s.fail(ReasonTooMany, "more than %d items", maxItems)
			return
		}
		start := s.pos
		var item rawItem
		item, keys = scanItem(s, keys)
		if s.err != nil {
			return
		}
		if r.items == nil {
			room := min((len(s.body)-start)/(s.pos-start)+2, maxItems)
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

// scanItem reads {"i":17,"k":"CUST-18","d":…} and appends the key to keys.
func scanItem(s *scanner, keys []byte) (item rawItem, grown []byte) {
	var seenI, seenK bool
	start := s.pos
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		switch string(s.name()) {
		case "i":
			once(s, &seenI, "i")
			item.ordinal = s.ordinal()
		case "k":
			once(s, &seenK, "k")
			keys = s.appendText(keys, s.str())
		case "d":
			item.payload = s.value()
		default:
			s.value()
		}
	}
	if s.err == nil && (!seenI || !seenK || item.payload == nil) {
		s.fail(ReasonSlot, `the item at byte %d must have "i", "k" and "d"`, start)
	}
	return item, keys
}
