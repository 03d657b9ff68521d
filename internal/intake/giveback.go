package intake

import (
	"bufio"
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// What a flat export of a run says of items beside their own fields.
const (
	ExportPrefix = "tranche."           // of the names of such columns
	ExportResult = "result."            // of fields of results
	ExportKey    = ExportPrefix + "key" // the key: by this column an export is recognised that is given back
)

// Export says how a flat export of a run is read that people give back after they changed some of it: its key is in
// ExportKey, columns about the item are left out, what a table has made of values is undone, and what it does not show
// stays as it is.
type Export struct {
	Config // how it is read otherwise
	// Payloads are those that the items have now, by their keys; a key that is not there has none.
	Payloads func(keys []string) (map[string]string, error)
}

// givenBack reports whether an input begins like an export.
func givenBack(plain *bufio.Reader) bool {
	start, _ := plain.Peek(bufferBytes / 4) // it may be shorter, and what is wrong with it is found later
	heading, _, _ := bytes.Cut(start, []byte("\n"))
	return bytes.Contains(heading, []byte(ExportKey))
}

// restoreRows is how many payloads are looked up at once.
const restoreRows = 500

// restored lays rows of an export over the payloads that the items have.
type restored struct {
	of     *Reader
	rows   rows
	csv    bool
	lookup func([]string) (map[string]string, error)

	ahead []row.Item
	n, at int
	end   error
	base  map[string]string
	out   []byte
}

func (r *restored) KeyName() string { return ExportKey }

func (r *restored) Next(item *row.Item) error {
	if r.at == r.n && r.end == nil {
		if err := r.fill(); err != nil {
			return err
		}
	}
	if r.at == r.n {
		return r.end
	}
	read := &r.ahead[r.at]
	r.at++
	item.Key, item.Line = read.Key, read.Line
	var err error
	item.Payload, err = r.lay(item, read.Payload, r.base[read.Key])
	return err
}

// fill reads ahead, and looks up what the items have.
func (r *restored) fill() (err error) {
	if r.ahead == nil {
		r.ahead = make([]row.Item, restoreRows)
	}
	var keys []string
	bytes := 0
	for r.n, r.at = 0, 0; r.n < len(r.ahead) && bytes < DefaultMaxRowBytes; r.n++ {
		read := &r.ahead[r.n]
		if r.end = r.rows.Next(read); r.end != nil {
			break
		}
		keys = append(keys, read.Key)
		bytes += len(read.Payload)
	}
	if len(keys) == 0 {
		return nil
	}
	r.base, err = r.lookup(keys)
	return err
}

// lay makes the payload of a row and of what the item has.
func (r *restored) lay(item *row.Item, line []byte, base string) ([]byte, error) {
	cells := fieldsOf(line)
	if r.csv {
		for i := range cells {
			cells[i].name = armedName(cells[i].name)
		}
	}
	r.out = append(r.out[:0], '{')
	add := func(name, value []byte) {
		if len(r.out) > 1 {
			r.out = append(r.out, ',')
		}
		r.out = append(append(append(r.out, name...), ':'), value...)
	}
	for _, have := range fieldsOf([]byte(base)) {
		value := have.value
		at := slices.IndexFunc(cells, func(c field) bool { return bytes.Equal(c.name, have.name) })
		if at >= 0 && plainName(have.name) != ExportKey {
			var err error
			if value, err = r.cell(cells[at].value, have.value); err != nil {
				return nil, r.of.wrong(item, plainName(have.name), err.Error())
			}
			cells = slices.Delete(cells, at, at+1)
		}
		add(have.name, value)
	}
	for _, cell := range cells {
		name := plainName(cell.name)
		if strings.HasPrefix(name, ExportPrefix) || strings.HasPrefix(name, ExportResult) || r.empty(cell.value) {
			continue
		}
		value, err := r.cell(cell.value, nil)
		if err != nil {
			return nil, r.of.wrong(item, name, err.Error())
		}
		add(cell.name, value)
	}
	r.out = append(r.out, '}')
	return append(item.Payload[:0], r.out...), nil
}

// field is one of an object, as it is written.
type field struct{ name, value []byte }

// fieldsOf are the fields of an object without spaces.
func fieldsOf(object []byte) (all []field) {
	for at := 1; at < len(object) && object[0] == '{' && object[at] == '"'; {
		after := itemschema.ValueEnd(object, at)
		end := itemschema.ValueEnd(object, after+1)
		all = append(all, field{object[at:after], object[after+1 : end]})
		at = end + 1
	}
	return all
}

func plainName(quoted []byte) string {
	name, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return string(quoted)
	}
	return string(name)
}

// armedName is the name of a column as it was before it was defused.
func armedName(quoted []byte) []byte {
	name := plainName(quoted)
	armed := Armed(name)
	if armed == name {
		return quoted
	}
	quoted, _ = jsonvalue.AppendString(nil, []byte(armed))
	return quoted
}

// empty reports whether a cell says nothing of a field that the item does not have.
func (r *restored) empty(cell []byte) bool { return string(cell) == `""` || string(cell) == "null" }

// cell is what a cell says: what the item has, when that is what the cell shows, or else a value of the same kind.
func (r *restored) cell(cell, have []byte) ([]byte, error) {
	if bytes.Equal(cell, have) || have != nil && textOf(have) == "" && r.empty(cell) {
		return have, nil
	}
	if len(cell) == 0 || cell[0] != '"' {
		if sameNumber(cell, have) {
			return have, nil
		}
		return cell, nil
	}
	text := textOf(cell)
	armed := text
	if r.csv {
		armed = Armed(text)
	}
	if shown := textOf(have); have != nil && slices.Contains([]string{shown, Defuse(shown), XLSXTooLong(shown)}, text) {
		return have, nil
	}
	if armed != text {
		cell, _ = jsonvalue.AppendString(nil, []byte(armed)) // a piece of what is good
	}
	value, err := convert(nil, cell, kindOf(have), DefaultMaxDepth-1)
	if err == nil && (sameNumber(value, have) || bytes.Equal(value, have)) {
		return have, nil
	}
	return value, err
}

// kindOf is what a text becomes that takes the place of a value; empty: it stays a text.
func kindOf(have []byte) string {
	switch {
	case len(have) == 0, have[0] == '"', have[0] == 'n':
		return ""
	case have[0] == '{', have[0] == '[':
		return TypeJSON
	case have[0] == 't', have[0] == 'f':
		return TypeBool
	default:
		return TypeNumber
	}
}

// sameNumber reports whether two numbers are one, written differently. Longer ones a spreadsheet does not keep.
func sameNumber(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 || len(a) > XLSXDigits || len(b) > XLSXDigits {
		return false
	}
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && x == y
}

// textOf is how an export shows a value: a string as its text, nothing for null, anything else as it is written.
func textOf(value []byte) string {
	switch {
	case len(value) == 0 || string(value) == "null":
		return ""
	case value[0] == '"':
		return plainName(value)
	}
	return string(value)
}

// restore lays the rows of r over what the items have.
func (r *Reader) restore(from *Export) {
	r.rows = &restored{of: r, rows: r.rows, csv: r.format == CSV && r.unit == "", lookup: from.Payloads}
}

// asExport is how the input is read if it is an export.
func (c Config) asExport() Config {
	back := c.Export.Config.withDefaults()
	back.Key, back.Export = ExportKey, c.Export
	return back
}
