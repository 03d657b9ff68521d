package itemschema

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Checker checks one item after the other.
type Checker struct {
	schema *Schema
	quick  *node
}

// NewChecker makes a checker of a schema.
func (s *Schema) NewChecker() *Checker {
	c := &Checker{schema: s}
	if !s.far {
		c.quick = newNode(s.full)
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

// node knows of a value whether it surely fits a part of the schema.
type node struct {
	full  *jsonschema.Schema
	slow  bool // only the library knows
	any   bool // everything fits
	types kinds

	// Of texts.
	enum     [][]byte // in JSON
	least    int      // characters
	most     int      // -1: any number
	pattern  jsonschema.Regexp
	machine  *machine // of the pattern; nil: it has none
	format   *jsonschema.Format
	free     bool    // but for these every text fits
	text     []byte  // one without its escapes
	numbers  bool    // there are bounds
	min, max float64 // that are exclusive here: what is on one is for the library to say

	// Of objects.
	fields   map[string]*field
	order    []*field // as they stood in the last object
	required int
	closed   bool  // no other fields
	others   field // what they must be
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
	quoted   []byte // its name, once it was seen
	node     *node
	required bool
}

// newNode reads a schema that was compiled. What is not known here makes the node a slow one.
func newNode(s *jsonschema.Schema) *node {
	n := &node{full: s, most: -1}
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
		n.machine = newMachine(n.pattern.String())
	}
	if s.MinLength != nil {
		n.least = *s.MinLength
	}
	if s.MaxLength != nil {
		n.most = *s.MaxLength
	}
	if s.ContentEncoding != nil || s.ContentMediaType != nil || s.ContentSchema != nil {
		n.slow = true
	}
	n.free = n.least == 0 && n.most < 0 && n.pattern == nil && n.format == nil
	if s.Enum == nil {
		return
	}
	n.enum = [][]byte{}
	for _, value := range s.Enum.Values {
		if text, ok := value.(string); ok {
			n.enum = append(n.enum, strconv.AppendQuote(nil, text)) // what is written otherwise is for the library
		}
	}
}

func (n *node) ofNumbers(s *jsonschema.Schema) {
	n.min, n.max = math.Inf(-1), math.Inf(1)
	if s.MultipleOf != nil {
		n.slow = n.slow || n.takes(aNumber) || n.takes(anInteger)
	}
	if s.Minimum != nil {
		least, _ := s.Minimum.Float64()
		n.min, n.numbers = max(n.min, least), true
	}
	if s.ExclusiveMinimum != nil {
		least, _ := s.ExclusiveMinimum.Float64()
		n.min, n.numbers = max(n.min, least), true
	}
	if s.Maximum != nil {
		most, _ := s.Maximum.Float64()
		n.max, n.numbers = min(n.max, most), true
	}
	if s.ExclusiveMaximum != nil {
		most, _ := s.ExclusiveMaximum.Float64()
		n.max, n.numbers = min(n.max, most), true
	}
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
	n.fields, n.others.node = map[string]*field{}, &node{any: true}
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
			if n.closed || !n.others.node.any {
				n.slow = true
				return
			}
			n.fields[name] = &field{node: &node{any: true}}
		}
		if !n.fields[name].required {
			n.fields[name].required = true
			n.required++
		}
	}
}

func (n *node) takes(kind kinds) bool { return n.types == 0 || n.types&kind != 0 }

// fits goes over the value that begins at some place, and returns where it ends. When it does not say that the value
// fits, the end is of no use.
func (n *node) fits(text []byte, at int) (end int, fits bool) {
	if n.any {
		return skip(text, at), true
	}
	if at >= len(text) {
		return at, false
	}
	switch c := text[at]; {
	case n.slow:
		end = skip(text, at)
		value, err := decode(text[at:end])
		return end, err == nil && n.full.Validate(value) == nil
	case c == '"':
		end, escaped := textEnd(text, at)
		return end, n.fitsText(text[at:end], escaped)
	case c == '{':
		if !n.takes(anObject) || n.enum != nil {
			return at, false
		}
		return n.fitsObject(text, at+1)
	default:
		end = skip(text, at)
		return end, n.enum == nil && n.fitsOther(text[at:end])
	}
}

// fitsOther is about values that are neither texts nor objects.
func (n *node) fitsOther(value []byte) bool {
	switch value[0] {
	case '[':
		return n.takes(anArray)
	case 't', 'f':
		return n.takes(aBoolean)
	case 'n':
		return n.takes(aNull)
	default:
		return n.fitsNumber(value)
	}
}

func (n *node) fitsText(quoted []byte, escaped bool) bool {
	switch {
	case !n.takes(aString):
		return false
	case n.enum != nil && !slices.ContainsFunc(n.enum, func(v []byte) bool { return bytes.Equal(v, quoted) }):
		return false
	case n.free:
		return true
	}
	plain := quoted[1 : len(quoted)-1]
	if escaped {
		var err error
		if n.text, err = jsontext.AppendUnquote(n.text[:0], quoted); err != nil {
			return false
		}
		plain = n.text
	}
	return n.fitsLength(plain) && n.fitsForm(plain)
}

func (n *node) fitsLength(text []byte) bool {
	if n.least > 1 || n.most >= 0 {
		length := utf8.RuneCount(text)
		return length >= n.least && (n.most < 0 || length <= n.most)
	}
	return n.least == 0 || len(text) > 0
}

func (n *node) fitsForm(text []byte) bool {
	return (n.pattern == nil || n.fitsPattern(text)) &&
		(n.format == nil || n.format.Name == "date" && isDate(text) || n.format.Validate(string(text)) == nil)
}

func (n *node) fitsPattern(text []byte) bool {
	if n.machine != nil {
		if is, known := n.machine.finds(text); known {
			return is
		}
	}
	return n.pattern.MatchString(string(text))
}

// isDate reports whether a text surely is a date, like 2024-01-31.
func isDate(text []byte) bool {
	if len(text) != len("2024-01-31") || text[4] != '-' || text[7] != '-' {
		return false
	}
	for i, c := range text {
		if i != 4 && i != 7 && (c < '0' || c > '9') {
			return false
		}
	}
	month, day := text[5:7], text[8:]
	if string(month) < "01" || string(month) > "12" || string(day) < "01" {
		return false
	}
	switch string(month) {
	case "02":
		return string(day) <= "28"
	case "04", "06", "09", "11":
		return string(day) <= "30"
	default:
		return string(day) <= "31"
	}
}

func (n *node) fitsNumber(digits []byte) bool {
	switch {
	case len(digits) > maxDigits || bytes.ContainsAny(digits, "eE"):
		return false
	case n.takes(aNumber):
	case !n.takes(anInteger) || bytes.IndexByte(digits, '.') >= 0:
		return false
	}
	if !n.numbers {
		return true
	}
	// Rounding keeps the order: what lies within when rounded lies within, but for what falls together with a bound.
	value, err := strconv.ParseFloat(string(digits), 64)
	return err == nil && value > n.min && value < n.max
}

// fitsObject goes over an object from behind its brace.
func (n *node) fitsObject(text []byte, at int) (end int, fits bool) {
	missing := n.required
	if at < len(text) && text[at] == '}' {
		return at + 1, missing == 0
	}
	for i := 0; ; i++ {
		if at >= len(text) || text[at] != '"' {
			return at, false
		}
		f, after, known := n.field(text, at, i)
		if !known || after >= len(text) || text[after] != ':' {
			return at, false
		}
		if at, fits = f.node.fits(text, after+1); !fits || at >= len(text) {
			return at, false
		}
		if f.required {
			missing--
		}
		if text[at] == '}' {
			return at + 1, missing == 0
		}
		at++ // the comma
	}
}

// field finds what is known of the field whose name stands at some place, the i-th of its object. Objects mostly have
// their fields in the same order.
func (n *node) field(text []byte, at, i int) (f *field, after int, known bool) {
	if i < len(n.order) {
		if f := n.order[i]; bytes.HasPrefix(text[at:], f.quoted) {
			return f, at + len(f.quoted), true
		}
	}
	after = skip(text, at)
	name := text[at+1 : after-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		return nil, after, false
	}
	f = n.fields[string(name)]
	switch {
	case f != nil:
	case n.closed:
		return nil, after, false
	default:
		return &n.others, after, true
	}
	if i <= len(n.order) {
		f.quoted = bytes.Clone(text[at:after])
		n.order = append(n.order[:i], f)
	}
	return f, after, true
}

// ValueEnd returns where the value ends that begins at some place of valid JSON.
func ValueEnd(text []byte, at int) int { return skip(text, at) }

func skip(text []byte, at int) int {
	if at >= len(text) {
		return at
	}
	switch text[at] {
	case '"':
		end, _ := textEnd(text, at)
		return end
	case '{', '[':
		depth := 0
		for i := at; i < len(text); i++ {
			switch text[i] {
			case '"':
				i = skip(text, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return len(text)
	default:
		for i := at; i < len(text); i++ {
			if c := text[i]; c == ',' || c == '}' || c == ']' {
				return i
			}
		}
		return len(text)
	}
}

// textEnd returns where a text ends, and whether anything in it is escaped.
func textEnd(text []byte, at int) (end int, escaped bool) {
	for i := at + 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			i++
		}
	}
	return len(text), escaped
}
