package itemschema

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

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
