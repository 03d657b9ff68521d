package wire

import (
	"strings"
	"unicode/utf8"
)

// Bounds of what a service may say about itself and its errors.
const (
	MaxCodeLength    = 64
	MaxMessageLength = 2 << 10 // bytes; longer messages are cut
	MaxServiceName   = 256
	maxContentType   = 255
	// MaxHeaderMessage cuts the copy of a failure's message that stands in a header.
	MaxHeaderMessage = 256
)

// DefaultBinaryType is the content type of a binary result that names none.
const DefaultBinaryType = "application/octet-stream"

func validCode(code string) bool {
	if code == "" || len(code) > MaxCodeLength {
		return false
	}
	for i := range len(code) {
		if c := code[i]; !isWord(c) && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// cleanCode makes a valid code of any string.
func cleanCode(code string) string {
	if validCode(code) {
		return code
	}
	code = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (isWord(byte(r)) || r == '.' || r == '-') {
			return r
		}
		return '_'
	}, code)
	if code == "" {
		return CodeHandlerError
	}
	return code[:min(len(code), MaxCodeLength)]
}

// cleanMessage makes a message valid UTF-8 without NUL, which PostgreSQL's text cannot hold, and cuts it to
// MaxMessageLength bytes.
func cleanMessage(message string) string {
	message = Cut(message, MaxMessageLength)
	if strings.IndexByte(message, 0) >= 0 {
		message = strings.ReplaceAll(message, "\x00", "\uFFFD")
		message = Cut(message, MaxMessageLength)
	}
	return message
}

// Cut returns at most n bytes of s as valid UTF-8, ending at the end of a character.
func Cut(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "?")
}

// ValidContentType reports whether a text is a content type.
func ValidContentType(t string) bool {
	if t == "" || len(t) > maxContentType || !strings.Contains(t, "/") {
		return false
	}
	for i := range len(t) {
		if t[i] <= 0x1f || t[i] >= 0x7f {
			return false
		}
	}
	return true
}

// OneLine makes a string fit for a header.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
