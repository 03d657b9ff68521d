package endpoints

import (
	"bytes"
	"math"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner walks a body of JSON once, checking every byte, and hands out the raw values. It knows only what envelopes
// need; a value is skipped, not decoded. It accepts a subset of what jsontext does; the fuzz tests hold it to that.
//
// It is about as fast as jsontext.Decoder. It is here because its values alias the body and so need no copy to outlive
// the next one, and because its depth limit can be set: the decoder's is 10,000.
//
// The first error sticks: after it every method returns zero values at once.
type scanner struct {
	body     []byte
	pos      int
	maxDepth int
	err      *MalformedError
}

// newScanner returns a scanner over body. Valid UTF-8 is checked here once, so that strings need no second look.
func newScanner(body []byte, maxDepth int) scanner {
	s := scanner{body: body, maxDepth: maxDepth}
	if !utf8.Valid(body) {
		s.fail(ReasonJSON, "the body is not valid UTF-8")
	}
	return s
}

func (s *scanner) fail(reason, format string, args ...any) {
	if s.err == nil {
		s.err = malformed(reason, format, args...)
	}
	s.pos = len(s.body)
}

// unexpected fails at the current place.
func (s *scanner) unexpected(wanted string) {
	if s.pos >= len(s.body) {
		s.fail(ReasonJSON, "the body ends where %s should stand", wanted)
		return
	}
	s.fail(ReasonJSON, "byte %d is %q where %s should stand", s.pos, s.body[s.pos], wanted)
}

// space skips white space and returns the next byte, or 0 at the end.
func (s *scanner) space() byte {
	for s.pos < len(s.body) {
		switch c := s.body[s.pos]; c {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// expect skips the byte c.
func (s *scanner) expect(c byte) {
	if s.space() != c || s.pos >= len(s.body) {
		s.unexpected(string(c))
		return
	}
	s.pos++
}

// more stands between the members of an array or object that ends with the byte end: it reports whether another member
// follows, and skips the comma or the end.
func (s *scanner) more(first bool, end byte) bool {
	c := s.space()
	switch {
	case s.err != nil:
		return false
	case c == end:
		s.pos++
		return false
	case first:
		return true
	case c == ',':
		s.pos++
		if s.space() == end {
			s.unexpected("a value")
			return false
		}
		return true
	default:
		s.unexpected("a comma or " + string(end))
		return false
	}
}

// name reads a member's name and the colon, without the quotes. Names of ours have no escapes.
func (s *scanner) name() []byte {
	raw := s.str()
	s.expect(':')
	if s.err != nil {
		return nil
	}
	return raw[1 : len(raw)-1]
}

// str reads a string and returns it with its quotes, still escaped.
func (s *scanner) str() []byte {
	if s.space() != '"' {
		s.unexpected("a string")
		return nil
	}
	start := s.pos
	s.skipString()
	if s.err != nil {
		return nil
	}
	return s.body[start:s.pos]
}

// end fails unless only white space is left.
func (s *scanner) end() {
	s.space()
	if s.err == nil && s.pos < len(s.body) {
		s.unexpected("the end")
	}
}

// ordinal reads a number from 0 to 2³¹-1.
func (s *scanner) ordinal() int {
	start := s.pos
	if s.space() != 0 {
		start = s.pos
	}
	n := 0
	for ; s.pos < len(s.body); s.pos++ {
		c := s.body[s.pos]
		if c < '0' || c > '9' {
			break
		}
		if n = n*10 + int(c-'0'); n > math.MaxInt32 {
			s.fail(ReasonSlot, "the ordinal at byte %d is over %d", start, math.MaxInt32)
			return 0
		}
	}
	if digits := s.pos - start; digits == 0 || digits > 1 && s.body[start] == '0' {
		s.fail(ReasonSlot, "the ordinal at byte %d is not a number from 0", start)
		return 0
	}
	if s.pos < len(s.body) {
		if c := s.body[s.pos]; c == '.' || c == 'e' || c == 'E' {
			s.fail(ReasonSlot, "the ordinal at byte %d is not a whole number", start)
			return 0
		}
	}
	return n
}

// boolean reads true or false.
func (s *scanner) boolean() bool {
	if s.space() == 't' {
		s.literal("true")
		return s.err == nil
	}
	s.literal("false")
	return false
}

// value reads any value and returns its bytes, which alias the body.
func (s *scanner) value() []byte {
	s.space()
	start := s.pos
	s.skipValue(0)
	if s.err != nil {
		return nil
	}
	return s.body[start:s.pos:s.pos]
}

func (s *scanner) skipValue(depth int) {
	switch c := s.space(); c {
	case '"':
		s.skipString()
	case '{', '[':
		if depth++; depth > s.maxDepth {
			s.fail(ReasonDepth, "byte %d is nested deeper than %d", s.pos, s.maxDepth)
			return
		}
		s.pos++
		if c == '{' {
			s.skipObject(depth)
		} else {
			s.skipArray(depth)
		}
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		s.skipNumber()
	}
}

func (s *scanner) skipObject(depth int) {
	for first := true; s.more(first, '}'); first = false {
		if s.space() != '"' {
			s.unexpected("a name")
			return
		}
		s.skipString()
		s.expect(':')
		s.skipValue(depth)
	}
}

func (s *scanner) skipArray(depth int) {
	for first := true; s.more(first, ']'); first = false {
		s.skipValue(depth)
	}
}

func (s *scanner) literal(word string) {
	if rest := s.body[s.pos:]; len(rest) < len(word) || string(rest[:len(word)]) != word {
		s.unexpected("a value")
		return
	}
	s.pos += len(word)
}

func (s *scanner) skipString() {
	body := s.body
	for i := s.pos + 1; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			s.pos = i + 1
			return
		case c < 0x20:
			s.pos = i
			s.unexpected("an escape")
			return
		case c == '\\':
			n := escapeLength(body[i:])
			if n == 0 {
				s.fail(ReasonJSON, "the escape at byte %d is not valid", i)
				return
			}
			i += n - 1
		}
	}
	s.fail(ReasonJSON, "the string at byte %d does not end", s.pos)
}

// escapeLength returns the length of the escape that b starts with, a pair of surrogates counting as one, or 0 when it
// is not valid.
func escapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		return 0
	}
	unit, ok := hex4(b[2:])
	switch {
	case !ok || isLow(unit):
		return 0
	case unit < 0xD800 || unit >= 0xE000:
		return 6
	case len(b) < 12 || b[6] != '\\' || b[7] != 'u':
		return 0
	}
	if low, ok := hex4(b[8:]); !ok || !isLow(low) {
		return 0
	}
	return 12
}

// isLow reports whether a UTF-16 unit is the second of a surrogate pair.
func isLow(unit uint) bool { return unit >= 0xDC00 && unit < 0xE000 }

func hex4(b []byte) (n uint, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | uint(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

func (s *scanner) skipNumber() {
	start := s.pos
	if s.pos < len(s.body) && s.body[s.pos] == '-' {
		s.pos++
	}
	whole := s.pos
	if n := s.digits(); n == 0 || n > 1 && s.body[whole] == '0' {
		s.pos = start
		s.unexpected("a value")
		return
	}
	if s.pos < len(s.body) && s.body[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			s.unexpected("a digit")
			return
		}
	}
	if s.pos < len(s.body) && s.body[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.body) && (s.body[s.pos] == '+' || s.body[s.pos] == '-') {
			s.pos++
		}
		if s.digits() == 0 {
			s.unexpected("a digit")
		}
	}
}

// digits skips decimal digits and returns how many there were.
func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.body) && s.body[s.pos] >= '0' && s.body[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

// text decodes a string that str returned.
func (s *scanner) text(raw []byte) string { return string(s.appendText(nil, raw)) }

// appendText decodes a string that str returned and appends it to dst.
func (s *scanner) appendText(dst, raw []byte) []byte {
	if s.err != nil {
		return dst
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return append(dst, inner...)
	}
	dst, err := jsontext.AppendUnquote(dst, raw)
	if err != nil {
		s.fail(ReasonJSON, "a string is not valid: %v", err)
	}
	return dst
}
