package intake

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// delimiters are those that are looked for, and what they are called in settings.
func delimiters() map[byte]string {
	return map[byte]string{',': "comma", ';': "semicolon", '\t': "tab", '|': "bar"}
}

const (
	sampleBytes = bufferBytes / 4 // of the input, by which the delimiter is judged
	sampleRows  = 50
)

// separate finds out what stands between fields, unless it is given, and skips a first line that says so.
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

// sepLine reads a first line like sep=; which spreadsheets write and take; said is 0 when there is none.
func sepLine(sample []byte) (said byte, rest []byte) {
	line, rest, _ := bytes.Cut(sample, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) != len("sep=;") || !bytes.EqualFold(line[:4], []byte("sep=")) {
		return 0, sample
	}
	return line[4], rest
}

// candidate is how the sample looks with a delimiter.
type candidate struct {
	delimiter byte
	rows      int // that have as many fields as the header
	fields    int // of the header
}

// judge takes the delimiter with which most rows have as many fields as the first, and of such that by which these are
// most. When it cannot tell, it asks.
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

// try counts fields. The last row of a sample that is not the whole input may be cut, and does not count.
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

// countFields counts those of the first row; 0: it is none with this delimiter. ended: a line break ends it.
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
