package jsonvalue

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends text as a JSON string. If text is not valid UTF-8, or holds a NUL, it returns the offset of the
// first bad byte and dst is of no use; else the offset is -1.
func AppendString(dst, text []byte) ([]byte, int) {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, width := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && width == 1 {
				return dst, i
			}
			i += width
			continue
		}
		if c == 0 {
			return dst, i
		}
		dst = appendEscape(append(dst, text[start:i]...), c)
		i++
		start = i
	}
	return append(append(dst, text[start:]...), '"'), -1
}

// appendEscape appends the escape of a character that may not stand in a JSON string.
func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}

// BadByte explains why the byte at an offset cannot be taken.
func BadByte(text []byte, offset int) string {
	if text[offset] == 0 {
		return fmt.Sprintf("byte %d is NUL, which PostgreSQL cannot store in a text; remove it", offset+1)
	}
	guess := guessEncoding(text[offset])
	return fmt.Sprintf("byte %d (0x%02x) is not valid UTF-8; it may be %s: if it is, say so by encoding=%s (--encoding "+
		"%s), else save the input as UTF-8", offset+1, text[offset], guess, guess, guess)
}

// InvalidAt returns the offset of the first byte that is not UTF-8, or -1.
func InvalidAt(text []byte) int {
	for i := 0; i < len(text); {
		r, width := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && width == 1 {
			return i
		}
		i += width
	}
	return -1
}

// guessEncoding says in which encoding a byte that is not UTF-8 may have a meaning.
func guessEncoding(b byte) string {
	if strings.IndexByte("\x81\x8d\x8f\x90\x9d", b) >= 0 {
		return "latin-1"
	}
	return "windows-1252"
}
