package collector

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// patch is a JSON value that others are merged into, as JSON Merge patch (RFC 7396) has it: members of objects are set
// one by one, and everything else is replaced as a whole. A null stays, since whoever is sent the merged value has to
// delete the member, too.
type patch struct {
	value   []byte // what it is unless it is an object
	names   []string
	members map[string]*member // by their names; nil: it is no object
	size    int
}

// member is a member of an object.
type member struct {
	name  []byte // in its quotes
	value *patch
}

// parsePatch reads a valid value. The patch shares no memory with it.
func parsePatch(value []byte) (*patch, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	return readPatch(dec)
}

func readPatch(dec *jsontext.Decoder) (*patch, error) {
	if dec.PeekKind() != '{' {
		value, err := dec.ReadValue()
		return &patch{value: bytes.Clone(value), size: len(value)}, err
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	p := &patch{members: map[string]*member{}, size: len("{}")}
	for dec.PeekKind() != '}' {
		quoted, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		quoted = bytes.Clone(quoted)
		value, err := readPatch(dec)
		if err != nil {
			return nil, err
		}
		name, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return nil, err
		}
		p.set(string(name), &member{quoted, value})
	}
	_, err := dec.ReadToken()
	return p, err
}

// set adds a member that is not there.
func (p *patch) set(name string, m *member) {
	p.size += p.growth(m)
	p.names, p.members[name] = append(p.names, name), m
}

// growth is how many bytes a member more takes.
func (p *patch) growth(m *member) int {
	n := len(m.name) + len(":") + m.value.size
	if len(p.names) > 0 {
		n += len(",")
	}
	return n
}

// Takes reports whether one patch can say what p and another after it do, and how many bytes more it takes. It cannot
// when an object follows something else: merged into a document, it would keep what stands there, which p replaces.
func (p *patch) Takes(next *patch) (more int, ok bool) {
	switch {
	case next.members == nil:
		return next.size - p.size, true
	case p.members == nil:
		return 0, false
	}
	added := len(p.names)
	for _, name := range next.names {
		m, old := next.members[name], p.members[name]
		if old == nil {
			if more += len(m.name) + len(":") + m.value.size; added > 0 {
				more += len(",")
			}
			added++
			continue
		}
		n, ok := old.value.Takes(m.value)
		if !ok {
			return 0, false
		}
		more += n
	}
	return more, true
}

// Merge merges another one into it that it takes. It keeps parts of that.
func (p *patch) Merge(next *patch) {
	if next.members == nil {
		*p = *next
		return
	}
	for _, name := range next.names {
		m, old := next.members[name], p.members[name]
		if old == nil {
			p.set(name, m)
			continue
		}
		before := old.value.size
		old.value.Merge(m.value)
		p.size += old.value.size - before
	}
}

// append writes it.
func (p *patch) append(to []byte) []byte {
	if p.members == nil {
		return append(to, p.value...)
	}
	to = append(to, '{')
	for i, name := range p.names {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(append(to, p.members[name].name...), ':')
		to = p.members[name].value.append(to)
	}
	return append(to, '}')
}

// Size is in how many bytes it is written.
func (p *patch) Size() int { return p.size }

// Text is it as JSON.
func (p *patch) Text() []byte { return p.append(slices.Grow([]byte(nil), p.size)) }
