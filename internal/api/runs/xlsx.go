package runs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake/spool"
	"github.com/tranchehq/tranche/internal/intake/xlsx"
	"github.com/tranchehq/tranche/workqueue/export"
)

const (
	xlsxSheet = "items"
	xlsxRows  = 1<<20 - 1 // beside the heading
)

// xlsxExport writes a workbook with one sheet. Cells are texts and numbers, never formulas. What is written so far is
// in a file.
type xlsxExport struct {
	out   *bufio.Writer
	table *exportTable
	file  *excelize.File
	sheet *excelize.StreamWriter
	row   int
	share *spool.Share // of the room for such files
	bytes int64        // written, roughly

	notHeld int // cells that do not hold what is exported
}

// xlsxCell is what a cell takes in the file beside its text.
const xlsxCell = 64

func newXLSXExport(out *bufio.Writer, table *exportTable, dir string, room *spool.Room) (*xlsxExport, error) {
	if err := makeRoom(dir); err != nil {
		return nil, err
	}
	file := excelize.NewFile(excelize.Options{TmpDir: dir})
	if err := file.SetSheetName("Sheet1", xlsxSheet); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	sheet, err := file.NewStreamWriter(xlsxSheet)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	e := &xlsxExport{out: out, table: table, file: file, sheet: sheet, share: room.Share()}
	heading := make([]any, len(table.columns))
	for i, name := range table.names() {
		heading[i] = name
	}
	if err := e.write(heading); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *xlsxExport) write(cells []any) error {
	e.row++
	for _, cell := range cells {
		text, _ := cell.(string)
		e.bytes += xlsxCell + int64(len(text))
	}
	if err := e.share.Fit(e.bytes); err != nil {
		return fmt.Errorf("keep the workbook in a file: %w", err)
	}
	return e.sheet.SetRow("A"+strconv.Itoa(e.row), cells)
}

func (e *xlsxExport) line(item *export.Item) error {
	row, err := e.table.row(item)
	if err != nil {
		return err
	}
	cells := make([]any, len(e.table.columns))
	for i, column := range e.table.columns {
		cell := column.cell(row)
		switch n, err := strconv.ParseFloat(string(cell.raw), 64); {
		case !cell.here:
		case cell.isNumber() && err == nil && len(cell.raw) <= xlsx.Digits:
			cells[i] = n
		case xlsx.TooLong(cell.text) != "":
			cells[i] = xlsx.TooLong(cell.text)
			e.notHeld++
		default:
			if cells[i] = cell.text; xlsx.Shown(cell.text) != cell.text {
				e.notHeld++
			}
		}
	}
	return e.write(cells)
}

func (e *xlsxExport) finish() error {
	if err := e.sheet.Flush(); err != nil {
		return err
	}
	return e.file.Write(e.out)
}

// Close removes the file that was written to.
func (e *xlsxExport) Close() error {
	e.share.Close()
	return e.file.Close()
}

// mayFit refuses a workbook of which it is plain that there is no room for it now.
func mayFit(room *spool.Room, rows int64, columns int) error {
	share := room.Share()
	defer share.Close()
	return share.Fit(rows * int64(columns) * xlsxCell)
}

// makeRoom makes the directory of the files: where there is none, the library keeps everything in memory, and says
// nothing. What a process that was killed has left there goes.
func makeRoom(dir string) error {
	if dir == "" {
		return nil // the system's, and the system's to tidy up
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the workbook in a file: %w", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "excelize-*")) // the pattern is one
	for _, name := range left {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(name) // it is tried again with the next workbook
		}
	}
	return nil
}
