package mergepatch

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Patch is a JSON value that others are merged into, as JSON Merge Patch (RFC 7396) has it: members of objects are set
// one by one, and everything else is replaced as a whole. A null stays, since whoever is sent the merged value has to
// delete the member, too.
type Patch struct {
	value   []byte // what it is unless it is an object
	names   []string
	members map[string]*member // by their names; nil: it is no object
	size    int
}

// member is a member of an object.
type member struct {
	name  []byte // in its quotes
	value *Patch
}

// Parse reads a valid value. The patch shares no memory with it.
func Parse(value []byte) (*Patch, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	return readPatch(dec)
}

func readPatch(dec *jsontext.Decoder) (*Patch, error) {
	if dec.PeekKind() != '{' {
		value, err := dec.ReadValue()
		return &Patch{value: bytes.Clone(value), size: len(value)}, err
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	p := &Patch{members: map[string]*member{}, size: len("{}")}
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
func (p *Patch) set(name string, m *member) {
	p.size += p.growth(m)
	p.names, p.members[name] = append(p.names, name), m
}

// growth is how many bytes a member more takes.
func (p *Patch) growth(m *member) int {
	n := len(m.name) + len(":") + m.value.size
	if len(p.names) > 0 {
		n += len(",")
	}
	return n
}

// Takes reports whether one patch can say what p and another after it do, and how many bytes more it takes. It cannot
// when an object follows something else: merged into a document, it would keep what stands there, which p replaces.
func (p *Patch) Takes(next *Patch) (more int, ok bool) {
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
func (p *Patch) Merge(next *Patch) {
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
func (p *Patch) append(to []byte) []byte {
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
func (p *Patch) Size() int { return p.size }

// Text is it as JSON.
func (p *Patch) Text() []byte { return p.append(slices.Grow([]byte(nil), p.size)) }
