package runs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/xuri/excelize/v2"
	"golang.org/x/text/encoding/unicode"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

// What is easily lost on the way into a table and back.
const givenFirst = `{"id":"K1","due":"2024-01-05","active":true,"flag":"true","amt":10.5,"zip":"00123",` +
	`"ctl":"a\u0001b","esc":"_x0041_","crlf":"a\r\nb","cr":"a\rb","sp":" x ","nl":"a\nb","big":12345678901234567,` +
	`"neg":-5,"f":"=1+1","ap":"'=x","tab":"\tx","list":[1,2],"obj":{"a":1},"nul":null,"emp":"","ffff":"a` + "\uffff" +
	`b","e":1e3,"pct":"5%","num":"1.10","when":"10:30","hour":"9:05","tranche.key":"k","tranche.key_":""}`

const givenSecond = `{"id":"=1+1","due":"2024-01-06","active":false,"flag":"false","amt":1e21,"zip":"007",` +
	`"ctl":"\u001b[0m","esc":"x_x000D_y","crlf":"\r\n","cr":"\r","sp":"` + "\u00a0" + `","nl":"\n",` +
	`"big":9007199254740993,"neg":-0.10,"f":"+49 170","ap":"''","tab":" ","list":[],"obj":{},"nul":null,"emp":"",` +
	`"ffff":"` + "\ufffe" + `","e":1.50,"pct":"0.05","num":"1e5","when":"11:00","hour":"",` +
	`"tranche.key_":1,"tranche.key":2}`

// giveBack writes the items as a flat export in a format, has it changed, and reads it as one that is given back.
func giveBack(t *testing.T, format string, change func([]byte) []byte) (payloads []string, err error) {
	t.Helper()
	have := map[string]string{"K1": givenFirst, "=1+1": givenSecond}
	var names fieldNames
	names.known = map[string]bool{}
	items := make([]*export.Item, 0, len(have))
	for _, key := range []string{"K1", "=1+1"} {
		items = append(items, &export.Item{Key: key, State: workqueue.OutcomeFailed, ErrorCode: "no",
			Payload: []byte(have[key])})
		testenv.NoError(t, names.meet(objectOf([]byte(have[key])), []byte(have[key])))
	}
	table := &exportTable{flat: true, columns: flatColumns(names.names, nil)}
	file := exportItems(t, items, func(w *bufio.Writer) exportWriter {
		form := exportForm{format: strings.TrimSuffix(format, " in UTF-16"), table: table}
		_, out, err := form.writer(w, t.TempDir(), nil)
		testenv.NoError(t, err)
		return out
	})
	if file = change(file); strings.HasSuffix(format, "UTF-16") {
		file = testenv.Must(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().Bytes(file))(t)
	}
	cfg := intake.Config{Key: "id", Spool: &intake.Spool{Dir: t.TempDir()}}
	cfg.Export = &intake.Export{Config: cfg, Payloads: func([]string) (map[string]string, error) { return have, nil }}
	rows, err := intake.Open(bytes.NewReader(file), cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for {
		var item row.Item
		if err := rows.Next(&item); errors.Is(err, io.EOF) {
			return payloads, nil
		} else if err != nil {
			return nil, err
		}
		payloads = append(payloads, string(item.Payload))
	}
}

// PROOF: who may do what, 9.
// An export that is given back changes nothing, and one of which a cell was changed changes that one.
func TestExportsThatAreGivenBack(t *testing.T) {
	t.Parallel()
	replaced := func(old, by string) func([]byte) []byte {
		return func(file []byte) []byte { return bytes.Replace(file, []byte(old), []byte(by), 1) }
	}
	for format, changes := range map[string]func([]byte) []byte{
		formatCSV:                replaced("00123", "00124"),
		formatCSV + " in UTF-16": replaced("00123", "00124"),
		formatNDJSON:             replaced(`"00123"`, `"00124"`),
		formatXLSX:               func(file []byte) []byte { return changedBook(t, file, map[string]any{"zip": "00124"}) },
		formatParquet:            func(file []byte) []byte { return changedParquet(t, file, "00123", "00124") },
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			got := testenv.Must(giveBack(t, format, func(file []byte) []byte { return file }))(t)
			testenv.SameList(t, got, []string{givenFirst, givenSecond}, "unchanged")
			got = testenv.Must(giveBack(t, format, changes))(t)
			testenv.SameList(t, got, []string{strings.Replace(givenFirst, "00123", "00124", 1), givenSecond}, "changed")
		})
	}
	for old, by := range map[string]string{"a\r\nb": "a\r\nc", "a\nb": "c\r\nd"} {
		got := testenv.Must(giveBack(t, formatCSV, replaced(old, by)))(t)
		quoted := strings.NewReplacer("\r", `\r`, "\n", `\n`)
		want := strings.Replace(givenFirst, `"`+quoted.Replace(old)+`"`, `"`+quoted.Replace(by)+`"`, 1)
		testenv.Same(t, got[0], want, "%q for %q", by, old)
	}
}

func changedParquet(t *testing.T, file []byte, old, by string) []byte {
	t.Helper()
	rows := testenv.Must(parquet.Read[any](bytes.NewReader(file), int64(len(file))))(t)
	for _, r := range rows {
		for name, value := range r.(map[string]any) {
			if value == old {
				r.(map[string]any)[name] = by
			}
		}
	}
	in := testenv.Must(parquet.OpenFile(bytes.NewReader(file), int64(len(file))))(t)
	var out bytes.Buffer
	w := parquet.NewGenericWriter[any](&out, in.Schema())
	testenv.Must(w.Write(rows))(t)
	testenv.NoError(t, w.Close())
	return out.Bytes()
}

// changedBook has values in the first row's cells, by the names of their columns.
func changedBook(t *testing.T, file []byte, cells map[string]any) []byte {
	t.Helper()
	book := testenv.Must(excelize.OpenReader(bytes.NewReader(file)))(t)
	defer func() { _ = book.Close() }()
	rows := testenv.Must(book.GetRows(xlsxSheet))(t)
	for name, value := range cells {
		at, _ := excelize.CoordinatesToCellName(slices.Index(rows[0], name)+1, 2)
		styled, isStyled := value.(styledCell)
		if isStyled {
			value = styled.value
		}
		var err error
		if isStyled && strings.HasPrefix(styled.format, "=") {
			err = book.SetCellFormula(xlsxSheet, at, styled.format)
		} else if digits, ok := value.(json.Number); ok {
			err = book.SetCellDefault(xlsxSheet, at, string(digits))
		} else {
			err = book.SetCellValue(xlsxSheet, at, value)
		}
		testenv.NoError(t, err)
		if !isStyled {
			continue
		}
		style, err := book.NewStyle(&excelize.Style{CustomNumFmt: &styled.format})
		if err == nil {
			err = book.SetCellStyle(xlsxSheet, at, at, style)
		}
		testenv.NoError(t, err)
	}
	var out bytes.Buffer
	testenv.NoError(t, book.Write(&out))
	return out.Bytes()
}

// styledCell is a number with a format, or a formula that no program has computed.
type styledCell struct {
	value  float64
	format string
}

// Values of a workbook's cells have types and formats; texts become what the cell shows, and what has no such form is
// refused with the cell.
func TestWhatIsTypedIntoAWorkbook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		column      string
		value       any
		want, wrong string
	}{
		"a date":                     {"due", styledCell{45306, "yyyy-mm-dd"}, `"2024-01-15"`, ""},
		"the same date":              {"due", styledCell{45296, "m/d/yy"}, `"2024-01-05"`, ""},
		"months and a weekday":       {"due", styledCell{45306, `[$-409]dddd, mmm dd`}, `"2024-01-15"`, ""},
		"the first of March":         {"due", styledCell{61, "yyyy"}, `"1900-03-01"`, ""},
		"the first of January":       {"due", styledCell{1, "d.m."}, `"1900-01-01"`, ""},
		"a date with a time":         {"due", styledCell{45306.5, "yyyy-mm-dd hh:mm"}, `"2024-01-15T12:00:00"`, ""},
		"a time":                     {"when", styledCell{0.5208333333321207, "hh:mm"}, `"12:30"`, ""},
		"a time with seconds":        {"when", styledCell{0.52090277777, "hh:mm:ss"}, `"12:30:06"`, ""},
		"an hour of one digit":       {"hour", styledCell{8.0 / 24, "h:mm"}, `"8:00"`, ""},
		"the same hour":              {"hour", styledCell{545.0 / 1440, "h:mm"}, `"9:05"`, ""},
		"the same time":              {"when", styledCell{0.4375, "h:mm AM/PM"}, `"10:30"`, ""},
		"a duration":                 {"when", styledCell{1.0625, "[h]:mm"}, `"25:30"`, ""},
		"no day":                     {"due", styledCell{60, "yyyy-mm-dd"}, "", "cell "},
		"before days":                {"due", styledCell{-1, "yyyy-mm-dd"}, "", "as a date or time"},
		"a truth over a text":        {"flag", false, `"false"`, ""},
		"the same truth":             {"flag", true, `"true"`, ""},
		"a truth over a truth":       {"active", false, `false`, ""},
		"a truth over nothing":       {"nul", true, `true`, ""},
		"a number over a text":       {"num", 7.1, `"7.1"`, ""},
		"a number over nothing":      {"nul", 7.1, `7.1`, ""},
		"a computed number":          {"amt", 0.1 + 0.2, `0.3`, ""},
		"percents over a text":       {"pct", styledCell{0.06, "0%"}, "", "shown as percents"},
		"percents over nothing":      {"nul", styledCell{0.06, "0%"}, `0.06`, ""},
		"money over a number":        {"amt", styledCell{12.5, `#,##0.00 "€"`}, `12.5`, ""},
		"a date over a number":       {"amt", styledCell{45306, "yyyy-mm-dd"}, "", `"amt": "2024-01-15" is not written`},
		"a text":                     {"due", "FALSE", `"FALSE"`, ""},
		"no value of a formula":      {"due", styledCell{0, "=A1"}, "", "has a formula without a value"},
		"a key as a number":          {"tranche.key", 7, "", "holds a number or truth, but keys are texts"},
		"a zip without zeros":        {"zip", 123, "", `it holds "123" where the item has "00123"`},
		"a zip as a text":            {"zip", "123", `"123"`, ""},
		"a long number over nothing": {"nul", json.Number("1234567890123456"), `1234567890123456`, ""},
		"a long number rounded":      {"big", 12345678901234600, "", `it holds "12345678901234600"`},
		"a long number as shown":     {"nul", json.Number("1.23456789012345E+15"), "", "may have rounded"},
		"a lost character":           {"ctl", "a\ufffdc", "", "U+FFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := giveBack(t, formatXLSX, func(file []byte) []byte {
				return changedBook(t, file, map[string]any{c.column: c.value})
			})
			if c.wrong != "" {
				testenv.Says(t, err, c.wrong, "%q", got)
				return
			}
			if err != nil || string(objectOf([]byte(got[0]))[c.column]) != c.want || got[1] != givenSecond {
				t.Errorf("%v, %s is %s; want %s", err, c.column, objectOf([]byte(got[0]))[c.column], c.want)
			}
		})
	}
}
