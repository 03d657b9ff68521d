package xlsx

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
	"github.com/tranchehq/tranche/internal/intake/row"
)

const (
	// Digits is how many digits a number of a spreadsheet keeps.
	Digits = 15
	// Magic is what a workbook begins with.
	Magic = "PK\x03\x04"
	// MaxBytes is how large a workbook may be.
	MaxBytes = 64 << 20

	maxCell  = 32767     // characters that a cell holds
	maxPlain = 512 << 20 // bytes of a workbook, unpacked
	maxPart  = 16 << 20  // of one part in memory; larger ones go to files
)

// TooLong is what an export puts into a cell that does not hold the text. Empty: it does. Spreadsheets count in
// units of UTF-16.
func TooLong(text string) string {
	n := 0
	for _, r := range text {
		n += utf16.RuneLen(r)
	}
	if n <= maxCell {
		return ""
	}
	return fmt.Sprintf("(%d characters, more than a cell holds: export as ndjson, csv or parquet)",
		utf8.RuneCountInString(text))
}

// Shown is what a workbook shows of a text: XML has no form for most control characters.
func Shown(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF {
			return utf8.RuneError
		}
		return r
	}, text)
}

// Config says how a workbook is read.
type Config struct {
	Key string // the column of the keys
	Dir string // of files for what does not fit in memory; empty: the system's
	// Ignored reports whether a column is of no account, whatever stands in it.
	Ignored func(name string) bool
}

// Reader reads the first sheet of a workbook. Its first row has the names.
type Reader struct {
	cfg      Config
	file     *excelize.File
	sheet    *excelize.Rows
	cells    *cells
	names    []string
	prefixes [][]byte
	key      int
	row      int
}

func bad(format string, args ...any) error {
	return &row.InputError{Reason: "the workbook cannot be read: " + fmt.Sprintf(format, args...) +
		"; save the sheet as CSV (UTF-8)"}
}

// Open reads the heading of the first sheet.
func Open(input io.ReaderAt, size int64, cfg Config) (x *Reader, err error) {
	x = &Reader{cfg: cfg, row: 1}
	defer func() {
		if broken := recover(); broken != nil {
			err = bad("it is damaged")
		}
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	x.file, err = excelize.OpenReader(io.NewSectionReader(input, 0, size), excelize.Options{UnzipSizeLimit: maxPlain,
		UnzipXMLSizeLimit: maxPart, TmpDir: cfg.Dir, RawCellValue: true})
	if err != nil {
		return x, bad("%v", err)
	}
	if x.sheet, err = x.file.Rows(x.file.GetSheetName(0)); err != nil {
		return x, bad("%v", err)
	}
	if err := x.heading(); err != nil {
		return x, err
	}
	x.cells, err = openCells(input, size, x.file)
	return x, err
}

// Close gives up the files.
func (x *Reader) Close() error {
	var err error
	if x.cells != nil {
		err = x.cells.part.Close()
	}
	if x.sheet != nil {
		err = errors.Join(err, x.sheet.Close())
	}
	if x.file != nil {
		err = errors.Join(err, x.file.Close())
	}
	return err
}

func (x *Reader) heading() error {
	if !x.sheet.Next() {
		return &row.InputError{Reason: "the workbook has no rows; give at least one", Err: row.ErrNoRows}
	}
	names, err := x.sheet.Columns()
	if err != nil {
		return bad("%v", err)
	}
	for i, name := range names {
		if reason := row.RefuseName(name); reason != "" {
			return bad("column %d of the first row: %s", i+1, reason)
		}
		if slices.Contains(names[:i], name) {
			return bad("the first row has the name %s twice", row.Quote(name))
		}
	}
	if x.key = slices.Index(names, x.cfg.Key); x.key < 0 {
		return bad("its first sheet has no column %s, as exports of failed items have (run export --flat)", x.cfg.Key)
	}
	x.names, x.prefixes = names, row.Prefixes(names)
	return nil
}

// KeyName is the column that the keys come from.
func (x *Reader) KeyName() string { return x.names[x.key] }

// Next reads a row, or returns io.EOF. A number whose format shows more than its digits is in an array with its cell:
// [0.05,"C2"] for 5 %. A text can have no such form.
func (x *Reader) Next(item *row.Item) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = bad("it is damaged after row %d", x.row)
		}
	}()
	var texts []string
	for len(texts) == 0 {
		if !x.sheet.Next() {
			if err := x.sheet.Error(); err != nil {
				return bad("%v", err)
			}
			return io.EOF
		}
		x.row++
		if texts, err = x.sheet.Columns(); err != nil {
			return bad("%v", err)
		}
	}
	item.Line, item.Key = x.row, ""
	if len(texts) > len(x.names) {
		return &row.RecordError{Unit: "row", Number: x.row, Reason: "it has more cells than the first row; remove them"}
	}
	cells, err := x.cells.row(x.row, len(x.names))
	if err != nil {
		return err
	}
	item.Payload = item.Payload[:0]
	for i := range x.names {
		text := ""
		if i < len(texts) {
			text = texts[i]
		}
		if item.Payload, err = x.value(append(item.Payload, x.prefixes[i]...), item, i, &cells[i], text); err != nil {
			return err
		}
	}
	item.Payload = append(item.Payload, '}')
	return nil
}

// value appends what a cell says.
func (x *Reader) value(dst []byte, item *row.Item, i int, c *cell, text string) ([]byte, error) {
	wrong := func(reason string) error {
		return &row.RecordError{Unit: "row", Number: x.row, Field: x.names[i], Reason: reason}
	}
	form := asText
	if text != "" || c.Formula != nil {
		var reason string
		form, text, reason = x.cells.read(c, text)
		if reason != "" && !x.cfg.Ignored(x.names[i]) {
			name, _ := excelize.CoordinatesToCellName(i+1, x.row) // it is one
			return nil, wrong("cell " + name + " " + reason)
		}
	}
	if i == x.key {
		item.Key, form = text, asText
	}
	switch form {
	case asWritten:
		return append(dst, text...), nil
	case asShownElse:
		name, _ := excelize.CoordinatesToCellName(i+1, x.row) // it is one
		return fmt.Appendf(dst, `[%s,"%s"]`, text, name), nil
	}
	dst, at := jsonvalue.AppendString(dst, []byte(text))
	if at >= 0 {
		return nil, wrong(jsonvalue.BadByte([]byte(text), at))
	}
	return dst, nil
}
