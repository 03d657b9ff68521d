package runs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

func flatTable() *exportTable {
	return &exportTable{flat: true, columns: flatColumns([]string{"name", "result.n", "balance"}, []string{"n"})}
}

func flatItems() []*export.Item {
	return []*export.Item{
		{Key: "+49", State: workqueue.OutcomeDone, Payload: []byte(`{"name":"=Ann","result.n":[1, 2],"balance":12.50}`),
			Result: []byte(`{"n":"x"}`)},
		{Ordinal: 1, Key: "b", State: workqueue.OutcomeFailed, ErrorCode: "NO", ErrorMessage: "none",
			Payload: []byte(`{"name":null,"balance":"7"}`)},
		{Ordinal: 2, Key: "c", State: workqueue.OutcomeDone, Payload: []byte(`{}`), Result: []byte("[\n1]")},
	}
}

// A large workbook is in a file, also where nothing was kept before; what a killed process left there goes.
func TestALargeWorkbookIsInAFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	files := func() []string { return testenv.Must(filepath.Glob(filepath.Join(dir, "*")))(t) }
	room := intake.NewRoom(3*excelize.StreamChunkSize/2, nil)
	for range 2 { // what the first took is given back
		e, err := newXLSXExport(bufio.NewWriter(io.Discard), &exportTable{columns: columnsIn(inTables, false)}, dir, room)
		testenv.NoError(t, err)
		item := export.Item{Key: strings.Repeat("k", 32_000), State: workqueue.OutcomeMissing}
		for range excelize.StreamChunkSize / len(item.Key) {
			testenv.NoError(t, e.line(&item))
		}
		testenv.MustSame(t, len(files()), 1, "files")
		testenv.NoError(t, errors.Join(e.finish(), e.Close()))
		testenv.MustSame(t, len(files()), 0, "files at the end")
		left := filepath.Join(dir, "excelize-left")
		testenv.NoError(t, os.WriteFile(left, nil, 0o600))
		yesterday := time.Now().Add(-25 * time.Hour)
		testenv.NoError(t, os.Chtimes(left, yesterday, yesterday))
	}
	var full *intake.NoRoomError
	e, err := newXLSXExport(bufio.NewWriter(io.Discard), &exportTable{columns: columnsIn(inTables, false)}, dir, room)
	for range 2 * excelize.StreamChunkSize / 32_000 {
		if err == nil {
			err = e.line(&export.Item{Key: strings.Repeat("k", 32_000), State: workqueue.OutcomeMissing})
		}
	}
	if !errors.As(err, &full) || e.Close() != nil {
		t.Errorf("a workbook that is larger than the room: %v", err)
	}
	if err := mayFit(room, 1<<20, 20); !errors.As(err, &full) {
		t.Errorf("one of which that is known before: %v", err)
	}
	testenv.Same(t, mayFit(room, 1<<10, 20), nil, "one that fits")
	e.row = 1 + xlsxRows
	testenv.Says(t, e.write(nil), "more items than", "a row below the last")
}

// What is held of a table does not grow with its columns: empty cells take room, too.
func TestWideTablesHaveSmallerRowGroups(t *testing.T) {
	t.Parallel()
	if few, many := groupRows(10), groupRows(2*maxFields); few != parquetRows || many*2*maxFields > parquetCells {
		t.Errorf("row groups have %d and %d rows", few, many)
	}
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	e := newParquetTable(w, flatTable())
	e.most = 2
	for _, item := range flatItems() {
		testenv.NoError(t, e.line(item))
	}
	testenv.NoError(t, errors.Join(e.finish(), w.Flush()))
	file := testenv.Must(parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len())))(t)
	testenv.Same(t, len(file.RowGroups()), 2, "row groups of the file")
}

// A flat table has a column for each field, whatever it is called.
func TestFlatExport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		format func(*bufio.Writer) exportWriter
		want   string
	}{
		"csv": {func(w *bufio.Writer) exportWriter { return &csvExport{out: w, table: flatTable()} },
			"tranche.key,name,result.n,balance,tranche.state,tranche.error_code,tranche.error_message,tranche.accepted," +
				"result.n_,tranche.result\n" +
				"+49,'=Ann,\"[1,2]\",12.50,done,,,,x,\nb,,,7,failed,NO,none,,,\nc,,,,done,,,,,[1]\n"},
		"ndjson": {func(w *bufio.Writer) exportWriter { return newObjectExport(w, flatTable(), nil) },
			`{"tranche.key":"+49","name":"=Ann","result.n":[1,2],"balance":12.50,"tranche.state":"done","result.n_":"x"}
{"tranche.key":"b","balance":"7","tranche.state":"failed","tranche.error_code":"NO","tranche.error_message":"none"}
{"tranche.key":"c","tranche.state":"done","tranche.result":[1]}
`},
	} {
		testenv.Same(t, string(exportItems(t, flatItems(), c.format)), c.want, "%s", name)
	}
	file := exportItems(t, flatItems(), func(w *bufio.Writer) exportWriter { return newParquetTable(w, flatTable()) })
	rows, err := parquet.Read[struct {
		Key     string  `parquet:"tranche.key,optional"`
		Balance *string `parquet:"balance,optional"`
		N       *string `parquet:"result.n_,optional"`
	}](bytes.NewReader(file), int64(len(file)))
	if err != nil || len(rows) != 3 || rows[0].Key != "+49" || *rows[0].Balance != "12.50" || *rows[0].N != "x" ||
		rows[2].Balance != nil {
		t.Errorf("%+v, %v", rows, err)
	}
}

// A field that came after the columns were chosen is not left out without a word.
func TestFieldsThatComeLater(t *testing.T) {
	t.Parallel()
	table := flatTable()
	table.payload = map[string]bool{"name": true}
	out := &csvExport{out: bufio.NewWriter(io.Discard), table: table}
	testenv.Says(t, out.line(flatItems()[0]), "export again", "the error")
	testenv.Says(t, table.choose([]string{"balance", "nope"}), `"nope"`, "the error")
	testenv.Says(t, table.choose([]string{"name", "balance", "name"}), `"name" appears twice`, "the error")
	testenv.NoError(t, table.choose([]string{"balance", "tranche.key"}))
	testenv.Same(t, len(table.names()), 2, "columns")
}

// A workbook has texts and numbers, and no formula.
func TestExportToXLSX(t *testing.T) {
	t.Parallel()
	items := append(flatItems(), &export.Item{Key: "long", State: workqueue.OutcomeDone,
		Payload: []byte(`{"name":"` + strings.Repeat("x", 40_000) + `","balance":12345678901234567890}`)},
		&export.Item{Key: "tiny", State: workqueue.OutcomeDone, Payload: []byte(`{"name":0.0,"balance":1e-400}`)})
	file := exportItems(t, items, func(w *bufio.Writer) exportWriter {
		return testenv.Must(newXLSXExport(w, flatTable(), t.TempDir(), nil))(t)
	})
	book := testenv.Must(excelize.OpenReader(bytes.NewReader(file)))(t)
	defer func() { _ = book.Close() }()
	rows, err := book.GetRows(xlsxSheet)
	if err != nil || len(rows) != 6 || rows[1][0] != "+49" || rows[1][1] != "=Ann" || rows[1][3] != "12.5" ||
		!strings.Contains(rows[4][1], "40000 characters") || rows[4][3] != "12345678901234567890" ||
		rows[5][1] != "0" || rows[5][3] != "1e-400" {
		t.Errorf("%.200q, %v", rows, err)
	}
	testenv.Same(t, testenv.Must(book.GetCellFormula(xlsxSheet, "B2"))(t), "", "there is a formula")
}
