package intake

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake/row"
)

const (
	// XLSXDigits is how many digits of a number a spreadsheet keeps.
	XLSXDigits   = 15
	xlsxMagic    = "PK\x03\x04"
	xlsxMaxBytes = 64 << 20

	maxCellChars    = 32767     // characters per cell
	maxWorkbook     = 512 << 20 // bytes of a workbook, unpacked
	maxWorkbookPart = 16 << 20  // of one part in memory; larger ones go to files
)

// TooLongForCell returns the text that an export writes instead of one too long for a cell; empty if it fits.
// Spreadsheets count UTF-16 units.
func TooLongForCell(text string) string {
	n := 0
	for _, r := range text {
		n += utf16.RuneLen(r)
	}
	if n <= maxCellChars {
		return ""
	}
	return fmt.Sprintf("(%d characters, more than a cell holds: export as ndjson, csv or parquet)",
		utf8.RuneCountInString(text))
}

// ShownInCell returns a text as a workbook shows it: XML has no form for most control characters.
func ShownInCell(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF {
			return utf8.RuneError
		}
		return r
	}, text)
}

// xlsxReader reads the first sheet of a workbook that is an edited flat export. The first row has the names. A row
// is an object of the cells' values: numbers and booleans as such, dates and times as ISO 8601 text, anything else
// as text. Other values are refused with their cell. A damaged workbook is an error, never a panic.
type xlsxReader struct {
	file     *excelize.File
	sheet    *excelize.Rows
	cells    *cells
	names    []string
	prefixes [][]byte
	key      int
	row      int
}

func badWorkbook(format string, args ...any) error {
	return &row.InputError{Reason: "the workbook cannot be read: " + fmt.Sprintf(format, args...) +
		"; save the sheet as CSV (UTF-8)"}
}

// openXLSX keeps parts in dir; empty: in the system's directory for temporary files.
func openXLSX(input io.ReaderAt, size int64, dir string) (x *xlsxReader, err error) {
	x = &xlsxReader{row: 1}
	defer func() {
		if broken := recover(); broken != nil {
			err = badWorkbook("it is damaged")
		}
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	x.file, err = excelize.OpenReader(io.NewSectionReader(input, 0, size), excelize.Options{UnzipSizeLimit: maxWorkbook,
		UnzipXMLSizeLimit: maxWorkbookPart, TmpDir: dir, RawCellValue: true})
	if err != nil {
		return x, badWorkbook("%v", err)
	}
	if x.sheet, err = x.file.Rows(x.file.GetSheetName(0)); err != nil {
		return x, badWorkbook("%v", err)
	}
	if err := x.heading(); err != nil {
		return x, err
	}
	x.cells, err = openCells(input, size, x.file)
	return x, err
}

func (x *xlsxReader) Close() error {
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

func (x *xlsxReader) heading() error {
	if !x.sheet.Next() {
		return &row.InputError{Reason: "the workbook has no rows; give at least one", Err: row.ErrNoRows}
	}
	names, err := x.sheet.Columns()
	if err != nil {
		return badWorkbook("%v", err)
	}
	for i, name := range names {
		if reason := row.RefuseName(name); reason != "" {
			return badWorkbook("column %d of the first row: %s", i+1, reason)
		}
		if slices.Contains(names[:i], name) {
			return badWorkbook("the first row has the name %s twice", row.Quote(name))
		}
	}
	switch x.key = slices.Index(names, ExportKey); {
	case x.key < 0 && isUnflat(names):
		return errUnflat
	case x.key < 0:
		return badWorkbook("its first sheet has no column %s, as exports of failed items have (run export --flat)", ExportKey)
	}
	x.names, x.prefixes = names, row.Prefixes(names)
	return nil
}

func (x *xlsxReader) KeyName() string { return x.names[x.key] }

// Next reads a row or returns io.EOF. A number whose format shows more than its digits is written as an array with
// its cell: [0.05,"C2"] for 5 %. No text can have this form.
func (x *xlsxReader) Next(item *row.Item) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = badWorkbook("it is damaged after row %d", x.row)
		}
	}()
	var texts []string
	for len(texts) == 0 {
		if !x.sheet.Next() {
			if err := x.sheet.Error(); err != nil {
				return badWorkbook("%v", err)
			}
			return io.EOF
		}
		x.row++
		if texts, err = x.sheet.Columns(); err != nil {
			return badWorkbook("%v", err)
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

func (x *xlsxReader) value(dst []byte, item *row.Item, i int, c *cell, text string) ([]byte, error) {
	wrong := func(reason string) error {
		return &row.RecordError{Unit: "row", Number: x.row, Field: x.names[i], Reason: reason}
	}
	name, _ := excelize.CoordinatesToCellName(i+1, x.row) // never fails: both are in range
	form := asText
	if text != "" || c.Formula != nil {
		var reason string
		form, text, reason = x.cells.read(c, text)
		if reason != "" && !aboutItem(x.names[i]) {
			return nil, wrong("cell " + name + " " + reason)
		}
	}
	if i == x.key {
		if form != asText {
			return nil, wrong("cell " + name + " holds a number or truth, but keys are texts, from which spreadsheets drop " +
				"zeros (007 becomes 7); format the column as text, and copy the keys from the export again")
		}
		item.Key = text
	}
	switch form {
	case asWritten:
		return append(dst, text...), nil
	case asShownElse:
		return fmt.Appendf(dst, `[%s,"%s"]`, text, name), nil
	}
	dst, at := row.AppendString(dst, []byte(text))
	if at >= 0 {
		return nil, wrong(row.BadByte([]byte(text), at))
	}
	return dst, nil
}
