package intake

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tranchehq/tranche/internal/intake/row"
)

type csvReader struct {
	lines     *lineReader
	delimiter byte
	maxField  int
	names     []string
	prefixes  [][]byte // the text before each value: {"id": and then ,"name":
	named     string   // what gave the names, for errors
	unnamed   []bool   // columns without a header name, dropped where empty
	notes     []string // see Reader.Notes
	key       int
	first     [][]byte // the first row of an input without a header, until taken

	row   int    // the line it starts on
	bytes int    // read of it so far
	index int    // of the field being read
	rest  []byte // remaining bytes of the line being read
	cut   bool   // the line continues, but is too long to be read
	text  []byte // a quoted field that spans lines or has doubled quotes
}

func (c *csvReader) KeyName() string { return c.names[c.key] }

func (c *csvReader) Next(item *row.Item) error {
	first := len(c.first) > 0
	if !first {
		if err := c.startRow(); err != nil {
			return err
		}
	}
	item.Line = c.row
	payload := item.Payload[:0]
	for more := true; more; c.index++ {
		opened := c.lines.number
		if first {
			opened = c.row
		}
		var field []byte
		var err error
		if field, more, err = c.field(); err != nil {
			return err
		}
		if c.index >= len(c.names) {
			continue // counted, then refused below
		}
		if payload, err = c.add(payload, field, opened); err != nil {
			return err
		}
		if c.index == c.key {
			item.Key = string(field)
		}
	}
	if c.index != len(c.names) {
		return c.wrongCount()
	}
	item.Payload = closed(payload)
	return nil
}

func (c *csvReader) add(payload, field []byte, line int) ([]byte, error) {
	if len(field) == 0 && c.unnamed != nil && c.unnamed[c.index] {
		return payload, nil
	}
	prefix := c.prefixes[c.index]
	if len(payload) == 0 {
		payload, prefix = append(payload, '{'), prefix[1:]
	}
	payload, bad := row.AppendString(append(payload, prefix...), field)
	if bad >= 0 {
		return nil, c.errorAt(line+bytes.Count(field[:bad], []byte("\n")), "%s", row.BadByte(field, bad))
	}
	return payload, nil
}

func closed(payload []byte) []byte {
	if len(payload) == 0 {
		payload = append(payload, '{')
	}
	return append(payload, '}')
}

func (c *csvReader) startRow() error {
	c.bytes, c.index = 0, 0
	for {
		if err := c.nextLine(); err != nil {
			return err
		}
		if len(c.rest) > 0 {
			c.row = c.lines.number
			return nil
		}
	}
}

func (c *csvReader) nextLine() error {
	line, err := c.lines.next()
	c.cut = errors.Is(err, errLineTooLong)
	if err != nil && !c.cut {
		return err
	}
	c.rest = line
	if c.bytes += len(line); c.bytes > c.lines.limit {
		return c.rowTooLarge()
	}
	return nil
}

// field cuts the next field off the row and reports whether another follows. The bytes are valid until the next
// call.
func (c *csvReader) field() (field []byte, more bool, err error) {
	if len(c.first) > 0 {
		field, c.first = c.first[0], c.first[1:]
		return field, len(c.first) > 0, nil
	}
	if len(c.rest) > 0 && c.rest[0] == '"' {
		return c.quoted()
	}
	end := bytes.IndexByte(c.rest, c.delimiter)
	if end < 0 {
		field, c.rest = c.rest, nil
	} else {
		field, c.rest = c.rest[:end], c.rest[end+1:]
	}
	switch {
	case bytes.IndexByte(field, '"') >= 0:
		return nil, false, c.errorAt(c.lines.number,
			`a quote inside a field that does not start with one; quote the whole field and double the quotes in it`)
	case bytes.IndexByte(field, '\r') >= 0:
		return nil, false, c.errorAt(c.lines.number, row.LoneCR)
	case len(field) > c.maxField:
		return nil, false, c.errorAt(c.lines.number, "larger than %s; shorten it, or raise the limit", row.Size(c.maxField))
	case end < 0 && c.cut:
		return nil, false, c.rowTooLarge()
	}
	return field, end >= 0, nil
}

func (c *csvReader) quoted() (field []byte, more bool, err error) {
	opened := c.lines.number
	c.text = c.text[:0]
	c.rest = c.rest[1:]
	for {
		end := bytes.IndexByte(c.rest, '"')
		if end < 0 {
			if err := c.quotedLine(opened); err != nil {
				return nil, false, err
			}
			continue
		}
		piece := c.rest[:end]
		c.rest = c.rest[end+1:]
		switch {
		case len(c.text)+len(piece) > c.maxField:
			return nil, false, c.quotedTooLarge(opened)
		case len(c.rest) == 0 && c.cut:
			return nil, false, c.rowTooLarge()
		case len(c.rest) == 0:
			return c.whole(piece), false, nil
		case c.rest[0] == c.delimiter:
			c.rest = c.rest[1:]
			return c.whole(piece), true, nil
		case c.rest[0] == '"':
			c.text = append(append(c.text, piece...), '"')
			c.rest = c.rest[1:]
		default:
			return nil, false, c.errorAt(c.lines.number, `text after the closing quote; double the quotes inside a field`)
		}
	}
}

// quotedLine adds the rest of the line, with its line end, to the field and reads the next line.
func (c *csvReader) quotedLine(opened int) error {
	c.text = append(append(c.text, c.rest...), c.lines.ended...)
	switch {
	case len(c.text) > c.maxField:
		return c.quotedTooLarge(opened)
	case c.cut:
		return c.rowTooLarge()
	}
	err := c.nextLine()
	if errors.Is(err, io.EOF) {
		return c.errorAt(opened, "the quote that opens here is never closed; close it, or double it if it is meant as text")
	}
	return err
}

func (c *csvReader) whole(piece []byte) []byte {
	if len(c.text) == 0 {
		return piece
	}
	c.text = append(c.text, piece...)
	return c.text
}

func (c *csvReader) quotedTooLarge(opened int) error {
	return c.errorAt(opened, "the quoted field that starts here is larger than %s; close its quote if that is missing, "+
		"shorten it, or raise the limit", row.Size(c.maxField))
}

func (c *csvReader) rowTooLarge() error {
	return &row.LineError{Line: c.row, Reason: fmt.Sprintf(
		"the row is larger than %s; shorten it, or raise the limit", row.Size(c.lines.limit))}
}

func (c *csvReader) wrongCount() error {
	fix := "add the missing field, or quote the line break that cuts the row"
	if c.index > len(c.names) {
		fix = fmt.Sprintf("quote the field that holds the delimiter %q", c.delimiter)
	}
	plural := "s"
	if c.index == 1 {
		plural = ""
	}
	return &row.LineError{Line: c.row, Reason: fmt.Sprintf(
		"%d field%s, %s %d; %s", c.index, plural, c.named, len(c.names), fix)}
}

func (c *csvReader) errorAt(line int, format string, args ...any) error {
	e := &row.LineError{Line: line, Reason: fmt.Sprintf(format, args...)}
	if c.index < len(c.names) {
		e.Column = c.names[c.index]
	}
	return e
}

func delimiters() map[byte]string {
	return map[byte]string{',': "comma", ';': "semicolon", '\t': "tab", '|': "bar"}
}

const (
	sampleBytes = bufferBytes / 4 // of the input, for delimiter detection
	sampleRows  = 50
)

// separate detects the delimiter, unless given, and skips a first line like sep=;.
func (c *csvReader) separate(given byte) error {
	sample, whole := c.lines.peek(sampleBytes)
	said, rest := sepLine(sample)
	if said != 0 {
		if _, err := c.lines.next(); err != nil {
			return err
		}
	}
	switch {
	case given != 0:
		c.delimiter = given
		return nil
	case delimiters()[said] != "":
		c.delimiter = said
		c.notes = append(c.notes, fmt.Sprintf("the fields are separated by %q, as the first line says", said))
		return nil
	case said != 0:
		return &row.LineError{Line: 1, Reason: fmt.Sprintf("it says that fields are separated by %q, which is not read; use "+
			"a comma, semicolon, tab or bar", said)}
	}
	return c.judge(rest, whole)
}

// sepLine parses a first line like sep=; which spreadsheets write and read. said is 0 without one.
func sepLine(sample []byte) (said byte, rest []byte) {
	line, rest, _ := bytes.Cut(sample, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) != len("sep=;") || !bytes.EqualFold(line[:4], []byte("sep=")) {
		return 0, sample
	}
	return line[4], rest
}

type candidate struct {
	delimiter byte
	rows      int // with as many fields as the header
	fields    int // of the header
}

// judge picks the delimiter with which most rows have as many fields as the first; ties go to the most fields. If
// it cannot decide, the error asks the user.
func (c *csvReader) judge(sample []byte, whole bool) error {
	var found []candidate
	for delimiter := range delimiters() {
		if tried := try(delimiter, sample, whole); tried.fields > 1 {
			found = append(found, tried)
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.rows, a.rows), cmp.Compare(b.fields, a.fields), cmp.Compare(a.delimiter, b.delimiter))
	})
	if len(found) == 0 {
		c.delimiter = ','
		return nil
	}
	best := found[0]
	c.delimiter = best.delimiter
	const say = "if that is wrong, say so: delimiter=%s (--delimiter %s)"
	if len(found) > 1 && found[1].rows == best.rows {
		other, called := found[1], delimiters()
		if other.fields == best.fields {
			return &row.InputError{Reason: fmt.Sprintf("the fields may be separated by %q or by %q: both make %d columns; say "+
				"which: --delimiter %s or --delimiter %s", best.delimiter, other.delimiter, best.fields,
				called[best.delimiter], called[other.delimiter])}
		}
		c.notes = append(c.notes, fmt.Sprintf("the fields were read as separated by %q, which makes %d columns; %q would "+
			"make %d: "+say, best.delimiter, best.fields, other.delimiter, other.fields, called[other.delimiter],
			called[other.delimiter]))
	} else if best.delimiter != ',' {
		c.notes = append(c.notes, fmt.Sprintf("the fields were read as separated by %q; "+say, best.delimiter, "comma",
			"comma"))
	}
	return nil
}

// try counts fields. The last row of a partial sample may be cut, so it does not count.
func try(delimiter byte, sample []byte, whole bool) candidate {
	tried := candidate{delimiter: delimiter}
	for range sampleRows {
		sample = bytes.TrimLeft(sample, "\r\n")
		fields, rest, ended := countFields(delimiter, sample)
		if len(sample) == 0 || !ended && !whole && tried.fields > 0 {
			return tried
		}
		if tried.fields == 0 {
			if tried.fields = fields; fields == 0 {
				return tried
			}
		}
		if fields == tried.fields {
			tried.rows++
		}
		sample = rest
	}
	return tried
}

// countFields counts the fields of the first row; 0 means it is invalid with this delimiter. ended: a line break
// ends it.
func countFields(delimiter byte, sample []byte) (fields int, rest []byte, ended bool) {
	begins, quoted := true, false
	fields = 1
	for i, b := range sample {
		switch {
		case b == '"':
			if !begins && !quoted && sample[i-1] != '"' {
				fields = 0 // a quote inside a field
				_, rest, ended = bytes.Cut(sample[i:], []byte("\n"))
				return fields, rest, ended
			}
			quoted = !quoted
		case quoted:
		case b == delimiter:
			fields++
		case b == '\n':
			return fields, sample[i+1:], true
		}
		begins = !quoted && b == delimiter
	}
	return fields, nil, false
}

func newCSV(lines *lineReader, cfg Config) (*csvReader, error) {
	c := &csvReader{lines: lines, maxField: cfg.MaxFieldBytes, named: "the header has"}
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
	if c.key, err = row.KeyColumn(names, cfg.Key, cfg.Rename, c.row); err != nil {
		return nil, err
	}
	if named := slices.Index(c.unnamed, false); cfg.Key == "" && named >= 0 && c.unnamed[c.key] {
		c.key = named
	}
	c.names, c.prefixes = names, row.Prefixes(names)
	return c, nil
}

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
		name = cmp.Or(name, numbered(c.index))
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

func numbered(index int) string { return fmt.Sprintf("column%d", index+1) }

func (c *csvReader) noHeader(given []string) (names []string, err error) {
	c.named = "the first row has"
	var first [][]byte
	for more := true; more; c.index++ {
		var field []byte
		if field, more, err = c.field(); err != nil {
			return nil, err
		}
		first = append(first, bytes.Clone(field))
	}
	c.first, c.index = first, 0
	if given != nil {
		c.named = "--columns has"
		return given, nil
	}
	for i := range c.first {
		names = append(names, numbered(i))
	}
	return names, nil
}
