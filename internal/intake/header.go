package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// newCSV reads the header line.
func newCSV(lines *lineReader, cfg Config) (*csvReader, error) {
	c := &csvReader{lines: lines, maxField: cfg.MaxFieldBytes}
	err := c.startRow()
	if errors.Is(err, io.EOF) {
		return nil, noRows(CSV)
	}
	if err != nil {
		return nil, err
	}
	if c.delimiter = byte(cfg.Delimiter); c.delimiter == 0 {
		c.delimiter = sniffDelimiter(c.rest)
	}
	var names []string
	if cfg.NoHeader {
		names, err = c.noHeader(cfg.Columns)
	} else {
		names, err = c.header()
	}
	if err != nil {
		return nil, err
	}
	if c.key, err = keyColumn(names, cfg.Key, c.row); err != nil {
		return nil, err
	}
	c.names, c.prefixes = names, prefixes(names)
	return c, nil
}

// header reads the current row as names.
func (c *csvReader) header() ([]string, error) {
	var names []string
	seen := make(map[string]bool)
	for more := true; more; c.index++ {
		var field []byte
		var err error
		if field, more, err = c.field(); err != nil {
			return nil, err
		}
		name := string(field)
		if reason := refuseName(name); reason != "" {
			return nil, &RowError{Line: c.row, Reason: fmt.Sprintf("column %d of the header: %s", c.index+1, reason)}
		}
		if seen[name] {
			return nil, &RowError{c.row, name, "the header has this name twice; rename one"}
		}
		seen[name] = true
		names = append(names, name)
	}
	return names, nil
}

// noHeader takes the first row, and has names for the columns.
func (c *csvReader) noHeader(given []string) (names []string, err error) {
	c.first = [][]byte{}
	for more := true; more; c.index++ {
		var field []byte
		if field, more, err = c.field(); err != nil {
			return nil, err
		}
		c.first = append(c.first, bytes.Clone(field))
	}
	if given != nil {
		return given, nil
	}
	for i := range c.first {
		names = append(names, fmt.Sprintf("column%d", i+1))
	}
	return names, nil
}

// refuseName says why a name cannot stand in a header; empty when it can.
func refuseName(name string) string {
	switch {
	case name == "":
		return "the name is empty; name every column"
	case strings.IndexByte(name, 0) >= 0:
		return badByte([]byte(name), strings.IndexByte(name, 0))
	case !utf8.ValidString(name):
		return badByte([]byte(name), invalidAt([]byte(name)))
	case strings.IndexByte(name, '\r') >= 0:
		return "a carriage return without a line feed; save the input with LF or CRLF line ends"
	default:
		return ""
	}
}

// invalidAt returns the offset of the first byte that is not UTF-8, or -1.
func invalidAt(text []byte) int {
	for i := 0; i < len(text); {
		r, width := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && width == 1 {
			return i
		}
		i += width
	}
	return -1
}

// keyColumn finds the column of the keys by Config.Key's rule.
func keyColumn(names []string, key string, line int) (int, error) {
	if key != "" {
		if i := slices.Index(names, key); i >= 0 {
			return i, nil
		}
		return 0, &RowError{Line: line, Reason: fmt.Sprintf(
			"no column %s for the key; the columns are %s", quote(key), list(names))}
	}
	for _, usual := range usualKeys() {
		if i := slices.Index(names, usual); i >= 0 {
			return i, nil
		}
	}
	return 0, nil
}

// usualKeys are the names that hold the key when none is given, best first.
func usualKeys() []string { return []string{"key", "id"} }

// prefixes writes what stands before each value of a payload. The names are known to be good.
func prefixes(names []string) [][]byte {
	made := make([][]byte, len(names))
	for i, name := range names {
		open := []byte{','}
		if i == 0 {
			open = []byte{'{'}
		}
		open, _ = appendString(open, []byte(name))
		made[i] = append(open, ':')
	}
	return made
}

// sniffDelimiter chooses by the header line, looking outside its quotes.
func sniffDelimiter(header []byte) byte {
	counts := make(map[byte]int)
	quoted := false
	for _, b := range header {
		if b == '"' {
			quoted = !quoted
		}
		if !quoted {
			counts[b]++
		}
	}
	best := byte(',')
	if counts[best] > 0 {
		return best
	}
	for _, b := range []byte(";\t|") {
		if counts[b] > counts[best] {
			best = b
		}
	}
	return best
}
