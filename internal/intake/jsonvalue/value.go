package jsonvalue

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// EscapedNUL is the one escape that PostgreSQL's jsonb refuses, and that makes a text it cannot store.
const EscapedNUL = `\u0000`

// HasEscapedNUL finds \u0000 in valid JSON, but not \\u0000, which is a backslash and five characters.
func HasEscapedNUL(value []byte) bool {
	for from := 0; ; {
		at := bytes.Index(value[from:], []byte(EscapedNUL))
		if at < 0 {
			return false
		}
		at += from
		slashes := 0
		for slashes < at && value[at-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return true
		}
		from = at + 1
	}
}

// AppendCompact appends valid JSON without the white space between its tokens.
func AppendCompact(dst, value []byte) []byte {
	start, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			dst = append(dst, value[start:i]...)
			start = i + 1
		}
	}
	return append(dst, value[start:]...)
}

// Deeper reports whether valid JSON is nested deeper than depth. Most has too few brackets to need a closer look.
func Deeper(value []byte, depth int) bool {
	if len(value) <= 2*depth || bytes.Count(value, []byte("["))+bytes.Count(value, []byte("{")) <= depth {
		return false
	}
	level, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			if level++; level > depth {
				return true
			}
		case c == ']', c == '}':
			level--
		}
	}
	return false
}

// KindName names a JSON value in a message.
func KindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '[':
		return "an array"
	case '{':
		return "an object"
	default:
		return "not JSON"
	}
}

// AppendText appends text in UTF-8 as a string; nil when PostgreSQL cannot store it.
func AppendText(dst, value []byte, _ int) []byte {
	out, bad := AppendString(dst, value)
	if bad >= 0 {
		return nil
	}
	return out
}

// AppendJSON appends JSON, in one line; nil when it is none, has a name twice in one object, or cannot stand in a
// payload at this depth.
func AppendJSON(dst, value []byte, depth int) []byte {
	v := jsontext.Value(bytes.Clone(value))
	if !v.IsValid() || v.Compact() != nil || HasEscapedNUL(v) || Deeper(v, depth-1) {
		return nil
	}
	return append(dst, v...)
}
