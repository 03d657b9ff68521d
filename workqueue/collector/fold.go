package collector

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// foldedBytes is how many times a flush's bytes may be read for one that folds, holding one flush's bytes at a time.
const foldedBytes = 4

// opBytes is an operation's overhead beyond its payload and ID.
const opBytes = 64

// folding gathers operations as they are read, and folds those of the same value into the last of them. It stops at
// the first that does not fit. Read again later, a folded operation includes the same ones or more.
type folding struct {
	how   string // empty: no folding
	limit int    // most operations after folding
	bytes int64  // most bytes

	ops    []foldedOp
	latest map[string]int // by fold value, the index of the operation that takes more
	held   int64
	full   bool
}

type foldedOp struct {
	FlushOp
	merged *patch // its payload once another was merged into it
}

func (o *foldedOp) size() int64 {
	size := len(o.Payload)
	if o.merged != nil {
		size = o.merged.size
	}
	return int64(size + len(o.ID) + opBytes)
}

func (f *folding) take(op *FlushOp, by string) error {
	if f.full {
		return nil
	}
	if i, there := f.latest[by]; there {
		joined, err := f.join(&f.ops[i], op)
		if joined || f.full || err != nil {
			return err
		}
	}
	add := foldedOp{FlushOp: *op}
	if len(f.ops) == f.limit || f.how != "" && len(f.ops) > 0 && f.held+add.size() > f.bytes {
		f.full = true
		return nil
	}
	f.ops, f.held = append(f.ops, add), f.held+add.size()
	if by != "" {
		if f.latest == nil {
			f.latest = map[string]int{}
		}
		f.latest[by] = len(f.ops) - 1
	}
	return nil
}

// join folds an earlier operation into a later one, unless they cannot be merged.
func (f *folding) join(o *foldedOp, op *FlushOp) (joined bool, err error) {
	var next *patch
	more := len(op.Payload) - len(o.Payload)
	if f.how == FoldMerge {
		var ok bool
		if next, more, ok, err = o.takes(op); !ok {
			return false, err
		}
	}
	if more += len(op.ID) - len(o.ID); more > 0 && f.held+int64(more) > f.bytes {
		f.full = true
		return false, nil
	}
	f.held += int64(more)
	if next != nil {
		o.merged.Merge(next)
	} else {
		o.Payload = op.Payload
	}
	o.Folded = append(o.Folded, o.Seq)
	o.Seq, o.ID, o.Refusals = op.Seq, op.ID, op.Refusals
	o.Attempts, o.Alone = max(o.Attempts, op.Attempts), o.Alone || op.Alone
	return true, nil
}

// takes reports whether op's payload can be merged into it, and how many more bytes that takes.
func (o *foldedOp) takes(op *FlushOp) (next *patch, more int, ok bool, err error) {
	if o.merged == nil {
		if o.merged, err = parsePatch(o.Payload); err != nil {
			return nil, 0, false, fmt.Errorf("read the payload of operation %s: %w", o.ID, err)
		}
		o.Payload = nil
	}
	if next, err = parsePatch(op.Payload); err != nil {
		return nil, 0, false, fmt.Errorf("read the payload of operation %s: %w", op.ID, err)
	}
	more, ok = o.merged.Takes(next)
	return next, more, ok && o.merged.size+more <= MaxOpPayload, nil
}

func (f *folding) end() []FlushOp {
	ops := make([]FlushOp, len(f.ops))
	for i := range f.ops {
		ops[i] = f.ops[i].FlushOp
		if merged := f.ops[i].merged; merged != nil {
			ops[i].Payload = merged.append(make([]byte, 0, merged.size))
		}
	}
	if f.how != "" && len(ops) > 0 && !ops[0].Alone { // one that goes alone does so when it has waited longest
		slices.SortFunc(ops, func(a, b FlushOp) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return ops[:together(ops)]
}

// patch is a JSON value into which others are merged as JSON Merge Patch (RFC 7396): members of objects are set one
// by one, anything else is replaced entirely. Nulls stay, since the receiver must delete the member, too.
type patch struct {
	value   []byte // set unless it is an object
	names   []string
	members map[string]*member // by name; nil: not an object
	size    int                // of it as JSON
}

type member struct {
	name  []byte // quoted
	value *patch
}

// parsePatch parses a valid value. The patch shares no memory with it.
func parsePatch(value []byte) (*patch, error) {
	return readPatch(jsontext.NewDecoder(bytes.NewReader(value)))
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

func (p *patch) set(name string, m *member) {
	p.size += p.growth(m)
	p.names, p.members[name] = append(p.names, name), m
}

func (p *patch) growth(m *member) int {
	n := len(m.name) + len(":") + m.value.size
	if len(p.names) > 0 {
		n += len(",")
	}
	return n
}

// Takes reports whether one patch can have the effect of p and then next, and how many more bytes it takes. It
// cannot if an object follows a non-object: merged into a document, it would keep members that p deletes.
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

// Merge merges a patch that Takes has accepted. It keeps references to its parts.
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
