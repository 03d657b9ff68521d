package runs

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

func exportedItems() []*export.Item {
	return []*export.Item{
		{Ordinal: 0, Key: "=1+1", State: workqueue.OutcomeDone, Step: "s", Result: []byte(`{"a": 1}`)},
		{Ordinal: 1, Key: "B", State: workqueue.OutcomeDone, Step: "s", Result: []byte{0, 1}, ContentType: "image/png"},
		{Ordinal: 2, Key: "C", State: workqueue.OutcomeDone, Step: "s", Result: []byte("-x"), ContentType: "text/plain"},
		{Ordinal: 3, Key: "D", State: workqueue.OutcomeFailed, Step: "r", ErrorCode: "BAD", ErrorMessage: "@no",
			Accepted: true},
		{Ordinal: 4, Key: "E", State: workqueue.OutcomeMissing},
	}
}

func exportAll(t *testing.T, format func(*bufio.Writer) exportWriter) []byte {
	t.Helper()
	return exportItems(t, exportedItems(), format)
}

func exportItems(t *testing.T, items []*export.Item, format func(*bufio.Writer) exportWriter) []byte {
	t.Helper()
	var text bytes.Buffer
	buffer := bufio.NewWriter(&text)
	out := format(buffer)
	for _, item := range items {
		if err := out.line(item); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.finish(); err != nil {
		t.Fatal(err)
	}
	if err := buffer.Flush(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// PROOF: who may do what, 9.
// What is no text is in base64, and what a spreadsheet would run is defused unless that is switched off; keys, by which
// tables are joined, are as they are.
func TestExportLines(t *testing.T) {
	t.Parallel()
	plain := &exportTable{columns: plainColumns(false)}
	for name, c := range map[string]struct {
		format func(*bufio.Writer) exportWriter
		want   string
	}{
		"csv": {func(w *bufio.Writer) exportWriter { return newCSVExport(w, plain, false) },
			"key,state,result,error_code,error_message,accepted\n=1+1,done,\"{\"\"a\"\":1}\",,,\nB,done,AAE=,,,\n" +
				"C,done,'-x,,,\nD,failed,,BAD,'@no,true\nE,missing,,,,\n"},
		"raw": {func(w *bufio.Writer) exportWriter { return newCSVExport(w, plain, true) },
			"key,state,result,error_code,error_message,accepted\n=1+1,done,\"{\"\"a\"\":1}\",,,\nB,done,AAE=,,,\n" +
				"C,done,-x,,,\nD,failed,,BAD,@no,true\nE,missing,,,,\n"},
		"ndjson": {func(w *bufio.Writer) exportWriter { return newNDJSONExport(w, nil) },
			`{"ordinal":0,"key":"=1+1","state":"done","step":"s","result":{"a":1}}
{"ordinal":1,"key":"B","state":"done","step":"s","result_bytes":"AAE=","content_type":"image/png"}
{"ordinal":2,"key":"C","state":"done","step":"s","result_bytes":"LXg=","content_type":"text/plain"}
{"ordinal":3,"key":"D","state":"failed","step":"r","error":{"code":"BAD","message":"@no"},"accepted":true}
{"ordinal":4,"key":"E","state":"missing"}
`},
	} {
		if got := string(exportAll(t, c.format)); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

func TestExportToParquet(t *testing.T) {
	t.Parallel()
	file := exportAll(t, func(w *bufio.Writer) exportWriter { return newParquetExport(w) })
	rows, err := parquet.Read[parquetRow](bytes.NewReader(file), int64(len(file)))
	if err != nil || len(rows) != 5 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; r.Key != "=1+1" || r.Result == nil || *r.Result != `{"a": 1}` || r.ResultBytes != nil ||
		*r.Step != "s" {
		t.Errorf("%+v", r)
	}
	if r := rows[1]; !bytes.Equal(r.ResultBytes, []byte{0, 1}) || r.Result != nil || *r.ContentType != "image/png" {
		t.Errorf("%+v", r)
	}
	if r := rows[3]; r.State != "failed" || *r.ErrorCode != "BAD" || *r.ErrorMessage != "@no" || r.Result != nil ||
		!r.Accepted {
		t.Errorf("%+v", r)
	}
	if r := rows[4]; r.State != "missing" || r.Ordinal != 4 || r.Step != nil || r.ErrorCode != nil {
		t.Errorf("%+v", r)
	}
}
