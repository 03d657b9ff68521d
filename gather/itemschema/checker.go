package itemschema

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
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
		return n.fitsText(text, at)
	case c == '{':
		if !n.takes(anObject) || n.enum != nil {
			return at, false
		}
		return n.fitsObject(text, at+1)
	case c == '-' || c >= '0' && c <= '9':
		return n.fitsNumber(text, at)
	default:
		end = skip(text, at)
		kind := otherKind(c)
		return end, kind != 0 && n.takes(kind) && n.lists(text[at:end])
	}
}

// otherKind tells by their first character what values are that are no texts, objects and numbers; 0: nothing known.
func otherKind(first byte) kinds {
	switch first {
	case '[':
		return anArray
	case 'n':
		return aNull
	case 't', 'f':
		return aBoolean
	default:
		return 0
	}
}

// lists reports whether a value surely is one of those that are allowed.
func (n *node) lists(value []byte) bool {
	if n.enum == nil {
		return true
	}
	for _, v := range n.enum {
		if bytes.Equal(v, value) {
			return true
		}
	}
	return false
}

func (n *node) fitsText(text []byte, at int) (end int, fits bool) {
	switch {
	case !n.takes(aString):
		return at, false
	case n.enum != nil:
		if end = n.listed(text, at); end == 0 || n.free {
			return end, end > 0
		}
	case n.alone:
		if end = n.fitsAtOnce(text, at); end > 0 {
			return end, true
		}
	}
	end, escaped := textEnd(text, at)
	if n.free {
		return end, true
	}
	plain := text[at+1 : end-1]
	if escaped {
		var err error
		if n.text, err = jsontext.AppendUnquote(n.text[:0], text[at:end]); err != nil {
			return end, false
		}
		plain = n.text
	}
	return end, n.fitsLength(plain) && n.fitsForm(plain)
}

// fitsAtOnce is where a text ends that surely fits as it stands; 0: it takes a closer look.
func (n *node) fitsAtOnce(text []byte, at int) (end int) {
	switch {
	case n.pieces != nil:
		if end = n.pieces.end(text, at+1); end >= 0 && end < len(text) && text[end] == '"' {
			return end + 1
		}
	case n.date:
		if end = at + len(`"2024-01-31"`); end <= len(text) && text[end-1] == '"' && isDate(text[at+1:end-1]) {
			return end
		}
	}
	return 0
}

// listed is where one of the texts ends that are allowed; 0: none of them stands there.
func (n *node) listed(text []byte, at int) (end int) {
	for _, v := range n.enum {
		if v[0] == '"' && bytes.HasPrefix(text[at:], v) {
			return at + len(v)
		}
	}
	return 0
}

func (n *node) fitsLength(text []byte) bool {
	most := len(text) // of characters; each has four bytes at the most
	if least := (most + 3) / 4; least >= n.least && (n.most < 0 || most <= n.most) {
		return true
	}
	length := utf8.RuneCount(text)
	return length >= n.least && (n.most < 0 || length <= n.most)
}

func (n *node) fitsForm(text []byte) bool {
	return (n.pattern == nil || n.fitsPattern(text)) &&
		(n.format == nil || n.date && isDate(text) || n.format.Validate(string(text)) == nil)
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
	var odd byte
	for _, i := range [...]int{0, 1, 2, 3, 5, 6, 8, 9} {
		digit := text[i] - '0'
		odd |= digit | (9 - digit) // without a branch: the highest bit is set by what is no digit
	}
	month, day := 10*(text[5]-'0')+text[6]-'0', 10*(text[8]-'0')+text[9]-'0'
	const days = "\x00\x1f\x1c\x1f\x1e\x1f\x1e\x1f\x1f\x1e\x1f\x1e\x1f" // of each month; 29 February is for the library
	return odd < 0x80 && int(month) < len(days) && day > 0 && day <= days[month]
}

// exactDigits is how many digits a number may have for a float64 to tell it from all others that have no more.
const exactDigits = 15

// number is one that stands somewhere in JSON, without an exponent.
type number struct {
	end    int
	digits int
	point  int   // so many digits stand before it; -1: none
	first  int64 // of the first exactDigits
}

func newNumber(text []byte, at int) (n number, known bool) {
	n = number{end: at, point: -1}
	if text[at] == '-' {
		n.end++
	}
	for ; n.end < len(text); n.end++ {
		switch c := text[n.end]; {
		case c >= '0' && c <= '9':
			if n.digits++; n.digits <= exactDigits {
				n.first = n.first*10 + int64(c-'0')
			}
		case c == '.':
			n.point = n.digits
		default:
			return n, c != 'e' && c != 'E'
		}
	}
	return n, true
}

// value is the number in text, rounded; exact: no other one that is as short is rounded so.
func (n *number) value(text []byte) (value float64, exact bool) {
	if n.digits > exactDigits {
		value, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			value = math.NaN() // which is within no bounds
		}
		return value, false
	}
	value = float64(n.first)
	if n.point >= 0 {
		value /= math.Pow10(n.digits - n.point)
	}
	if text[0] == '-' {
		value = -value
	}
	return value, true
}

func (n *node) fitsNumber(text []byte, at int) (end int, fits bool) {
	num, known := newNumber(text, at)
	switch {
	case !known || num.end-at > maxDigits:
		return num.end, false
	case n.takes(aNumber):
	case !n.takes(anInteger) || num.point >= 0:
		return num.end, false
	}
	text = text[at:num.end]
	return num.end, n.lists(text) && (!n.numbers || n.within(num.value(text)))
}

// within reports whether a number surely is within the bounds. Rounding keeps the order: what lies within when rounded
// lies within, but for what falls together with a bound.
func (n *node) within(value float64, exact bool) bool {
	return (value > n.min || exact && value == n.min && n.atMin) && (value < n.max || exact && value == n.max && n.atMax)
}

// fitsObject goes over an object from behind its brace.
func (n *node) fitsObject(text []byte, at int) (end int, fits bool) {
	missing := n.required
	n.visit++
	if at < len(text) && text[at] == '}' {
		return at + 1, missing == 0
	}
	for i := 0; ; i++ {
		var f *field
		if i < len(n.order) && n.order[i].stands(text[at:]) { // objects mostly have the same order
			f = n.order[i]
			at += len(f.name)
		} else if f, at = n.field(text, at, i); f == nil {
			return at, false
		}
		if at, fits = f.node.fits(text, at); !fits || at >= len(text) {
			return at, false
		}
		if f.required && f.seen != n.visit {
			f.seen = n.visit
			missing--
		}
		if text[at] == '}' {
			return at + 1, missing == 0
		}
		at++ // the comma
	}
}

// field finds what is known of the field whose name stands at some place, the i-th of its object, and where its value
// begins; nil when that is not for this checker to say.
func (n *node) field(text []byte, at, i int) (f *field, value int) {
	after := skip(text, at)
	if after >= len(text) || text[at] != '"' || text[after] != ':' {
		return nil, at
	}
	name := text[at+1 : after-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		return nil, at
	}
	f = n.fields[string(name)]
	switch {
	case f != nil:
	case n.closed:
		return nil, at
	default:
		return n.others, after + 1
	}
	if i <= len(n.order) {
		f.called(text[at : after+1])
		n.order = append(n.order[:i], f)
	}
	return f, after + 1
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
	case 't', 'n':
		return min(at+len("true"), len(text))
	case 'f':
		return min(at+len("false"), len(text))
	default:
		return numberEnd(text, at)
	}
}

func numberEnd(text []byte, at int) int {
	for ; at < len(text); at++ {
		if c := text[at]; c == ',' || c == '}' || c == ']' {
			return at
		}
	}
	return at
}

// textEnd returns where a text ends, and whether anything in it is escaped.
func textEnd(text []byte, at int) (end int, escaped bool) {
	i := at + 1
	for ; i+8 <= len(text); i += 8 { // eight at a time, to the first that is one of them
		eight := binary.LittleEndian.Uint64(text[i:])
		if found := where(eight, '"') | where(eight, '\\'); found != 0 {
			i += bits.TrailingZeros64(found) / 8
			break
		}
	}
	for ; i < len(text); i++ {
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

// where has the highest bit of the first byte that is c set, and none before.
func where(eight uint64, c byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	other := eight ^ ones*uint64(c)
	return (other - ones) &^ other & tops
}
