package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/internal/intake/row"
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
	if c.key, err = row.KeyColumn(names, cfg.Key, c.row); err != nil {
		return nil, err
	}
	c.names, c.prefixes = names, row.Prefixes(names)
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
		if reason := row.RefuseName(name); reason != "" {
			return nil, &row.LineError{Line: c.row, Reason: fmt.Sprintf("column %d of the header: %s", c.index+1, reason)}
		}
		if seen[name] {
			return nil, &row.LineError{Line: c.row, Column: name, Reason: "the header has this name twice; rename one"}
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
