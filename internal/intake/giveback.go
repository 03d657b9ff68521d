package intake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// Names that a flat export of a run uses in addition to the items' own fields.
const (
	ExportPrefix = "tranche."           // prefix of columns about the item
	ExportResult = "result."            // prefix of fields of results
	ExportKey    = ExportPrefix + "key" // the key; its presence marks an export
)

// ExportColumn returns the column of a payload's field: its name, or if that is ExportKey and underscores, one more.
func ExportColumn(field string) string {
	if strings.TrimRight(field, "_") == ExportKey {
		return field + "_"
	}
	return field
}

// Export says how to read an edited flat export of a run. Its key is in ExportKey. Columns about the item are
// ignored, the changes that a table makes to values are undone, and fields not shown stay unchanged.
type Export struct {
	Config // for everything else
	// Payloads returns the current payloads by key, without keys that do not exist.
	Payloads func(keys []string) (map[string]string, error)
}

// openExport opens an input that may be an export, which only its column names tell. open starts from the beginning
// each time; last marks the final call. Rows of an export have ExportKey as their key.
func openExport(open func(cfg Config, last bool) (*Reader, error), cfg Config) (*Reader, error) {
	back := cfg.asExport()
	_, wrong := firstRow(open, back)
	if wrong != nil && back.Encoding != cfg.Encoding {
		back.Encoding = cfg.Encoding // saved in the encoding of the run's input
		if _, err := firstRow(open, back); err == nil {
			wrong = nil
		}
	}
	if wrong == nil {
		return open(back, true)
	}
	first, err := firstRow(open, cfg.raw())
	if err != nil {
		return open(cfg.raw(), true)
	}
	names := FieldNames(first.Payload)
	if slices.Contains(names, ExportKey) {
		return nil, wrong // an export that cannot be read as one
	}
	if isUnflat(names) {
		own, err := cfg.Export.Payloads([]string{first.Key})
		if err != nil {
			return nil, err
		}
		if !isUnflat(FieldNames([]byte(own[first.Key]))) {
			return nil, errUnflat
		}
	}
	return open(cfg.raw(), true)
}

var errUnflat = &row.InputError{Reason: "the input is an export without --flat, which would take the place of the " +
	"data of its items; give back one of: tranche run export --flat --include payload"}

func isUnflat(names []string) bool {
	has := func(all ...string) bool {
		return !slices.ContainsFunc(all, func(name string) bool { return !slices.Contains(names, name) })
	}
	return has("key", "state", "error_code", "error_message", "accepted") || has("ordinal", "key", "state", "step")
}

func firstRow(open func(cfg Config, last bool) (*Reader, error), cfg Config) (first row.Item, err error) {
	r, err := open(cfg, false)
	if err != nil {
		return first, err
	}
	if err = r.rows.Next(&first); errors.Is(err, io.EOF) {
		err = nil // a heading without rows
	}
	return first, err
}

func keepXLSX(plain io.Reader, cfg Config) (*Reader, error) {
	spool := *cfg.Spool
	spool.Max = xlsxMaxBytes
	kept, err := spool.Keep(plain)
	if err != nil {
		return nil, err
	}
	rows, err := openXLSX(kept, kept.Size, spool.Dir)
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	return &Reader{rows: rows, format: XLSX, unit: "row", close: func() error {
		return errors.Join(rows.Close(), kept.Close())
	}}, nil
}

func aboutItem(name string) bool {
	return name != ExportKey && strings.HasPrefix(name, ExportPrefix) || strings.HasPrefix(name, ExportResult)
}

// openTextExport opens text that may be an export. The bytes read for detection are kept and read again.
func openTextExport(plain *bufio.Reader, cfg Config) (*Reader, error) {
	var seen bytes.Buffer
	return openExport(func(cfg Config, last bool) (*Reader, error) {
		var more io.Reader = plain
		if !last {
			more = io.TeeReader(plain, &seen)
		}
		again := io.MultiReader(bytes.NewReader(bytes.Clone(seen.Bytes())), more)
		return openText(bufio.NewReaderSize(again, bufferBytes), cfg)
	}, cfg)
}

const restoreRows = 500

type restored struct {
	of     *Reader
	rows   rows
	format Format
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
		keys = append(keys, r.keysShownAs(read.Key)...)
		bytes += len(read.Payload)
	}
	if len(keys) == 0 {
		return nil
	}
	if r.base, err = r.lookup(keys); err != nil {
		return err
	}
	for i := range r.ahead[:r.n] {
		if err := r.meant(&r.ahead[i]); err != nil {
			return err
		}
	}
	return nil
}

// keysShownAs lists the keys that a table shows as key: CSV defuses formulas unless it is raw, and spreadsheets write
// each line break of a text as \n.
func (r *restored) keysShownAs(key string) []string {
	keys := []string{key}
	if r.isSheet() && !strings.Contains(key, "\r") && strings.Contains(key, "\n") {
		keys = append(keys, strings.ReplaceAll(key, "\n", "\r\n"), strings.ReplaceAll(key, "\n", "\r"))
	}
	for _, shown := range slices.Clip(keys) {
		if armed := Armed(shown); r.format == CSV && armed != shown {
			keys = append(keys, armed)
		}
	}
	return keys
}

func (r *restored) meant(read *row.Item) error {
	var found []string
	shown := r.keysShownAs(read.Key)
	for _, key := range shown {
		if _, ok := r.base[key]; ok {
			found = append(found, key)
		}
	}
	lost := r.format == XLSX && strings.ContainsRune(read.Key, utf8.RuneError)
	switch {
	case len(found) == 1:
		read.Key = found[0]
	case len(found) > 1:
		return r.of.wrong(read, ExportKey, "several items have this key, with other line breaks or an apostrophe; "+
			"correct this item in an export as ndjson or parquet")
	case len(shown) > 1 || lost:
		return r.of.wrong(read, ExportKey, "no item has this key; a spreadsheet may have changed its line breaks or "+
			"characters; correct this item in an export as ndjson or parquet")
	}
	return nil
}

func (r *restored) lay(item *row.Item, line []byte, base string) ([]byte, error) {
	cells := fieldsOf(line)
	if r.format == CSV {
		for i := range cells {
			cells[i].arm()
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
		value, column := have.value, ExportColumn(have.plain)
		at := slices.IndexFunc(cells, func(c field) bool { return c.plain == column })
		if at >= 0 {
			var err error
			if value, err = r.cell(cells[at].value, have.value); err != nil {
				return nil, r.of.wrong(item, have.plain, err.Error())
			}
			cells = slices.Delete(cells, at, at+1)
		}
		add(have.name, value)
	}
	for _, cell := range cells {
		if cell.plain == ExportKey || aboutItem(cell.plain) || r.empty(cell.value) {
			continue
		}
		if reason := r.refuse(&cell); reason != "" {
			return nil, r.of.wrong(item, cell.plain, reason)
		}
		value, err := r.cell(cell.value, nil)
		if err != nil {
			return nil, r.of.wrong(item, cell.plain, err.Error())
		}
		add(cell.name, value)
	}
	r.out = append(r.out, '}')
	return append(item.Payload[:0], r.out...), nil
}

// refuse returns why a cell cannot be a new field, or "".
func (r *restored) refuse(cell *field) string {
	lost := r.format == XLSX && strings.ContainsRune(cell.plain, utf8.RuneError)
	if c, ok := r.rows.(*csvReader); ok && c.unnamed != nil {
		at := slices.Index(c.names, cell.plain)
		lost = at >= 0 && c.unnamed[at]
	}
	switch {
	case lost:
		return "the heading of this column is empty, or holds U+FFFD for a character that a workbook cannot hold; name it, " +
			"or correct these items in an export as ndjson"
	case bytes.Contains(r.out, cell.name) && slices.Contains(FieldNames(append(r.out, '}')), cell.plain):
		return "two columns have this name; remove one"
	}
	return ""
}

type field struct {
	name, value []byte
	plain       string // the name without quotes and escapes, of which programs write different ones
}

func fieldsOf(object []byte) (all []field) {
	for at := 1; at < len(object) && object[0] == '{' && object[at] == '"'; {
		after := itemschema.ValueEnd(object, at)
		end := itemschema.ValueEnd(object, after+1)
		all = append(all, field{object[at:after], object[after+1 : end], plainName(object[at:after])})
		at = end + 1
	}
	return all
}

// FieldNames returns the names in an object without spaces between its tokens, as payloads are.
func FieldNames(object []byte) (names []string) {
	for _, f := range fieldsOf(object) {
		names = append(names, f.plain)
	}
	return names
}

func plainName(quoted []byte) string {
	name, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return string(quoted)
	}
	return string(name)
}

func (f *field) arm() {
	if armed := Armed(f.plain); armed != f.plain {
		f.plain = armed
		f.name, _ = row.AppendString(nil, []byte(armed)) // part of valid text
	}
}

// empty reports whether a cell adds nothing to an item without that field. Empty text counts only in NDJSON: sheets
// show nothing for it, and some Parquet writers write null.
func (r *restored) empty(cell []byte) bool {
	return string(cell) == "null" || string(cell) == `""` && r.format != NDJSON
}

// isSheet reports whether the format is edited in spreadsheet programs, which change texts.
func (r *restored) isSheet() bool { return r.format == CSV || r.format == XLSX }

// cell returns the new value of a field: the current one if the cell shows it, else a value of the same kind.
// NDJSON values keep their own kind.
func (r *restored) cell(cell, have []byte) (_ []byte, err error) {
	kind := kindOf(have)
	if r.format == XLSX {
		if cell, err = workbookCell(cell, kind); err != nil {
			return nil, err
		}
	}
	cell = r.asShown(cell, textOf(have))
	switch {
	case r.same(cell, have):
		return have, nil
	case r.format == NDJSON:
		return cell, nil
	}
	if text := textOf(cell); r.isSheet() && strings.ContainsRune(text, utf8.RuneError) && textOf(have) != "" &&
		ShownInCell(textOf(have)) != textOf(have) {
		return nil, fmt.Errorf("it holds U+FFFD for a character that a workbook cannot hold; correct this value in an " +
			"export as ndjson, csv or parquet")
	} else if armed := Armed(text); r.format == CSV && armed != text {
		cell, _ = row.AppendString(nil, []byte(armed)) // part of valid text
	}
	if err := r.checkRewritten(cell, have, kind); err != nil {
		return nil, err
	}
	value, err := convert(nil, cell, kind, DefaultMaxDepth-1)
	if err == nil && (r.sameNumber(value, have) || bytes.Equal(value, have)) {
		return have, nil
	}
	return value, err
}

// checkRewritten refuses what a spreadsheet made of a value; a workbook's texts were typed as they are.
func (r *restored) checkRewritten(cell, have []byte, kind string) error {
	text, shown, did := textOf(cell), textOf(have), "dropped zeros or digits"
	switch {
	case r.format == CSV && isoDate.MatchString(shown) && anyDate.MatchString(text) && !isoDate.MatchString(text):
		did = "rewritten a date"
	case r.format != CSV && (r.format != XLSX || cell[0] == '"') || !losesDigits(text, shown, kind):
		return nil
	}
	return fmt.Errorf("it holds %s where the item has %s, so a spreadsheet may have %s; format the cell as text in an "+
		"export as xlsx, and enter it again, or correct it in an export as ndjson", row.Quote(text), row.Quote(shown), did)
}

// losesDigits reports whether text is what a spreadsheet makes of shown by reading it as a number: without zeros and
// plus that count for nothing, and with fewer digits if it has many. A number loses only the latter.
func losesDigits(text, shown, kind string) bool {
	if !strings.Contains(text+shown, ".") {
		text, shown = strings.ReplaceAll(text, ",", "."), strings.ReplaceAll(shown, ",", ".")
	}
	now, isNumber := parseDecimal(strings.TrimPrefix(text, "+"))
	was, wasNumber := parseDecimal(strings.TrimPrefix(shown, "+"))
	if !isNumber || !wasNumber || now.compare(&was) == 0 {
		return isNumber && wasNumber && kind == TypeText
	}
	kept := XLSXDigits
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		kept = len(strings.Trim(strings.ReplaceAll(text[:at], ".", ""), "+-"))
	}
	if len(was.digits) <= kept {
		return false
	}
	cut := was
	cut.digits = strings.TrimRight(was.digits[:kept], "0")
	near, _ := strconv.ParseFloat(shown, 64) // parseDecimal read it; out of range is infinite
	rounded, finite := parseDecimal(strconv.FormatFloat(near, 'e', kept-1, 64))
	return now.compare(&cut) == 0 || finite && now.compare(&rounded) == 0
}

// workbookCell returns a cell's value, also if its format shows more than digits, see xlsxReader.Next.
func workbookCell(cell []byte, kind string) ([]byte, error) {
	if cell[0] != '[' {
		return cell, nil
	}
	number, place, _ := bytes.Cut(cell[1:len(cell)-1], []byte(","))
	if kind == TypeText {
		return nil, fmt.Errorf("cell %s holds the number %s, shown as percents, money or the like, but the item has text "+
			"there; format the cell as text, and enter it again", plainName(place), number)
	}
	return number, nil
}

func (r *restored) same(cell, have []byte) bool {
	if bytes.Equal(cell, have) || r.sameNumber(cell, have) {
		return true
	}
	text, shown := textOf(cell), textOf(have)
	switch {
	case len(have) == 0:
		return false
	case r.format == NDJSON:
		return cell[0] == '"' && have[0] == '"' && text == shown
	case r.format == Parquet:
		return text == shown
	}
	text = asSheet(text)
	return text == asSheet(shown) || text == asSheet(Defuse(shown)) || text != "" && text == TooLongForCell(shown)
}

var (
	isoDate   = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)`)
	anyDate   = regexp.MustCompile(`^[0-9]{1,4}[./-] ?[0-9]{1,2}[./-] ?[0-9]{1,4}\b`)
	clockTime = regexp.MustCompile(`^([0-2]?[0-9]:[0-5][0-9])(:[0-5][0-9])?$`)
	truth     = regexp.MustCompile(`(?i)^(true|false)$`)
)

// asShown writes a cell's time or truth in the form of the text that it replaces: spreadsheets write 09:05 or 9:05:00
// for 9:05, and in CSV TRUE for true.
func (r *restored) asShown(cell []byte, shown string) []byte {
	if !r.isSheet() {
		return cell
	}
	text := textOf(cell)
	is, was := clockTime.FindStringSubmatch(text), clockTime.FindStringSubmatch(shown)
	switch {
	case is != nil && was != nil:
		if text = is[1]; len(text) < len("09:05") {
			text = "0" + text
		}
		if len(was[1]) < len("09:05") {
			text = strings.TrimPrefix(text, "0")
		}
		if was[2] != "" || is[2] != ":00" {
			text += is[2]
		}
	case r.format == CSV && truth.MatchString(text) && truth.MatchString(shown):
		if strings.EqualFold(text, shown) {
			text = shown
		} else if shown == strings.ToLower(shown) {
			text = strings.ToLower(text)
		}
	default:
		return cell
	}
	return strconv.AppendQuote(nil, text)
}

// asSheet normalises text for comparison: all line breaks are equal, and characters a workbook cannot hold are
// replaced.
func asSheet(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(ShownInCell(text), "\r\n", "\n"), "\r", "\n")
}

// kindOf returns the type that a replacement of a value must have; empty: any.
func kindOf(have []byte) string {
	switch {
	case len(have) == 0, have[0] == 'n':
		return ""
	case have[0] == '"':
		return TypeText
	case have[0] == '{', have[0] == '[':
		return TypeJSON
	case have[0] == 't', have[0] == 'f':
		return TypeBool
	default:
		return TypeNumber
	}
}

// sameNumber reports whether two numbers are equal though written differently. Spreadsheets do not keep longer
// numbers. In a workbook any number of digits is the workbook's own doing.
func (r *restored) sameNumber(cell, have []byte) bool {
	if len(cell) == 0 || len(have) == 0 || len(have) > XLSXDigits || len(cell) > XLSXDigits && r.format != XLSX {
		return false
	}
	x, errX := strconv.ParseFloat(string(cell), 64)
	y, errY := strconv.ParseFloat(string(have), 64)
	return errX == nil && errY == nil && x == y
}

func textOf(value []byte) string {
	switch {
	case len(value) == 0 || string(value) == "null":
		return ""
	case value[0] == '"':
		return plainName(value)
	}
	return string(value)
}

func (r *Reader) restore(from *Export) {
	r.rows = &restored{of: r, rows: r.rows, format: r.format, lookup: from.Payloads}
}

func (c Config) asExport() Config {
	back := c.Export.Config.withDefaults()
	back.Key, back.Export = ExportKey, c.Export
	return back
}
