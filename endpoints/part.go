package endpoints

import (
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxParts is how many parts an item may have: as many as a plan may have steps.
const MaxParts = 64

// Part is what another step of the run has made of an item.
type Part struct {
	Data        []byte // JSON unless ContentType says otherwise. Not to be changed
	ContentType string // "" means JSON
}

// parts are those of one item, in the order of the request.
type parts []namedPart

type namedPart struct {
	name string
	Part
}

func (p parts) find(name string) (Part, bool) {
	for n := range p {
		if p[n].name == name {
			return p[n].Part, true
		}
	}
	return Part{}, false
}

// decode reads a part of JSON into what a pointer points to.
func (p Part) decode(into any) error {
	goal := reflect.TypeOf(into).Elem()
	if p.ContentType != "" {
		return fmt.Errorf("it is %.80s, which does not fit %v; read it as a Binary", p.ContentType, goal)
	}
	if err := decodePayload(p.Data, into); err != nil {
		return fmt.Errorf("%s", payloadError(err, goal).Message)
	}
	return nil
}

// size is how many bytes a part takes in a request, at least.
func (p *namedPart) size() int {
	if p.ContentType == "" {
		return len(p.name) + len(p.Data)
	}
	return len(p.name) + len(p.ContentType) + len(p.Data)/3*4
}

// appendPart writes "accounts":{"d":…}, or "logo":{"t":"image/png","b":"…"}.
func appendPart(b []byte, p *namedPart) []byte {
	b = append(appendString(b, p.name), `:{`...)
	switch {
	case p.ContentType != "":
		b = appendEncoded(b, p.ContentType, p.Data)
	case len(p.Data) == 0:
		b = append(b, `"d":null`...)
	default:
		b = append(append(b, `"d":`...), p.Data...)
	}
	return append(b, '}')
}

// scanParts reads {"accounts":{"d":…},"logo":{"t":"image/png","b":"…"}}. A request has few names, and says each with
// every item: names keeps one string of each.
func scanParts(in *bodyReader, names map[string]string) parts {
	found := parts{}
	in.open('{')
	for in.more() {
		name := in.shared(names)
		if _, twice := found.find(name); twice {
			in.fail(ReasonSlot, "the part that ends at byte %d, %.80q, stands twice", in.pos(), name)
		}
		if len(found) == MaxParts {
			in.fail(ReasonTooMany, "the item around byte %d has more than %d parts", in.pos(), MaxParts)
		}
		if in.err != nil {
			return nil
		}
		found = append(found, namedPart{name, scanPart(in, names)})
	}
	return found
}

// scanPart reads {"d":…}, or {"t":"image/png","b":"…"}.
func scanPart(in *bodyReader, names map[string]string) (part Part) {
	var seen slotFields
	var encoded []byte
	in.open('{')
	for in.more() {
		switch string(in.name()) {
		case `"d"`:
			once(in, &seen.d, "d")
			part.Data = in.value()
		case `"t"`:
			once(in, &seen.t, "t")
			part.ContentType = in.shared(names)
		case `"b"`:
			once(in, &seen.b, "b")
			encoded = in.text([]byte{})
		default:
			in.value()
		}
	}
	if in.err == nil {
		checkPart(in, &part, seen, encoded)
	}
	return part
}

// checkPart holds a part to the rule: exactly one of JSON and bytes.
func checkPart(in *bodyReader, part *Part, seen slotFields, encoded []byte) {
	switch {
	case seen.d && !seen.b && !seen.t:
	case seen.b && !seen.d:
		part.Data = decodeBinary(in, "the part that ends at byte", in.pos(), encoded)
		if !seen.t {
			part.ContentType = DefaultBinaryType
		} else if !validContentType(part.ContentType) {
			in.fail(ReasonSlot, "the part that ends at byte %d has content type %.80q, which is not one", in.pos(),
				part.ContentType)
		}
	default:
		in.fail(ReasonSlot, `the part that ends at byte %d must have exactly one of "d" and "b" (with "t")`, in.pos())
	}
}

// shared reads a string that is one of few.
func (r *bodyReader) shared(known map[string]string) string {
	raw := r.raw()
	if r.err != nil {
		return ""
	}
	if text, ok := known[string(raw)]; ok {
		return text
	}
	if raw[0] != '"' {
		r.unexpected(jsontext.Value(raw).Kind(), '"')
		return ""
	}
	unquoted, _ := jsontext.AppendUnquote(nil, raw) // a string that was read is valid
	text := string(unquoted)
	if len(known) < 4*MaxParts { // more than any request of ours has
		known[string(raw)] = text
	}
	return text
}
