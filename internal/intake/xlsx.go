package intake

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/intake/spool"
)

const (
	// XLSXDigits is how many digits a number of a spreadsheet keeps.
	XLSXDigits = 15
	xlsxCell   = 32767 // characters that a cell holds

	xlsxMagic    = "PK\x03\x04"
	maxXLSX      = 64 << 20  // bytes of a workbook
	maxXLSXPlain = 512 << 20 // unpacked
	maxXLSXPart  = 16 << 20  // of one part in memory; larger ones go to files
)

// XLSXTooLong is what an export puts into a cell that does not hold the text. Empty: it does. Spreadsheets count in
// units of UTF-16.
func XLSXTooLong(text string) string {
	n := 0
	for _, r := range text {
		n += utf16.RuneLen(r)
	}
	if n <= xlsxCell {
		return ""
	}
	return fmt.Sprintf("(%d characters, more than a cell holds: export as ndjson, csv or parquet)",
		utf8.RuneCountInString(text))
}

// xlsxRows reads the first sheet of a workbook that is an export: its first row has the names.
type xlsxRows struct {
	sheet    *excelize.Rows
	names    []string
	prefixes [][]byte
	key      int
	row      int
}

// keepXLSX opens a workbook, which has to be an export.
func keepXLSX(plain io.Reader, cfg Config) (*Reader, Config, error) {
	spool := *cfg.Spool
	spool.Max = maxXLSX
	kept, err := spool.Keep(plain)
	if err != nil {
		return nil, cfg, err
	}
	defer func() { _ = kept.Close() }() // what was read has been read
	back := cfg.asExport()
	file, rows, err := openXLSX(kept, spool.Dir)
	if err != nil {
		return nil, cfg, err
	}
	return &Reader{rows: rows, format: CSV, unit: "row", close: func() error {
		return errors.Join(rows.sheet.Close(), file.Close())
	}}, back, nil
}

func badXLSX(format string, args ...any) error {
	return &row.InputError{Reason: "the workbook cannot be read: " + fmt.Sprintf(format, args...) +
		"; save the sheet as CSV (UTF-8)"}
}

// openXLSX reads the heading of the first sheet.
func openXLSX(kept *spool.Kept, dir string) (file *excelize.File, rows *xlsxRows, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = badXLSX("it is damaged")
		}
	}()
	file, err = excelize.OpenReader(kept.Reader(), excelize.Options{UnzipSizeLimit: maxXLSXPlain,
		UnzipXMLSizeLimit: maxXLSXPart, TmpDir: dir, RawCellValue: true})
	if err != nil {
		return nil, nil, badXLSX("%v", err)
	}
	rows = &xlsxRows{row: 1}
	if rows.sheet, err = file.Rows(file.GetSheetName(0)); err != nil {
		return nil, nil, errors.Join(badXLSX("%v", err), file.Close())
	}
	if err = rows.heading(); err != nil {
		return nil, nil, errors.Join(err, rows.sheet.Close(), file.Close())
	}
	return file, rows, nil
}

func (x *xlsxRows) heading() error {
	if !x.sheet.Next() {
		return noRows(CSV)
	}
	names, err := x.sheet.Columns()
	if err != nil {
		return badXLSX("%v", err)
	}
	for i, name := range names {
		if reason := row.RefuseName(name); reason != "" {
			return badXLSX("column %d of the first row: %s", i+1, reason)
		}
		if slices.Contains(names[:i], name) {
			return badXLSX("the first row has the name %s twice", row.Quote(name))
		}
	}
	if x.key = slices.Index(names, ExportKey); x.key < 0 {
		return badXLSX("its first sheet has no column %s, as exports of failed items have (run export --flat)", ExportKey)
	}
	x.names, x.prefixes = names, row.Prefixes(names)
	return nil
}

func (x *xlsxRows) KeyName() string { return ExportKey }

func (x *xlsxRows) Next(item *row.Item) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = badXLSX("it is damaged after row %d", x.row)
		}
	}()
	var cells []string
	for len(cells) == 0 {
		if !x.sheet.Next() {
			if err := x.sheet.Error(); err != nil {
				return badXLSX("%v", err)
			}
			return io.EOF
		}
		x.row++
		if cells, err = x.sheet.Columns(); err != nil {
			return badXLSX("%v", err)
		}
	}
	item.Line, item.Key = x.row, ""
	if len(cells) > len(x.names) {
		return &row.RecordError{Unit: "row", Number: x.row, Reason: "it has more cells than the first row; remove them"}
	}
	item.Payload = item.Payload[:0]
	for i := range x.names {
		cell := ""
		if i < len(cells) {
			cell = cells[i]
		}
		var bad int
		if item.Payload, bad = jsonvalue.AppendString(append(item.Payload, x.prefixes[i]...), []byte(cell)); bad >= 0 {
			return &row.RecordError{Unit: "row", Number: x.row, Field: x.names[i], Reason: jsonvalue.BadByte([]byte(cell), bad)}
		}
		if i == x.key {
			item.Key = cell
		}
	}
	item.Payload = append(item.Payload, '}')
	return nil
}
