package intake_test

import (
	"io"
	"strings"
	"testing"

	"github.com/xuri/excelize/v2"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 9.
// What a table has made of values is undone, what it does not show stays, and what was changed keeps its kind.
func TestRowsOfAnExport(t *testing.T) {
	t.Parallel()
	const have = `{"id":"1","n":12.50,"s":"007","t":"=x","b":true,"o":{"a":[1]},"z":null,"e":""}`
	const digits = `{"zip":"01067","tel":"+4930123","eur":"1,10","card":"1234567890123456","big":9876543210987654,` +
		`"far":1.5e999}`
	const typed = `{"due":"2024-01-05","at":"9:05","to":"09:05:00","ok":"true","py":"True","ze":"00:05"}`
	for name, c := range map[string]struct{ in, want, wrong string }{
		"as it was": {in: "tranche.key,id,n,s,t,b,o,z,e,tranche.state\n1,1,12.50,007,'=x,true,\"{\"\"a\"\":[1]}\",,,failed\n",
			want: have},
		"as a spreadsheet writes it": {in: "id;n;b;tranche.key\n1;12.5;TRUE;1\n", want: have},
		"changed": {in: "tranche.key,n,s,t,b,o,z,e,new,result.r,tranche.x\n1,3,8,'=y,false,[],q,w,v,r,s\n",
			want: `{"id":"1","n":3,"s":"8","t":"=y","b":false,"o":[],"z":"q","e":"w","new":"v"}`},
		"emptied": {in: "tranche.key,n,s,t,b,o,z,e\n1,,,,,,,\n",
			want: `{"id":"1","n":null,"s":"","t":"","b":null,"o":null,"z":null,"e":""}`},
		"a number that is none": {in: "tranche.key,n\n1,\"1,5\"\n", wrong: `line 2, field "n"`},
		"objects": {in: `{"tranche.key":"1","n":4,"s":"9"}`,
			want: strings.NewReplacer("12.50", "4", "007", "9").Replace(have)},
		"line breaks of a spreadsheet": {in: "tranche.key,n\n\"k\n1\",2\n", want: `{"k":1,"n":"2"}`},
		"line breaks of two items":     {in: "tranche.key,n\n\"t\n1\",2\n", wrong: "several items"},
		"line breaks that are mixed": {in: "tranche.key,n\n\"m\n1\n2\",2\n",
			wrong: `line 2, field "tranche.key": no item has this key`},
		"a key that was a formula": {in: "tranche.key,n\n'=k,2\n", want: `{"k":2,"n":"2"}`},
		"the same, raw":            {in: "tranche.key,n\n=k,2\n", want: `{"k":2,"n":"2"}`},
		"a key with an apostrophe": {in: "tranche.key,n\n''=q,2\n", want: `{"k":3,"n":"2"}`},
		"the same key, raw":        {in: "tranche.key,n\n'=q,2\n", want: `{"k":3,"n":"2"}`},
		"a key that may be two":    {in: "tranche.key,n\n'=two,2\n", wrong: "or an apostrophe"},
		"a key that no one has":    {in: "tranche.key,n\n7,1\n", want: `{"n":"1"}`},
		"no export":                {in: "id,n\n1,2\n", want: `{"m":"2"}`},
		"a field of that name":     {in: "tranche.key,result.r\nr,2\n", want: `{"result.r":"2"}`},
		"an export that is not flat": {in: "key,state,result,error_code,error_message,accepted\n1,failed,,c,m,\n",
			wrong: "--flat"},
		"objects of an export that is not flat": {in: `{"ordinal":0,"key":"1","state":"failed","step":"s"}`, wrong: "--flat"},
		"a heading that was a formula":          {in: "tranche.key,'=f\nf,2\n", want: `{"=f":2}`},
		"a name that is stored with escapes":    {in: "tranche.key,größe\nu,10\n", want: `{"gr\u00f6\u00dfe":"10"}`},
		"such a name, changed":                  {in: `{"tranche.key":"u","größe":"9"}`, want: `{"gr\u00f6\u00dfe":"9"}`},
		"a number out of range": {in: "tranche.key,far\nd,0E+00\n",
			want: strings.Replace(digits, "1.5e999", "0E+00", 1)},
		"a zip without its zero": {in: "tranche.key,zip\nd,1067\n",
			wrong: `line 2, field "zip": it holds "1067"`},
		"a zip with other digits": {in: "tranche.key,zip\nd,1068\n",
			want: strings.Replace(digits, "01067", "1068", 1)},
		"a phone without its plus": {in: "tranche.key,tel\nd,4930123\n", wrong: `"+4930123"`},
		"a price without its zero": {in: "tranche.key;eur\nd;1,1\n", wrong: `"1,10"`},
		"a price with a point": {in: "tranche.key,eur\nd,1.10\n",
			want: strings.Replace(digits, "1,10", "1.10", 1)},
		"a card as a spreadsheet shows it": {in: "tranche.key,card\nd,1.23457E+15\n", wrong: `"1234567890123456"`},
		"the same in German": {in: "tranche.key;card\nd;1,23457E+15\n",
			wrong: "dropped zeros or digits"},
		"a card cut": {in: "tranche.key,card\nd,1234567890123450\n",
			wrong: "dropped zeros or digits"},
		"a card rounded": {in: "tranche.key,card\nd,1234567890123460\n",
			wrong: "dropped zeros or digits"},
		"another card": {in: "tranche.key,card\nd,1234567890123457\n",
			want: strings.Replace(digits, `3456"`, `3457"`, 1)},
		"a long number cut": {in: "tranche.key,big\nd,9.87654321098765E+15\n",
			wrong: `field "big"`},
		"another long number": {in: "tranche.key,big\nd,9876543210987655\n",
			want: strings.Replace(digits, "7654,", "7655,", 1)},
		"what a spreadsheet makes of texts": {want: typed,
			in: "tranche.key,due,at,to,ok,py,ze\nw,2024-01-05,09:05,9:05:00,TRUE,TRUE,0:05\n"},
		"such texts, changed": {in: "tranche.key,due,at,ok\nw,2024-05-01,08:30:00,FALSE\n", want: strings.NewReplacer(
			"01-05", "05-01", `"9:05`, `"8:30`, `"true`, `"false`).Replace(typed)},
		"a date in German":          {in: "tranche.key;due\nw;05.01.2024\n", wrong: `"due": it holds "05.01.2024" where`},
		"another date in English":   {in: "tranche.key,due\nw,1/6/24\n", wrong: "rewritten a date"},
		"a field called as the key": {in: "tranche.key,tranche.key_,n\nx,9,2\n", want: `{"tranche.key":9,"n":2}`},
		"two headings of one name":  {in: "tranche.key,=g,'=g\n7,2,3\n", wrong: `field "=g": two columns`},
		"an empty heading":          {in: "tranche.key,,n\n7,0,3\n", wrong: `field "column2": the heading of this column`},
		"a column without anything": {in: "tranche.key,,n\n7,,3\n", want: `{"n":"3"}`},
		"columns":                   {in: "tranche.key,n,s\n1,3,8\n", wrong: "columns and rename do not apply"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := intake.Config{Columns: []string{"n"}, Rename: map[string]string{"n": "m"}, Key: "id"}
			optional := intake.Config{Types: map[string]string{"optional": "number"}, Partial: true}
			switch {
			case name == "columns":
				optional.Columns = plan.Columns
			case name == "no export":
				plan.Key = "m"
			case strings.HasSuffix(name, "not flat"):
				plan.Key = ""
			}
			plan.Export = &intake.Export{Config: optional, Payloads: func([]string) (map[string]string, error) {
				return map[string]string{"1": have, "d": digits, "w": typed, "r": `{"result.r":"1"}`, "f": `{"=f":1}`,
					"x": `{"tranche.key":8,"n":1}`, "u": `{"gr\u00f6\u00dfe":"10"}`,
					"k\r\n1": `{"k":1}`, "=k": `{"k":2}`, "'=q": `{"k":3}`, "=two": "{}", "'=two": "{}", "t\n1": "{}",
					"t\r1": "{}", "m\r1\n2": "{}"}, nil
			}}
			r, err := intake.Open(strings.NewReader(c.in), plan)
			var item row.Item
			if err == nil {
				err = r.Next(&item)
			}
			if c.wrong != "" {
				testenv.Says(t, err, c.wrong, "refused")
				return
			}
			testenv.NoError(t, err)
			testenv.MustSame(t, string(item.Payload), c.want, "the payload")
			testenv.Is(t, r.Next(&item), io.EOF, "after the last")
		})
	}
}

// What only looks like a workbook is refused, and does no harm.
func TestWorkbooksThatAreNone(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"PK\x03\x04", "PK\x03\x04" + strings.Repeat("x", 1000)} {
		_, err := intake.Open(strings.NewReader(in), intake.Config{Spool: &intake.Spool{}, Export: &intake.Export{}})
		testenv.Says(t, err, "save the sheet as CSV", "a sheet")
	}
}

// A workbook that is an export, but not a flat one, is not advised to be saved as CSV, which would be none either.
func TestAWorkbookThatIsNotFlat(t *testing.T) {
	t.Parallel()
	book := excelize.NewFile()
	heading := []any{"key", "state", "result", "error_code", "error_message", "accepted"}
	testenv.NoError(t, book.SetSheetRow("Sheet1", "A1", &heading))
	file := testenv.Must(book.WriteToBuffer())(t)
	_, err := intake.Open(file, intake.Config{Spool: &intake.Spool{Dir: t.TempDir()}, Export: &intake.Export{}})
	if err == nil || !strings.Contains(err.Error(), "run export --flat") || strings.Contains(err.Error(), "CSV") {
		t.Error(err)
	}
}

// A cell of a spreadsheet holds 32,767 units of UTF-16, of which an emoji takes two.
func TestCellsOfASpreadsheet(t *testing.T) {
	t.Parallel()
	for text, long := range map[string]bool{
		strings.Repeat("ü", 32_767): false, strings.Repeat("ü", 32_768): true,
		strings.Repeat("😀", 16_383): false, strings.Repeat("😀", 16_384): true,
	} {
		if said := intake.TooLongForCell(text); (said != "") != long {
			t.Errorf("%.8s…, %d bytes: %q", text, len(text), said)
		}
	}
}

// What is defused comes back as it was, and what looks like it as well.
func TestFormulasComeBack(t *testing.T) {
	t.Parallel()
	for cell, want := range map[string]string{
		"=1+1": "'=1+1", "@x": "'@x", "-x": "'-x", "'=1": "''=1", "''=1": "'''=1", "'it is": "'it is", "": "", "'": "'",
		"-12.5": "-12.5", "+49301234567": "+49301234567", "+49 30": "'+49 30", "\tx": "'\tx", "plain": "plain", "＝1": "'＝1",
	} {
		got := intake.Defuse(cell)
		testenv.Same(t, got, want, "%q is written as", cell)
		testenv.Same(t, intake.Armed(got), cell, "%q is written as %q, and read as", cell, got)
	}
}
