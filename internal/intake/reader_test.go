package intake_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// parsed is an Item in a form that can be compared and kept.
type parsed struct {
	key, payload string
	line         int
}

// readAll reads to the end or to the first error, which is nil at the end.
func readAll(in io.Reader, cfg intake.Config) ([]parsed, error) {
	r, err := intake.Open(in, cfg)
	if err != nil {
		return nil, err
	}
	var rows []parsed
	for {
		var item row.Item
		err := r.Next(&item)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			if again := r.Next(&item); again != err { //nolint:errorlint // it must be the very same
				return rows, errors.New("the second error differs from the first: " + again.Error())
			}
			return rows, err
		}
		rows = append(rows, parsed{item.Key, string(item.Payload), item.Line})
	}
}

func checkRows(t *testing.T, got, want []parsed) {
	t.Helper()
	testenv.MustSame(t, len(got), len(want), "rows")
	for i := range want {
		testenv.Same(t, got[i], want[i], "row %d", i)
	}
}

func TestGoodInput(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in   string
		cfg  intake.Config
		want []parsed
	}{
		"csv": {in: "id,name\n7,Ann\n8,\n",
			want: []parsed{{"7", `{"id":"7","name":"Ann"}`, 2}, {"8", `{"id":"8","name":""}`, 3}}},
		"csv, no line break at the end": {in: "id,name\n7,Ann", want: []parsed{{"7", `{"id":"7","name":"Ann"}`, 2}}},
		"csv, byte order mark and CRLF": {
			in: "\uFEFFid,name\r\n7,Ann\r\n", want: []parsed{{"7", `{"id":"7","name":"Ann"}`, 2}},
		},
		"csv, quotes, line breaks and escapes": {in: "id,\"na\"\"me\"\n\n7,\"a,\"\"b\"\"\r\nc\td\\\"\n8,<é>\x01\n",
			want: []parsed{
				{"7", `{"id":"7","na\"me":"a,\"b\"\r\nc\td\\"}`, 3},
				{"8", `{"id":"8","na\"me":"<é>\u0001"}`, 5},
			}},
		"csv, numbers stay strings": {in: "id,n\n007,1e3\n", want: []parsed{{"007", `{"id":"007","n":"1e3"}`, 2}}},
		"csv, one column": {
			in: "id\n1\n\"\"\"\"\n", want: []parsed{{"1", `{"id":"1"}`, 2}, {`"`, `{"id":"\""}`, 3}},
		},
		"csv, key before id": {in: "id,key\n1,a\n", want: []parsed{{"a", `{"id":"1","key":"a"}`, 2}}},
		"csv, first column when nothing else is known": {
			in: "nr,name\n1,a\n", want: []parsed{{"1", `{"nr":"1","name":"a"}`, 2}},
		},
		"csv, key as configured": {
			in: "id,name\n1,a\n", cfg: intake.Config{Key: "name"}, want: []parsed{{"a", `{"id":"1","name":"a"}`, 2}},
		},
		"csv, semicolons found":   {in: "id;name\n1;a,b\n", want: []parsed{{"1", `{"id":"1","name":"a,b"}`, 2}}},
		"csv, tabs found":         {in: "id\t\"a;b;c\"\n1\ta\n", want: []parsed{{"1", `{"id":"1","a;b;c":"a"}`, 2}}},
		"csv, a comma goes first": {in: "id,a;b;c\n1,x\n", want: []parsed{{"1", `{"id":"1","a;b;c":"x"}`, 2}}},
		"csv, a comma in a name and in decimals": {in: "id;Betrag (EUR, netto);Name\n1;12,50;Anna\n2;7,25;Bert\n",
			want: []parsed{{"1", `{"id":"1","Betrag (EUR, netto)":"12,50","Name":"Anna"}`, 2},
				{"2", `{"id":"2","Betrag (EUR, netto)":"7,25","Name":"Bert"}`, 3}}},
		"csv, most rows decide": {
			in: "id;a, b\n1;\"x\n;\"\n2;y,z\n3;w\n", want: []parsed{{"1", `{"id":"1","a, b":"x\n;"}`, 2},
				{"2", `{"id":"2","a, b":"y,z"}`, 4}, {"3", `{"id":"3","a, b":"w"}`, 5}},
		},
		"csv, a first line that says the separator": {
			in: "\uFEFFsep=;\r\nid;a,b\r\n1;x,y\r\n", want: []parsed{{"1", `{"id":"1","a,b":"x,y"}`, 3}},
		},
		"csv, an index without a name": {
			in:   ",nr,name\n0,7,a\n1,8,b\n",
			want: []parsed{{"7", `{"column1":"0","nr":"7","name":"a"}`, 2}, {"8", `{"column1":"1","nr":"8","name":"b"}`, 3}},
		},
		"csv, a comma at the end of lines": {
			in: "id,name,\n7,a,\n8,b,x\n", want: []parsed{{"7", `{"id":"7","name":"a"}`, 2},
				{"8", `{"id":"8","name":"b","column3":"x"}`, 3}},
		},
		"csv, a carriage return in quotes": {
			in: "id,name\n7,\"a\rb\"\n", want: []parsed{{"7", `{"id":"7","name":"a\rb"}`, 2}},
		},
		"csv, bars configured": {
			in: "id|a,b\n1|x\n", cfg: intake.Config{Delimiter: '|'}, want: []parsed{{"1", `{"id":"1","a,b":"x"}`, 2}},
		},
		"csv, a header that looks like an archive": {
			in: "PARTNER,BZh9\n1,2\n", want: []parsed{{"1", `{"PARTNER":"1","BZh9":"2"}`, 2}},
		},
		"ndjson": {in: "{\"id\":7,\"n\":1.50}\n{\"id\":\"8\",\"n\":{\"a\":[1,2]}}\n",
			want: []parsed{{"7", `{"id":7,"n":1.50}`, 1}, {"8", `{"id":"8","n":{"a":[1,2]}}`, 2}}},
		"ndjson, spaces, blank lines, byte order mark, no end": {
			in:   "\uFEFF\r\n  { \"id\" : 12345678901234567890 ,\t\"s\":\" a \\\" b \" } \r\n\n{\"id\":1}",
			want: []parsed{{"12345678901234567890", `{"id":12345678901234567890,"s":" a \" b "}`, 2}, {"1", `{"id":1}`, 4}},
		},
		"ndjson, escapes are kept": {in: `{"\u0069d":"\u00e9","s":"\u00e9\ud83d\ude00\\u0000\/"}`,
			want: []parsed{{"é", `{"\u0069d":"\u00e9","s":"\u00e9\ud83d\ude00\\u0000\/"}`, 1}}},
		"ndjson, the first row decides on the key": {in: "{\"id\":1}\n{\"key\":\"k\",\"id\":2}\n",
			want: []parsed{{"1", `{"id":1}`, 1}, {"2", `{"key":"k","id":2}`, 2}}},
		"ndjson as configured, with another key": {in: `{"a":"1","b":"2"}`,
			cfg:  intake.Config{Format: intake.NDJSON, Key: "b"},
			want: []parsed{{"2", `{"a":"1","b":"2"}`, 1}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := testenv.Must(readAll(strings.NewReader(test.in), test.cfg))(t)
			checkRows(t, got, test.want)
			got, err := readAll(iotest.OneByteReader(strings.NewReader(test.in)), test.cfg)
			testenv.MustSame(t, err, nil, "byte by byte")
			checkRows(t, got, test.want)
		})
	}
}

// notUTF8 is what is to be done about it.
const notUTF8 = "it may be windows-1252: if it is, say so by encoding=windows-1252 (--encoding windows-1252), else " +
	"save the input as UTF-8"

func TestBadInput(t *testing.T) {
	t.Parallel()
	small := intake.Config{MaxFieldBytes: 10, MaxRowBytes: 30}
	tests := map[string]struct {
		in   string
		cfg  intake.Config
		want string
	}{
		"empty": {"", intake.Config{},
			"the input is empty; give a header line and rows (CSV), or one JSON object a line"},
		"only a header": {"id,name\n\n", intake.Config{},
			"the input has a header line but no rows; add at least one"},
		"many blanks": {strings.Repeat("\n", 70000), intake.Config{},
			"the input starts with 64 KiB of white space; remove it"},
		"an array": {"[{\"id\":1}]", intake.Config{},
			"the input is one JSON array; write its elements as one object a line (jq -c '.[]' does that)"},
		"a spreadsheet": {"PK\x03\x04rest", intake.Config{},
			"the input is a zip archive or a spreadsheet; unpack it, or save the sheet as CSV (UTF-8)"},
		"bzip2": {"BZh91AY&SYrest", intake.Config{},
			"the input is bzip2, which is not read; unpack it, or use gzip or zstd"},
		"parquet": {"PAR1\x15", intake.Config{},
			"the input is Parquet, which is not read; export it as CSV or NDJSON"},
		"too few fields": {"a,b,c\n1,2,3\n1,2\n", intake.Config{},
			"line 3: 2 fields, the header has 3; add the missing field, or quote the line break that cuts the row"},
		"too many fields": {"a,b\n1,2,3\n", intake.Config{},
			`line 2: 3 fields, the header has 2; quote the field that holds the delimiter ','`},
		"a name twice": {"id,a,a\n1,2,3\n", intake.Config{},
			`line 1, field "a": the header has this name twice; rename one`},
		"two separators": {"id;a,b\n1;2,3\n", intake.Config{},
			`the fields may be separated by ',' or by ';': both make 2 columns; say which: --delimiter comma or ` +
				`--delimiter semicolon`},
		"an unknown separator": {"sep=#\nid#a\n1#2\n", intake.Config{},
			`line 1: it says that fields are separated by '#', which is not read; use a comma, semicolon, tab or bar`},
		"CR line ends in rows": {"id\n1\r2\r3\n", intake.Config{},
			`line 2, field "id": a carriage return without a line feed; save the input with LF or CRLF line ends`},
		"a bad name": {"id,\xe9\n1,2\n", intake.Config{},
			"line 1: column 2 of the header: byte 1 (0xe9) is not valid UTF-8; " + notUTF8},
		"CR line ends": {"id,a\r1,2\r", intake.Config{},
			"line 1: a carriage return without a line feed; save the input with LF or CRLF line ends"},
		"no key column": {"id,na me\n1,2\n", intake.Config{Key: "idd"},
			`line 1: no column "idd" for the key (--key); the columns are "id", "na me"; did you mean "id"?`},
		"an empty key": {"id,a\n1,x\n,y\n", intake.Config{},
			`line 3, field "id": the key is empty; every row needs one`},
		"a long key": {"id\n" + strings.Repeat("k", 513), intake.Config{},
			`line 2, field "id": the key has 513 bytes, more than 512; choose a shorter field as the key`},
		"invalid UTF-8": {"id,a\n1,\"x\ny\xff\"\n", intake.Config{},
			`line 3, field "a": byte 4 (0xff) is not valid UTF-8; ` + notUTF8},
		"NUL": {"id,a\n1,x\x00\n", intake.Config{},
			`line 2, field "a": byte 2 is NUL, which PostgreSQL cannot store in a text; remove it`},
		"a bare quote": {"id,a\n1,x\"y\n", intake.Config{},
			`line 2, field "a": a quote inside a field that does not start with one; quote the whole field ` +
				`and double the quotes in it`},
		"text after a quote": {"id,a\n1,\"x\"y\n", intake.Config{},
			`line 2, field "a": text after the closing quote; double the quotes inside a field`},
		"an unclosed quote": {"id,a,b\n1,\"x\ny\",\"z\n2,3,4\n", intake.Config{},
			`line 3, field "b": the quote that opens here is never closed; close it, or double it if it is ` +
				`meant as text`},
		"an unclosed quote and much after it": {"id,a\n1,x\n2,\"y\n3,z\n4,z\n5,z\n", small,
			`line 3, field "a": the quoted field that starts here is larger than 10 bytes; close its quote if ` +
				`that is missing, shorten it, or raise the limit`},
		"a large field": {"id,a\n1,12345678901\n", small,
			`line 2, field "a": larger than 10 bytes; shorten it, or raise the limit`},
		"a large row": {"id,a,b,c\n1,123456789,123456789,123456789\n", small,
			`line 2: the row is larger than 30 bytes; shorten it, or raise the limit`},

		"not an object": {"{\"id\":1}\n[1]\n", intake.Config{},
			"line 2: a row must be a JSON object, and this is an array; write one {…} a line"},
		"not JSON": {"{\"id\":1}\n{\"id\":1,\"a\":x}\n", intake.Config{},
			`line 2, field "a": not valid JSON at byte 13: invalid character 'x' at start of value`},
		"two objects": {"{\"id\":1}{\"id\":2}\n", intake.Config{},
			"line 1: more text after the object; write one object a line"},
		"an object in lines": {"{\n\"id\":1\n}\n", intake.Config{},
			"line 1: the line ends before the object does; write each object on one line"},
		"a name in twice": {"{\"id\":1,\"o\":{\"a\":1,\"a\":2}}\n", intake.Config{},
			`line 1, field "o": the name "a" appears twice in one object; remove one`},
		"escaped NUL": {"{\"id\":1,\"a\":\"\\\\\\u0000\"}\n", intake.Config{},
			`line 1, field "a": holds \u0000, NUL, which PostgreSQL cannot store in a text; remove it`},
		"raw NUL": {"{\"id\":1,\"a\":\"\x00\"}\n", intake.Config{},
			`line 1: byte 14 is NUL, which PostgreSQL cannot store in a text; remove it`},
		"JSON in Latin-1": {"{\"id\":1,\"a\":\"\xe9\"}\n", intake.Config{},
			`line 1: byte 14 (0xe9) is not valid UTF-8; ` + notUTF8},
		"half a surrogate": {`{"id":1,"a":"\ud800"}`, intake.Config{},
			`line 1, field "a": not valid JSON at byte 14: invalid surrogate pair ` + "`\\ud800\"}`" + ` in string`},
		"a key that is none": {"{\"nr\":[1],\"b\":2}\n", intake.Config{},
			`line 1, field "nr": the key is an array; it must be a string or a whole number`},
		"an empty object": {"{}\n", intake.Config{}, `line 1: the object is empty; it needs a field for the key`},
		"a row without key": {"{\"id\":1}\n{\"a\":2}\n", intake.Config{},
			`line 2: no field "id" for the key (--key); the fields are "a"`},
		"a fraction as key": {"{\"id\":1.5}\n", intake.Config{},
			`line 1, field "id": the key is the number "1.5"; it must be a string or a whole number without exponent`},
		"a large value": {"{\"id\":1,\"a\":\"123456789\"}\n", small,
			`line 1, field "a": larger than 10 bytes; shorten it, or raise the limit`},
		"deep JSON": {"{\"id\":1}\n{\"id\":2,\"a\":[\"[[[[[[[[[[[[\",[[{}]]]}\n", intake.Config{MaxDepth: 4},
			`line 2, field "a": nested deeper than 4, with the row's own object, which services do not take; ` +
				`flatten it, or send it as a string`},
		"a large JSON line": {"{\"id\":1,\"a\":\"12345\",\"b\":\"12345\"}\n", small,
			`line 1: the line is larger than 30 bytes; write one object a line, shorten it, or raise the limit`},
		"an unknown format": {"id\n1\n", intake.Config{Format: "xml"},
			`intake: Format "xml" is not known; use csv, ndjson or parquet`},
		"an odd delimiter": {"id\n1\n", intake.Config{Delimiter: 'x'},
			`intake: Delimiter 'x' cannot be used; use a comma, semicolon, tab or bar`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(strings.NewReader(test.in), test.cfg)
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	_, err := readAll(strings.NewReader("id,a\n1,2\n3\n"), intake.Config{})
	var inRow *row.LineError
	if !errors.As(err, &inRow) || inRow.Line != 3 {
		t.Errorf("a short row: got %#v, want a LineError at line 3", err)
	}
	for _, in := range []string{"", "id\n"} {
		_, err = readAll(strings.NewReader(in), intake.Config{})
		var whole *row.InputError
		if !errors.As(err, &whole) || !errors.Is(err, row.ErrNoRows) {
			t.Errorf("%q: got %#v, want an InputError that wraps ErrNoRows", in, err)
		}
	}
}

func TestReadErrorIsHandedOn(t *testing.T) {
	t.Parallel()
	broken := errors.New("the line went dead")
	for _, start := range []string{"", "id", "id,a\n1,2\n", "id,a\n1,\"2\n", "{\"id\":1}\n{"} {
		rows, err := readAll(io.MultiReader(strings.NewReader(start), iotest.ErrReader(broken)), intake.Config{})
		var whole *row.InputError
		if !errors.Is(err, broken) || errors.As(err, &whole) {
			t.Errorf("%q: got %v after %v, want the reader's own error", start, err, rows)
		}
	}
}

func TestNamesInErrorsAreBoundedAndInert(t *testing.T) {
	t.Parallel()
	names := make([]string, 30)
	for i := range names {
		names[i] = strings.Repeat("é", 100) + string(rune('a'+i))
	}
	names[0] = "\x1b[31mred"
	_, err := readAll(strings.NewReader(strings.Join(names, ",")+"\n"), intake.Config{Key: "id"})
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	if len(text) > 3000 || strings.Contains(text, "\x1b") || !strings.HasSuffix(text, " and 10 more") {
		t.Errorf("got %d bytes: %s", len(text), text)
	}
}

func TestKeyAndFormat(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, before, after string
		format            intake.Format
	}{
		{"nr,id\n1,2\n", "id", "id", intake.CSV},
		{"{\"id\":1}\n", "", "id", intake.NDJSON},
	}
	for _, test := range tests {
		r := testenv.Must(intake.Open(strings.NewReader(test.in), intake.Config{}))(t)
		if r.Format() != test.format || r.Key() != test.before {
			t.Errorf("%q: opened as %s with key %q", test.in, r.Format(), r.Key())
		}
		testenv.NoError(t, r.Next(new(row.Item)))
		testenv.Same(t, r.Key(), test.after, "%q: the key after the first row", test.in)
	}
}

// PROOF: who may do what, 19.
// What services take at the deepest is taken, and no more.
func TestDepth(t *testing.T) {
	t.Parallel()
	for _, open := range []string{"[", `{"a":`} {
		end := map[string]string{"[": "]", `{"a":`: "}"}[open]
		nested := func(n int) string {
			return `{"id":1,"d":` + strings.Repeat(open, n) + "1" + strings.Repeat(end, n) + "}\n"
		}
		_, err := readAll(strings.NewReader(nested(intake.DefaultMaxDepth-1)), intake.Config{})
		testenv.Same(t, err, nil, "%s", open)
		_, err = readAll(strings.NewReader(nested(intake.DefaultMaxDepth)), intake.Config{})
		testenv.Says(t, err, "line 1", "%s one deeper", open)
	}
}

// A text is quoted as the encoder does it, whichever byte is where in it.
func TestTextsAreQuotedAsByTheEncoder(t *testing.T) {
	t.Parallel()
	for at := range 17 {
		for c := 1; c <= 255; c++ {
			text := []byte("a text of letters")
			text[at] = byte(c)
			want, invalid := jsontext.AppendQuote(nil, text)
			got, bad := row.AppendString(nil, text)
			if (bad >= 0) != (invalid != nil) || bad < 0 && !bytes.Equal(got, want) {
				t.Fatalf("%q is quoted as %s, bad at %d; want %s, %v", text, got, bad, want, invalid)
			}
		}
	}
}
