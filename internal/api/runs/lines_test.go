package runs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

func exportedItems() []*export.Item {
	return []*export.Item{
		{Ordinal: 0, Key: "=1+1", State: workqueue.OutcomeDone, Step: "s", Result: []byte(`{"a": 1}`)},
		{Ordinal: 1, Key: "B", State: workqueue.OutcomeDone, Step: "s", Result: []byte{0, 1}, ContentType: "image/png"},
		{Ordinal: 2, Key: "C", State: workqueue.OutcomeDone, Step: "s", Result: []byte("-x"), ContentType: "text/plain"},
		{Ordinal: 3, Key: "D", State: workqueue.OutcomeFailed, Step: "r", ErrorCode: "BAD", ErrorMessage: "@no;",
			Accepted: true},
		{Ordinal: 4, Key: "E", State: workqueue.OutcomeMissing},
	}
}

func exportItems(t *testing.T, items []*export.Item, format func(*bufio.Writer) exportWriter) []byte {
	t.Helper()
	var text bytes.Buffer
	buffer := bufio.NewWriter(&text)
	out := format(buffer)
	for _, item := range items {
		testenv.NoError(t, out.line(item))
	}
	testenv.NoError(t, out.finish())
	testenv.NoError(t, buffer.Flush())
	return text.Bytes()
}

// PROOF: who may do what, 9.
// What is not text is in base64, and what a spreadsheet would run is defused unless that is switched off, keys too.
func TestExportLines(t *testing.T) {
	t.Parallel()
	lines := &exportTable{columns: columnsIn(inLines, false)}
	plain := &exportTable{columns: columnsIn(inTables, false)}
	codes := &exportTable{columns: plain.columns[3:4]}
	for name, c := range map[string]struct {
		format func(*bufio.Writer) exportWriter
		want   string
	}{
		"one column": {func(w *bufio.Writer) exportWriter { return &csvExport{out: w, table: codes} },
			"error_code\n\"\"\n\"\"\n\"\"\nBAD\n\"\"\n"},
		"csv": {func(w *bufio.Writer) exportWriter { return &csvExport{out: w, table: plain} },
			"key,state,result,error_code,error_message,accepted\n'=1+1,done,\"{\"\"a\"\":1}\",,,\nB,done,AAE=,,,\n" +
				"C,done,'-x,,,\nD,failed,,BAD,\"'@no;\",true\nE,missing,,,,\n"},
		"raw": {func(w *bufio.Writer) exportWriter { return &csvExport{out: w, table: plain, raw: true} },
			"key,state,result,error_code,error_message,accepted\n=1+1,done,\"{\"\"a\"\":1}\",,,\nB,done,AAE=,,,\n" +
				"C,done,-x,,,\nD,failed,,BAD,\"@no;\",true\nE,missing,,,,\n"},
		"ndjson": {func(w *bufio.Writer) exportWriter { return newObjectExport(w, lines, nil) },
			`{"ordinal":0,"key":"=1+1","state":"done","step":"s","result":{"a":1}}
{"ordinal":1,"key":"B","state":"done","step":"s","result_bytes":"AAE=","content_type":"image/png"}
{"ordinal":2,"key":"C","state":"done","step":"s","result_bytes":"LXg=","content_type":"text/plain"}
{"ordinal":3,"key":"D","state":"failed","step":"r","error":{"code":"BAD","message":"@no;"},"accepted":true}
{"ordinal":4,"key":"E","state":"missing"}
`},
	} {
		testenv.Same(t, string(exportItems(t, exportedItems(), c.format)), c.want, "%s", name)
	}
}

func TestExportToParquet(t *testing.T) {
	t.Parallel()
	type parquetRow struct {
		Ordinal      int32   `parquet:"ordinal"`
		Key          string  `parquet:"key"`
		State        string  `parquet:"state"`
		Step         *string `parquet:"step,optional"`
		Result       *string `parquet:"result,optional"`
		ResultBytes  []byte  `parquet:"result_bytes,optional"`
		ContentType  *string `parquet:"content_type,optional"`
		ErrorCode    *string `parquet:"error_code,optional"`
		ErrorMessage *string `parquet:"error_message,optional"`
		Accepted     bool    `parquet:"accepted"`
	}
	table := &exportTable{columns: columnsIn(inParquet, false)}
	file := exportItems(t, exportedItems(), func(w *bufio.Writer) exportWriter { return newParquetTable(w, table) })
	rows := testenv.Must(parquet.Read[parquetRow](bytes.NewReader(file), int64(len(file))))(t)
	testenv.MustSame(t, len(rows), 5, "rows")
	text := func(s string) *string { return &s }
	for i, want := range []parquetRow{
		{Key: "=1+1", State: "done", Step: text("s"), Result: text(`{"a": 1}`)},
		{Ordinal: 1, Key: "B", State: "done", Step: text("s"), ResultBytes: []byte{0, 1}, ContentType: text("image/png")},
		{Ordinal: 2, Key: "C", State: "done", Step: text("s"), ResultBytes: []byte("-x"), ContentType: text("text/plain")},
		{Ordinal: 3, Key: "D", State: "failed", Step: text("r"), ErrorCode: text("BAD"), ErrorMessage: text("@no;"),
			Accepted: true},
		{Ordinal: 4, Key: "E", State: "missing"},
	} {
		if !reflect.DeepEqual(rows[i], want) {
			t.Errorf("row %d is %+v; want %+v", i, rows[i], want)
		}
	}
	opened := testenv.Must(parquet.OpenFile(bytes.NewReader(file), int64(len(file))))(t)
	var names []string
	for _, field := range opened.Schema().Fields() {
		names = append(names, field.Name())
	}
	testenv.SameList(t, names, table.names(), "the file has the columns")
}

// The parts of all steps follow the key: what is not JSON as its bytes, numbers with all digits.
func TestPartsInEveryFormat(t *testing.T) {
	t.Parallel()
	item := &export.Item{Key: "k", State: workqueue.OutcomeFailed, Step: "c", ErrorCode: "NO", Parts: []export.Item{
		{State: workqueue.OutcomeDone, Result: []byte(`{"n": 12345678901234567890.10, "t":"<"}`)},
		{State: workqueue.OutcomeDone, Result: []byte{0, 255}, ContentType: "application/pdf"},
		{State: workqueue.OutcomeFailed, ErrorCode: "NO", ErrorMessage: "none"}, {}}}
	steps := []string{"a", "b", "c", "d"}
	each := func(yield func(*export.Item) error) error { return yield(item) }
	write := func(format string, shape exportShape) []byte {
		shape.parts = steps
		form := exportForm{format: format, table: testenv.Must(tableOf(each, shape))(t)}
		return exportItems(t, []*export.Item{item}, func(w *bufio.Writer) exportWriter {
			_, out, err := form.writer(w, t.TempDir(), nil)
			testenv.NoError(t, err)
			return out
		})
	}
	for _, c := range []struct{ got, want string }{
		{string(write("ndjson", exportShape{in: inLines})), `{"ordinal":0,"key":"k","state":"failed","step":"c",` +
			`"error":{"code":"NO","message":""},"parts":{"a":{"state":"done","result":{"n":12345678901234567890.10,"t":"<"}},` +
			`"b":{"state":"done","result_bytes":"AP8=","content_type":"application/pdf"},` +
			`"c":{"state":"failed","error":{"code":"NO","message":"none"}}}}` + "\n"},
		{string(write("csv", exportShape{in: inTables, columns: []string{"key", "parts.a.result", "parts.b.result",
			"parts.c.state", "parts.c.error_code", "parts.d.state"}})), "key,parts.a.result,parts.b.result,parts.c.state," +
			"parts.c.error_code,parts.d.state\n" +
			"k,\"{\"\"n\"\":12345678901234567890.10,\"\"t\"\":\"\"<\"\"}\",AP8=,failed,NO,\n"},
		{string(write("ndjson", exportShape{in: inTables, flat: true})), `{"tranche.key":"k","tranche.state":"failed",` +
			`"tranche.error_code":"NO","result.a.n":12345678901234567890.10,"result.a.t":"<","tranche.parts.a.state":"done",` +
			`"tranche.parts.b.result":"AP8=","tranche.parts.b.state":"done","tranche.parts.c.state":"failed",` +
			`"tranche.parts.c.error_code":"NO","tranche.parts.c.error_message":"none"}` + "\n"},
	} {
		testenv.Same(t, c.got, c.want, "the export")
	}
	file := write("parquet", exportShape{in: inParquet})
	rows, err := parquet.Read[struct {
		A    *string `parquet:"parts.a.result,optional"`
		B    []byte  `parquet:"parts.b.result_bytes,optional"`
		Code *string `parquet:"parts.c.error_code,optional"`
		D    *string `parquet:"parts.d.state,optional"`
	}](bytes.NewReader(file), int64(len(file)))
	if err != nil || len(rows) != 1 || *rows[0].A != string(item.Parts[0].Result) ||
		!bytes.Equal(rows[0].B, []byte{0, 255}) ||
		*rows[0].Code != "NO" || rows[0].D != nil {
		t.Errorf("%+v, %v", rows, err)
	}
	book := testenv.Must(excelize.OpenReader(bytes.NewReader(write("xlsx", exportShape{in: inTables, flat: true}))))(t)
	defer func() { _ = book.Close() }()
	if cells, err := book.GetRows(xlsxSheet); err != nil || !slices.Contains(cells[1], "12345678901234567890.10") {
		t.Errorf("%q, %v", cells, err)
	}
	known := testenv.Must(tableOf(each, exportShape{flat: true, parts: steps}))(t)
	item.Parts[3] = export.Item{State: workqueue.OutcomeDone, Result: []byte(`{"late":1}`)}
	_, err = known.row(item)
	testenv.Says(t, err, "export again", "a field that came later")
	large := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	for i, kind := range []string{"", "application/pdf", "", "text/plain"} {
		item.Parts[i] = export.Item{State: workqueue.OutcomeDone, Large: &export.LargeResult{ContentType: kind}}
	}
	var out bytes.Buffer
	var written []int // before each is opened
	w := bufio.NewWriter(&out)
	lines := newObjectExport(w, testenv.Must(tableOf(each, exportShape{in: inLines, parts: steps}))(t),
		func(uuid.UUID) (largeReader, error) {
			written = append(written, out.Len()/len(large))
			return bytes.NewReader(large), nil
		})
	testenv.NoError(t, errors.Join(lines.line(item), w.Flush()))
	testenv.SameList(t, written, []int{0, 1, 2, 3}, "parts written before each is read")
	testenv.Same(t, json.Valid(out.Bytes()), true, "valid JSON")
}

// To add a column of exports takes a row: it is in each format, and can be chosen.
//
//nolint:paralleltest // it changes the table
func TestAColumnIsOneRow(t *testing.T) {
	before := itemColumns
	t.Cleanup(func() { itemColumns = before })
	itemColumns = append(slices.Clone(itemColumns), exportColumn{name: "moon", in: inAll,
		cell: func(r *exportRow) exportCell { return textCell("over " + r.item.Key) }})
	item := []*export.Item{{Key: "k", State: workqueue.OutcomeDone, Result: []byte("{}")}}
	for name, format := range map[string]struct {
		in    formats
		write func(*bufio.Writer, *exportTable) exportWriter
		want  string
	}{
		"ndjson": {inLines, func(w *bufio.Writer, t *exportTable) exportWriter { return newObjectExport(w, t, nil) },
			`"moon":"over k"`},
		"csv": {inTables, func(w *bufio.Writer, t *exportTable) exportWriter { return &csvExport{out: w, table: t} },
			",over k\n"},
		"parquet": {inParquet, func(w *bufio.Writer, t *exportTable) exportWriter { return newParquetTable(w, t) }, "moon"},
	} {
		table := testenv.Must(tableOf(nil, exportShape{in: format.in}))(t)
		got := exportItems(t, item, func(w *bufio.Writer) exportWriter { return format.write(w, table) })
		if !bytes.Contains(got, []byte(format.want)) {
			t.Errorf("%s: got %q; want %q in it", name, got, format.want)
		}
	}
	if names := (&exportTable{columns: flatColumns(nil, nil)}).names(); !slices.Contains(names, "tranche.moon") {
		t.Errorf("a flat table has the columns %q", names)
	}
	testenv.Must(tableOf(nil, exportShape{in: inTables, columns: []string{"moon"}}))(t)
}

// The page about exports names all columns.
func TestColumnsAreDocumented(t *testing.T) {
	t.Parallel()
	page := testenv.Must(os.ReadFile(filepath.Join("..", "..", "..", "docs", "gather.md")))(t)
	for format, in := range map[string]formats{"csv": inTables, "parquet": inParquet} {
		_, line, _ := strings.Cut(string(page), "`--format "+format+"`")
		line, _, _ = strings.Cut(line, "\n")
		for _, name := range (&exportTable{columns: columnsIn(in, false)}).names() {
			testenv.Has(t, line, name, "docs/gather.md, on the columns of --format %s", format)
		}
	}
}
