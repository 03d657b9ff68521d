package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// newCSV reads the header line.
func newCSV(lines *lineReader, cfg Config) (*csvReader, error) {
	c := &csvReader{lines: lines, maxField: cfg.MaxFieldBytes}
	err := c.separate(byte(cfg.Delimiter))
	if err == nil {
		err = c.startRow()
	}
	if errors.Is(err, io.EOF) {
		return nil, noRows(CSV)
	}
	if err != nil {
		return nil, err
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
	if named := slices.Index(c.unnamed, false); cfg.Key == "" && named >= 0 && c.unnamed[c.key] {
		c.key = named
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
		c.unnamed = append(c.unnamed, name == "")
		if name == "" {
			name = numbered(c.index)
		}
		if reason := row.RefuseName(name); reason != "" {
			return nil, &row.LineError{Line: c.row, Reason: fmt.Sprintf("column %d of the header: %s", c.index+1, reason)}
		}
		if seen[name] {
			return nil, &row.LineError{Line: c.row, Column: name, Reason: "the header has this name twice; rename one"}
		}
		seen[name] = true
		names = append(names, name)
	}
	if at := slices.Index(c.unnamed, true); at >= 0 {
		c.notes = append(c.notes, fmt.Sprintf("column %d of the header has no name; such columns are called as %s here, and "+
			"left out of rows in which they are empty", at+1, numbered(at)))
	}
	return names, nil
}

// numbered is the name of a column that has none.
func numbered(index int) string { return fmt.Sprintf("column%d", index+1) }

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
		names = append(names, numbered(i))
	}
	return names, nil
}
