package workqueue

import "strings"

// plain makes a string from outside fit for a text column: valid UTF-8 without NUL.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// sanitized does the same to headers, which end in a jsonb column.
func sanitized(h map[string][]string) map[string][]string {
	clean := make(map[string][]string, len(h))
	for name, values := range h {
		for _, v := range values {
			clean[plain(name)] = append(clean[plain(name)], plain(v))
		}
	}
	return clean
}
