package itemschema

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Checker checks one item after the other.
type Checker struct {
	schema *Schema
	quick  *node // nil: only the library knows
}

// NewChecker makes a checker of a schema.
func (s *Schema) NewChecker() *Checker {
	c := &Checker{schema: s}
	if !s.far {
		quick := newNode(s.full)
		c.quick = &quick
	}
	return c
}

// Check returns in what an item does not fit, by field; nil when it fits.
func (c *Checker) Check(item []byte) []Fault {
	if c.quick != nil {
		if _, fits := c.quick.fits(item, 0); fits {
			return nil
		}
	}
	return c.schema.check(item)
}

// node knows of a value whether it surely fits a part of the schema. What is needed for each row stands first, in few
// lines of the processor's cache: rows bring much else through that.
type node struct {
	slow    bool // only the library knows
	any     bool // everything fits
	types   kinds
	free    bool // but for the enum every text fits
	alone   bool // texts have a pattern or a format, and no lengths or enum
	date    bool // the format is date
	numbers bool // there are bounds
	atMin   bool // short numbers may be on the bound; other numbers on one are for the library
	atMax   bool
	closed  bool // there are no other fields
	min     float64
	max     float64
	pieces  pieces   // of the pattern; nil: it has none
	enum    [][]byte // values that are no objects and arrays, in JSON; nil: any
	least   int      // characters
	most    int      // -1: any number

	// Of objects.
	order    []*field // as they stood in the last one
	required int
	visit    int // counts objects
	fields   map[string]*field
	others   *field // what those must be that have no entry

	full    *jsonschema.Schema
	pattern jsonschema.Regexp
	machine *machine // of the pattern; nil: it has none
	format  *jsonschema.Format
	text    []byte // one without its escapes
}

// kinds are types of JSON Schema; none means all.
type kinds uint8

const (
	aNull kinds = 1 << iota
	aBoolean
	aNumber
	anInteger
	aString
	anArray
	anObject
)

func kindsOf(names []string) (all kinds) {
	for _, name := range names {
		all |= map[string]kinds{"null": aNull, "boolean": aBoolean, "number": aNumber, "integer": anInteger,
			"string": aString, "array": anArray, "object": anObject}[name]
	}
	return all
}

type field struct {
	// The first and the last eight bytes of the name, of a short one the first only.
	head, mask, tail uint64

	name     []byte // in JSON, with its colon, once it was seen
	required bool
	seen     int // the visit in which it was
	node
}

func (f *field) called(name []byte) {
	f.name = bytes.Clone(name)
	word := make([]byte, 8)
	f.mask = 1<<(8*copy(word, name)) - 1
	f.head = binary.LittleEndian.Uint64(word)
	if len(name) > 8 {
		f.tail = binary.LittleEndian.Uint64(name[len(name)-8:])
	}
}

// stands reports whether a text begins with the name.
func (f *field) stands(text []byte) bool {
	n := len(f.name)
	switch {
	case len(text) < max(n, 8) || n > 16:
		return bytes.HasPrefix(text, f.name)
	case binary.LittleEndian.Uint64(text)&f.mask != f.head:
		return false
	default:
		return n <= 8 || binary.LittleEndian.Uint64(text[n-8:]) == f.tail
	}
}

// newNode reads a schema that was compiled. What is not known here makes the node a slow one.
func newNode(s *jsonschema.Schema) (n node) {
	n = node{full: s, most: -1}
	if s.Bool != nil {
		n.any, n.slow = *s.Bool, !*s.Bool
		return n
	}
	if joined(s) || len(s.Extensions) > 0 || s.Const != nil {
		n.slow = true
		return n
	}
	if s.Types != nil {
		n.types = kindsOf(s.Types.ToStrings())
	}
	n.ofTexts(s)
	n.ofNumbers(s)
	n.ofObjects(s)
	if ofArrays(s) {
		n.slow = n.slow || n.takes(anArray)
	}
	return n
}

// joined reports whether the schema is made of others that are about the same value.
func joined(s *jsonschema.Schema) bool {
	return s.Ref != nil || s.RecursiveRef != nil || s.DynamicRef != nil || s.Not != nil || s.If != nil ||
		len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0
}

func ofArrays(s *jsonschema.Schema) bool {
	return s.MinItems != nil || s.MaxItems != nil || s.UniqueItems || s.Contains != nil || s.Items != nil ||
		s.AdditionalItems != nil || len(s.PrefixItems) > 0 || s.Items2020 != nil || s.UnevaluatedItems != nil
}

func (n *node) ofTexts(s *jsonschema.Schema) {
	n.pattern, n.format = s.Pattern, s.Format
	if n.pattern != nil {
		n.pieces = newPieces(n.pattern.String())
		n.machine = newMachine(n.pattern.String())
	}
	n.ofLengths(s)
	if s.ContentEncoding != nil || s.ContentMediaType != nil || s.ContentSchema != nil {
		n.slow = true
	}
	n.free = n.least == 0 && n.most < 0 && n.pattern == nil && n.format == nil
	n.date = n.format != nil && n.format.Name == "date"
	n.alone = n.least == 0 && n.most < 0 && (n.pattern == nil || n.format == nil) && s.Enum == nil
	if s.Enum != nil {
		n.ofEnum(s.Enum.Values)
	}
}

func (n *node) ofLengths(s *jsonschema.Schema) {
	if s.MinLength != nil {
		n.least = *s.MinLength
	}
	if s.MaxLength != nil {
		n.most = *s.MaxLength
	}
}

func (n *node) ofEnum(values []any) {
	n.enum = [][]byte{} // what is written otherwise than here is for the library
	for _, value := range values {
		switch v := value.(type) {
		case string:
			n.enum = append(n.enum, strconv.AppendQuote(nil, v))
		case nil:
			n.enum = append(n.enum, []byte("null"))
		case bool, json.Number:
			n.enum = append(n.enum, fmt.Append(nil, v))
		}
	}
}

func (n *node) ofNumbers(s *jsonschema.Schema) {
	n.min, n.max = math.Inf(-1), math.Inf(1)
	if s.MultipleOf != nil {
		n.slow = n.slow || n.takes(aNumber) || n.takes(anInteger)
	}
	if s.Minimum != nil {
		n.min, n.atMin = bound(s.Minimum)
		n.numbers = true
	}
	if s.ExclusiveMinimum != nil {
		least, _ := s.ExclusiveMinimum.Float64()
		n.min, n.atMin, n.numbers = max(n.min, least), false, true
	}
	if s.Maximum != nil {
		n.max, n.atMax = bound(s.Maximum)
		n.numbers = true
	}
	if s.ExclusiveMaximum != nil {
		most, _ := s.ExclusiveMaximum.Float64()
		n.max, n.atMax, n.numbers = min(n.max, most), false, true
	}
}

// bound rounds a bound, and reports whether it is as short as numbers that are compared exactly.
func bound(r *big.Rat) (value float64, short bool) {
	value, _ = r.Float64()
	again, ok := new(big.Rat).SetString(strconv.FormatFloat(value, 'g', exactDigits, 64))
	return value, ok && again.Cmp(r) == 0
}

func (n *node) ofObjects(s *jsonschema.Schema) {
	odd := s.MaxProperties != nil || s.MinProperties != nil || s.PropertyNames != nil || len(s.PatternProperties) > 0 ||
		len(s.Dependencies)+len(s.DependentRequired)+len(s.DependentSchemas) > 0 || s.UnevaluatedProperties != nil
	if odd && n.takes(anObject) {
		n.slow = true
	}
	if !n.slow {
		n.ofFields(s)
	}
}

// ofFields reads what fields objects have.
func (n *node) ofFields(s *jsonschema.Schema) {
	n.fields, n.others = map[string]*field{}, &field{node: node{any: true}}
	for name, schema := range s.Properties {
		n.fields[name] = &field{node: newNode(schema)}
	}
	switch more := s.AdditionalProperties.(type) {
	case bool:
		n.closed = !more
	case *jsonschema.Schema:
		n.others.node = newNode(more)
	}
	for _, name := range s.Required {
		if n.fields[name] == nil {
			if n.closed || !n.others.any {
				n.slow = true
				return
			}
			n.fields[name] = &field{node: node{any: true}}
		}
		if !n.fields[name].required {
			n.fields[name].required = true
			n.required++
		}
	}
}
