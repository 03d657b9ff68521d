package pg

import (
	"strings"
)

// Plain makes a string from outside fit for a text column: valid UTF-8 without NUL.
func Plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Sanitized does the same to headers, which end in a jsonb column.
func Sanitized(h map[string][]string) map[string][]string {
	clean := make(map[string][]string, len(h))
	for name, values := range h {
		for _, v := range values {
			clean[Plain(name)] = append(clean[Plain(name)], Plain(v))
		}
	}
	return clean
}
