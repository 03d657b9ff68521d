package wire

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

// Parts are those of one item, in the order of the request.
type Parts []NamedPart

// NamedPart is a part, and the step that made it.
type NamedPart struct {
	Name string
	Part
}

// Find returns the part that the step of a name has made.
func (p Parts) Find(name string) (Part, bool) {
	for n := range p {
		if p[n].Name == name {
			return p[n].Part, true
		}
	}
	return Part{}, false
}

// Decode reads a part of JSON into what a pointer points to.
func (p Part) Decode(into any) error {
	goal := reflect.TypeOf(into).Elem()
	if p.ContentType != "" {
		return fmt.Errorf("it is %.80s, which does not fit %v; read it as a Binary", p.ContentType, goal)
	}
	if err := DecodePayload(p.Data, into); err != nil {
		return fmt.Errorf("%s", PayloadError(err, goal).Message)
	}
	return nil
}

// size is how many bytes a part takes in a request, at least.
func (p *NamedPart) size() int {
	if p.ContentType == "" {
		return len(p.Name) + len(p.Data)
	}
	return len(p.Name) + len(p.ContentType) + len(p.Data)/3*4
}

// appendPart writes "accounts":{"d":…}, or "logo":{"t":"image/png","b":"…"}.
func appendPart(b []byte, p *NamedPart) []byte {
	b = append(AppendString(b, p.Name), `:{`...)
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
func scanParts(in *BodyReader, names map[string]string) Parts {
	found := Parts{}
	in.Open('{')
	for in.More() {
		name := in.shared(names)
		if _, twice := found.Find(name); twice {
			in.Fail(ReasonSlot, "the part that ends at byte %d, %.80q, stands twice", in.Pos(), name)
		}
		if len(found) == MaxParts {
			in.Fail(ReasonTooMany, "the item around byte %d has more than %d parts", in.Pos(), MaxParts)
		}
		if in.Err != nil {
			return nil
		}
		found = append(found, NamedPart{name, scanPart(in, names)})
	}
	return found
}

// scanPart reads {"d":…}, or {"t":"image/png","b":"…"}.
func scanPart(in *BodyReader, names map[string]string) (part Part) {
	var seen slotFields
	var encoded []byte
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"d"`:
			Once(in, &seen.d, "d")
			part.Data = in.value()
		case `"t"`:
			Once(in, &seen.t, "t")
			part.ContentType = in.shared(names)
		case `"b"`:
			Once(in, &seen.b, "b")
			encoded = in.Text([]byte{})
		default:
			in.value()
		}
	}
	if in.Err == nil {
		checkPart(in, &part, seen, encoded)
	}
	return part
}

// checkPart holds a part to the rule: exactly one of JSON and bytes.
func checkPart(in *BodyReader, part *Part, seen slotFields, encoded []byte) {
	switch {
	case seen.d && !seen.b && !seen.t:
	case seen.b && !seen.d:
		part.Data = decodeBinary(in, "the part that ends at byte", in.Pos(), encoded)
		if !seen.t {
			part.ContentType = DefaultBinaryType
		} else if !ValidContentType(part.ContentType) {
			in.Fail(ReasonSlot, "the part that ends at byte %d has content type %.80q, which is not one", in.Pos(),
				part.ContentType)
		}
	default:
		in.Fail(ReasonSlot, `the part that ends at byte %d must have exactly one of "d" and "b" (with "t")`, in.Pos())
	}
}

// shared reads a string that is one of few.
func (r *BodyReader) shared(known map[string]string) string {
	raw := r.Raw()
	if r.Err != nil {
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
