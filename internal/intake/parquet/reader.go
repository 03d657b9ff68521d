package parquet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/format"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Reader reads the rows of a Parquet file by random access. The data is not trusted: regardless of the sizes
// it claims, memory is bounded by one page per column, and pages are bounded too.
type Reader struct {
	input    io.ReaderAt
	size     int64
	cfg      Config
	footer   *footer
	columns  []*column // the leaves, in file order
	fields   []*node   // the top level
	prefixes [][]byte
	key      int
	group    int   // the next one
	left     int64 // remaining rows of the current group
	row      int
	held     int64 // bytes of pages
	out      int64 // bytes of payloads
}

type node struct {
	*format.SchemaElement
	logical  format.LogicalTypeValue
	children []*node
	prefixes [][]byte
	leaf     *column // if it is a leaf
	first    *column // the first leaf below
	rep, def int     // the levels at which it is present
}

// Magic is the first and last bytes of a file.
const Magic = "PAR1"

const (
	// A Parquet file may have a higher unpacking ratio than other input: names and repeated values are stored once.
	ratioFrom = 64 << 20
	ratio     = 5
)

// Config has the key column and the limits, like the Config of package intake. No limit is zero.
type Config struct {
	Key           string
	Rename        map[string]string
	MaxFieldBytes int
	MaxRowBytes   int
	MaxDepth      int
	MaxRatio      int
}

// Open reads the metadata of a file of size bytes.
func Open(file io.ReaderAt, size int64, cfg Config) (*Reader, error) {
	foot, err := readFooter(file, size)
	if err != nil {
		return nil, err
	}
	p := &Reader{input: file, size: size, cfg: cfg, footer: foot}
	if err := p.schema(); err != nil {
		return nil, err
	}
	var names []string
	for _, f := range p.fields {
		names = append(names, f.Name)
	}
	p.prefixes = row.Prefixes(names)
	p.key, err = row.KeyColumn(names, cfg.Key, cfg.Rename, 0)
	if wrong, ok := errors.AsType[*row.LineError](err); ok {
		return nil, bad("%s", wrong.Reason)
	}
	key := p.fields[p.key]
	inexact := key.Type.V == format.Float || key.Type.V == format.Double
	if key.leaf == nil || key.is(format.Repeated) || inexact {
		return nil, bad("column %s cannot be the key: it must hold one text, whole number, date or UUID; "+
			"name another", row.Quote(key.Name))
	}
	return p, nil
}

// KeyName is the column of the keys.
func (p *Reader) KeyName() string { return p.fields[p.key].Name }

func (p *Reader) schema() error {
	elements := p.footer.Schema
	if len(elements) < 2 {
		return bad("it has no columns; write it with at least one")
	}
	next := 1
	var err error
	p.fields, err = p.nodes(&next, int(elements[0].NumChildren.V), 0, 0, 1, "")
	if err == nil && next != len(elements) {
		err = bad("its schema is damaged; write it again")
	}
	if err == nil && len(p.columns) > maxColumns {
		err = bad("it has %d columns, and at most %d are read; select those that are needed",
			len(p.columns), maxColumns)
	}
	return err
}

func (p *Reader) nodes(next *int, n, rep, def, depth int, top string) ([]*node, error) {
	var all []*node
	seen := map[string]bool{}
	for range n {
		if *next >= len(p.footer.Schema) || depth > maxSchemaDepth {
			return nil, bad("its schema is damaged, or nested deeper than %d; flatten it", maxSchemaDepth)
		}
		e := &p.footer.Schema[*next]
		*next++
		if reason := row.RefuseName(e.Name); reason != "" {
			return nil, bad("column %s: %s", row.Quote(e.Name), reason)
		}
		if seen[e.Name] {
			return nil, bad("it has two columns called %s; rename one", row.Quote(e.Name))
		}
		seen[e.Name] = true
		made, err := p.node(e, next, rep, def, depth, top)
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

func (p *Reader) node(e *format.SchemaElement, next *int, rep, def, depth int, top string) (*node, error) {
	made := &node{SchemaElement: e, logical: logicalOf(e), rep: rep, def: def}
	top = cmp.Or(top, e.Name)
	if _, variant := made.logical.(*format.VariantType); variant {
		return nil, bad("column %s is a Variant, which is not read; write it as JSON text, or leave it out",
			row.Quote(top))
	}
	switch e.RepetitionType.V {
	case format.Repeated:
		made.rep, made.def = rep+1, def+1
	case format.Optional:
		made.def = def + 1
	}
	if e.Type.Valid {
		length := e.TypeLength.V
		odd := e.Type.V == format.FixedLenByteArray && (length < 1 || length > encoding.MaxFixedLenByteArraySize)
		if e.NumChildren.V > 0 || e.Type.V < 0 || e.Type.V > format.FixedLenByteArray || odd {
			return nil, bad("column %s: its type is damaged; write it again", row.Quote(top))
		}
		made.leaf = &column{file: p, leaf: e, name: top, maxRep: made.rep, maxDef: made.def}
		made.first = made.leaf
		p.columns = append(p.columns, made.leaf)
		return made, nil
	}
	if e.NumChildren.V < 1 {
		return nil, bad("column %s has nothing in it; leave it out", row.Quote(top))
	}
	var err error
	if made.children, err = p.nodes(next, int(e.NumChildren.V), made.rep, made.def, depth+1, top); err != nil {
		return nil, err
	}
	made.first = made.children[0].first
	var names []string
	for _, c := range made.children {
		names = append(names, c.Name)
	}
	made.prefixes = row.Prefixes(names)
	return made, nil
}

func (p *Reader) rowError(field, reason string) error {
	return &row.RecordError{Unit: "row", Number: p.row + 1, Field: field, Reason: reason}
}

// Next fills the item with the next row, or returns io.EOF.
func (p *Reader) Next(item *row.Item) error {
	for p.left == 0 {
		if err := p.nextGroup(); err != nil {
			return err
		}
	}
	payload := item.Payload[:0]
	for i, f := range p.fields {
		if f.first.over || f.first.rep != 0 {
			return bad("column %s ends before row %d; the file is damaged, write it again", row.Quote(f.Name), p.row+1)
		}
		if i == p.key {
			if err := p.takeKey(item, f); err != nil {
				return err
			}
		}
		var err error
		before := len(payload)
		payload = append(payload, p.prefixes[i]...)
		if payload, err = p.write(payload, f, 2); err != nil {
			return err
		}
		if len(payload)-before > p.cfg.MaxFieldBytes+len(p.prefixes[i]) {
			return p.rowError(f.Name, "larger than "+row.Size(p.cfg.MaxFieldBytes)+"; shorten it, or leave the column out")
		}
	}
	payload = append(payload, '}')
	item.Payload = payload
	p.left--
	p.row++
	item.Line = p.row
	if p.out += int64(len(payload)); p.out > ratioFrom && p.out/int64(ratio*p.cfg.MaxRatio) > p.size {
		return bad("it unpacks to more than %d times its size, as no list of items does; check it, and send it "+
			"as CSV or NDJSON if it is right", ratio*p.cfg.MaxRatio)
	}
	return nil
}

func (p *Reader) nextGroup() error {
	if p.group > 0 {
		for _, c := range p.columns {
			if !c.over {
				return bad("column %s has more rows than others; the file is damaged, write it again", row.Quote(c.name))
			}
		}
	}
	if p.group == len(p.footer.Groups) {
		if p.footer.Rows != 0 && int64(p.row) != p.footer.Rows { // some writers leave it 0
			return bad("it has %d rows, and claims %d; it is damaged, write it again", p.row, p.footer.Rows)
		}
		return io.EOF
	}
	g := &p.footer.Groups[p.group]
	p.group++
	if len(g.Chunks) != len(p.columns) || g.Rows < 0 {
		return bad("row group %d is damaged; write it again", p.group)
	}
	for i, c := range p.columns {
		if err := c.open(&g.Chunks[i]); err != nil {
			return err
		}
	}
	p.left = g.Rows
	return nil
}

func (p *Reader) takeKey(item *row.Item, f *node) error {
	if f.leaf.def < f.def {
		return p.rowError(f.Name, "the key is null; every row needs one")
	}
	switch f.logical.(type) {
	case *format.StringType, *format.EnumType:
		item.Key = string(f.leaf.value.b)
		return nil
	case nil:
		if f.Type.V == format.ByteArray && utf8.Valid(f.leaf.value.b) {
			item.Key = string(f.leaf.value.b)
			return nil
		}
	}
	text := f.append(nil, f.leaf.value, p.cfg.MaxDepth)
	if text == nil {
		return p.rowError(f.Name, "the key is not text")
	}
	if text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	item.Key = string(text)
	return nil
}

func (p *Reader) write(dst []byte, n *node, depth int) ([]byte, error) {
	switch {
	case n.is(format.Repeated):
		return p.list(dst, n, n, depth)
	case n.is(format.Optional) && n.first.def < n.def:
		return append(dst, "null"...), n.pass()
	}
	return p.content(dst, n, depth)
}

func (p *Reader) tooLarge(at *column) error {
	return p.rowError(at.name, "the row is larger than "+row.Size(p.cfg.MaxRowBytes)+"; leave columns out")
}

func (n *node) is(r format.FieldRepetitionType) bool { return n.RepetitionType.V == r }

func (n *node) isList() bool {
	switch n.logical.(type) {
	case *format.ListType, *format.MapType:
		return true
	}
	return false
}

func (p *Reader) content(dst []byte, n *node, depth int) ([]byte, error) {
	switch {
	case depth > p.cfg.MaxDepth:
		return nil, p.rowError(n.first.name, fmt.Sprintf("nested deeper than %d, which services do not take; flatten it",
			p.cfg.MaxDepth))
	case n.leaf != nil && (n.leaf.over || n.leaf.def < n.def): // other columns of the row claim that it is present
		return nil, n.leaf.damaged()
	case n.leaf != nil:
		out := n.append(dst, n.leaf.value, p.cfg.MaxDepth-depth)
		if out == nil {
			return nil, p.rowError(n.leaf.name, "it is not text in UTF-8 without NUL, or no JSON that services read; "+
				"fix it, or write the column as binary")
		}
		if len(out) > p.cfg.MaxRowBytes {
			return nil, p.tooLarge(n.leaf)
		}
		return out, n.leaf.advance()
	case n.isList() && len(n.children) == 1 && n.children[0].is(format.Repeated):
		return p.list(dst, n.children[0], n.children[0].element(n), depth)
	}
	var err error
	for i, c := range n.children {
		if dst, err = p.write(append(dst, n.prefixes[i]...), c, depth+1); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// element returns what a list repeats: the only child of its repeated group, or, from old writers, that group
// itself. For a map it is a pair of key and value.
func (n *node) element(list *node) *node {
	if _, ok := list.logical.(*format.ListType); ok && n.leaf == nil && len(n.children) == 1 && n.Name != "array" &&
		n.Name != list.Name+"_tuple" {
		return n.children[0]
	}
	return n
}

func (p *Reader) list(dst []byte, repeated, element *node, depth int) ([]byte, error) {
	dst = append(dst, '[')
	if repeated.first.def < repeated.def {
		return append(dst, ']'), repeated.pass()
	}
	for more := false; ; more = true {
		if more {
			dst = append(dst, ',')
		}
		var err error
		if element == repeated {
			dst, err = p.content(dst, element, depth+1)
		} else {
			dst, err = p.write(dst, element, depth+1)
		}
		switch {
		case err != nil:
			return nil, err
		case len(dst) > p.cfg.MaxRowBytes:
			return nil, p.tooLarge(repeated.first)
		case repeated.first.over || repeated.first.rep != repeated.rep:
			if !repeated.first.over && repeated.first.rep > repeated.rep {
				return nil, repeated.first.damaged()
			}
			return append(dst, ']'), nil
		}
	}
}

// pass skips an absent node: each leaf below has one entry for it.
func (n *node) pass() error {
	if n.leaf != nil {
		if n.leaf.over {
			return n.leaf.damaged()
		}
		return n.leaf.advance()
	}
	for _, c := range n.children {
		if err := c.pass(); err != nil {
			return err
		}
	}
	return nil
}
