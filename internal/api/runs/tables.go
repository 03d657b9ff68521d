package runs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue/export"
)

const (
	// parquetGroup and parquetRows limit what is held of a Parquet file before it is written: a row group.
	parquetGroup = 16 << 20
	parquetRows  = 64 << 10
	// parquetCells does so for many columns: even an empty cell takes some ten bytes there.
	parquetCells = 8 << 20
)

type parquetTable struct {
	rows        *parquet.GenericWriter[any]
	table       *exportTable
	most        int // per row group
	held, count int // bytes and rows held
}

// inOrder keeps columns in table order instead of sorted by name.
type inOrder struct {
	parquet.Group

	names []string
}

func (o inOrder) Fields() []parquet.Field {
	fields := o.Group.Fields()
	slices.SortFunc(fields, func(a, b parquet.Field) int {
		return slices.Index(o.names, a.Name()) - slices.Index(o.names, b.Name())
	})
	return fields
}

func newParquetTable(out *bufio.Writer, table *exportTable) *parquetTable {
	group := parquet.Group{}
	for i := range table.columns {
		c := &table.columns[i]
		if c.node == nil {
			c.node = parquet.Optional(parquet.String())
		}
		group[c.name] = c.node
	}
	schema := parquet.NewSchema("items", inOrder{group, table.names()})
	return &parquetTable{table: table, most: groupRows(len(table.columns)),
		rows: parquet.NewGenericWriter[any](out, schema,
			parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}), parquet.CreatedBy("tranche", "", ""))}
}

func groupRows(columns int) int { return min(parquetRows, parquetCells/max(columns, 1)) }

func (e *parquetTable) line(item *export.Item) error {
	row, err := e.table.row(item)
	if err != nil {
		return err
	}
	values := make(parquet.Row, len(e.table.columns))
	for i := range e.table.columns {
		column := &e.table.columns[i]
		cell := column.cell(row)
		e.held += len(cell.text) + len(cell.bytes)
		defined := 0
		if cell.here && column.node.Optional() {
			defined = 1
		}
		values[i] = cell.parquet(column.node).Level(0, defined, i)
	}
	if _, err := e.rows.WriteRows([]parquet.Row{values}); err != nil {
		return err
	}
	if e.count++; e.held < parquetGroup && e.count < e.most {
		return nil
	}
	e.held, e.count = 0, 0
	return e.rows.Flush()
}

func (e *parquetTable) finish() error { return e.rows.Close() }

func (c *exportCell) parquet(node parquet.Node) parquet.Value {
	switch kind := node.Type().Kind(); {
	case kind == parquet.Boolean:
		return parquet.BooleanValue(c.here)
	case !c.here && node.Optional():
		return parquet.NullValue()
	case kind == parquet.Int32:
		n, _ := strconv.ParseInt(c.text, 10, 32) // an ordinal
		return parquet.Int32Value(int32(n))
	case c.bytes != nil:
		return parquet.ByteArrayValue(c.bytes)
	default:
		return parquet.ByteArrayValue([]byte(c.text))
	}
}

const (
	xlsxSheet = "items"
	xlsxRows  = 1<<20 - 1 // without the heading
)

// xlsxExport writes a workbook with one sheet to a temporary file. Cells are texts and numbers, never formulas.
type xlsxExport struct {
	out   *bufio.Writer
	table *exportTable
	file  *excelize.File
	sheet *excelize.StreamWriter
	row   int
	share *intake.Share // of the room for such files
	bytes int64         // written, roughly

	notHeld int // cells that cannot hold their value
}

const xlsxCell = 64

func newXLSXExport(out *bufio.Writer, table *exportTable, dir string, room *intake.Room) (*xlsxExport, error) {
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

func moreThanASheet() error {
	return apicore.BadInput(fmt.Sprintf("format: there are more items than the %d rows of a sheet; export them as csv, "+
		"ndjson or parquet", xlsxRows))
}

func (e *xlsxExport) write(cells []any) error {
	if e.row++; e.row > 1+xlsxRows {
		return moreThanASheet()
	}
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
		n, err := strconv.ParseFloat(string(cell.raw), 64)
		tiny := math.Abs(n) < 0x1p-1022 && bytes.ContainsAny(cell.raw, "eE") // it would lose digits, or become 0
		switch {
		case !cell.here:
		case cell.isNumber() && err == nil && !tiny && len(cell.raw) <= intake.XLSXDigits:
			cells[i] = n
		case intake.TooLongForCell(cell.text) != "":
			cells[i] = intake.TooLongForCell(cell.text)
			e.notHeld++
		default:
			if cells[i] = cell.text; intake.ShownInCell(cell.text) != cell.text {
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

func (e *xlsxExport) Close() error {
	e.share.Close()
	return e.file.Close()
}

func mayFit(room *intake.Room, rows int64, columns int) error {
	share := room.Share()
	defer share.Close()
	return share.Fit(rows * int64(columns) * xlsxCell)
}

// makeRoom creates the directory for the files: without it the library silently keeps everything in memory. It
// deletes leftovers of killed processes.
func makeRoom(dir string) error {
	if dir == "" {
		return nil // the system's, which tidies it
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the workbook in a file: %w", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "excelize-*")) // the pattern is valid
	for _, name := range left {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(name) // retried with the next workbook
		}
	}
	return nil
}
