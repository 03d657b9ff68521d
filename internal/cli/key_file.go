package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of one request for keys. The server takes no more; the bytes leave room for what JSON adds.
const (
	MaxKeysOfRequest  = 100_000
	maxBytesOfRequest = 6 << 20
	maxKeyLine        = 64 << 10
)

// ReadKeys reads a file with a key a line, as parts for one request each. Lines are taken as they are, but for the end
// of the line; empty ones are left out.
func ReadKeys(name string, stdin io.Reader) ([][]string, error) {
	from, _, err := OpenItems("--keys", name, stdin)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	defer func() { _ = from.Close() }()
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxKeyLine)
	var parts [][]string
	var part []string
	bytes, number := 0, 0
	for lines.Scan() {
		number++
		key := strings.TrimSuffix(lines.Text(), "\r")
		if number == 1 {
			key = strings.TrimPrefix(key, "\ufeff")
		}
		if key == "" {
			continue
		}
		if !utf8.ValidString(key) { // as JSON it would be another key
			return nil, &usageError{fmt.Sprintf("--keys %s: line %d is not UTF-8: %q; leave it out", name, number,
				Short(key, 100))}
		}
		if len(part) == MaxKeysOfRequest || bytes+len(key) > maxBytesOfRequest {
			parts, part, bytes = append(parts, part), nil, 0
		}
		part, bytes = append(part, key), bytes+len(key)+len(`"",`)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &usageError{fmt.Sprintf("--keys %s: line %d is longer than a key can be; give one key a line", name,
			number+1)}
	case err != nil:
		return nil, fmt.Errorf("read --keys %s: %w", name, err)
	case len(part) == 0:
		return nil, &usageError{fmt.Sprintf("--keys %s has no key; give one key a line", name)}
	}
	return append(parts, part), nil
}
