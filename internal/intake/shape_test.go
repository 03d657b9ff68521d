package intake_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What was judged is said, with the way to say otherwise.
//
//nolint:lll // a note is a line
func TestNotesOfCSV(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"id,a\n1,2\n": "",
		"id;a\n1;2\n": "the fields were read as separated by ';'; if that is wrong, say so: delimiter=comma (--delimiter comma)",
		"id;a, b;c\n1;2,5;3\n": "the fields were read as separated by ';', which makes 3 columns; ',' would make 2: " +
			"if that is wrong, say so: delimiter=comma (--delimiter comma)",
		"SEP=|\nid|a,b\n1|2,3\n": "the fields are separated by '|', as the first line says",
		",id\n0,1\n": "column 1 of the header has no name; such columns are called as column1 here, and left out of rows in " +
			"which they are empty",
	} {
		_, r, err := linesOf(in, intake.Config{})
		if err != nil || strings.Join(r.Notes(), "\n") != want {
			t.Errorf("%q: got %v, %v; want %s", in, r, err, want)
		}
	}
}

// linesOf returns the items as key and payload, or the error.
func linesOf(in string, cfg intake.Config) (string, *intake.Reader, error) {
	r, err := intake.Open(strings.NewReader(in), cfg)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = r.Close() }()
	var out strings.Builder
	var item row.Item
	for {
		err := r.Next(&item)
		if errors.Is(err, io.EOF) {
			return strings.TrimSpace(out.String()), r, nil
		}
		if err != nil {
			return out.String(), r, err
		}
		fmt.Fprintf(&out, "%d %s %s\n", item.Line, item.Key, item.Payload)
	}
}

//nolint:lll // a row is a line
func TestShapes(t *testing.T) {
	t.Parallel()
	csv, json := "nr,name,n,ok,doc\n7,Ann, 1.50 ,yes,\"[1, 2]\"\n8,Bo,,,\n", `{"nr":7,"name":"Ann","x":{"a":"}"}}`+"\n"+`{"nr":8,"\u006eame":"Bo"}`
	for name, test := range map[string]struct {
		in   string
		cfg  intake.Config
		want string
	}{
		"columns":      {csv, intake.Config{Columns: []string{"name", "n"}}, "2 7 {\"name\":\"Ann\",\"n\":\" 1.50 \"}\n3 8 {\"name\":\"Bo\",\"n\":\"\"}"},
		"rename":       {csv, intake.Config{Columns: []string{"nr"}, Rename: map[string]string{"nr": "id"}}, "2 7 {\"id\":\"7\"}\n3 8 {\"id\":\"8\"}"},
		"renamed key":  {"a,b\n1,2\n", intake.Config{Rename: map[string]string{"b": "id"}}, `2 2 {"a":"1","id":"2"}`},
		"key and id":   {"foo,key\n1,2\n", intake.Config{Rename: map[string]string{"foo": "id"}}, `2 2 {"id":"1","key":"2"}`},
		"key renamed":  {`{"foo":1,"key":2,"id":3}`, intake.Config{Rename: map[string]string{"key": "x"}}, `1 3 {"foo":1,"x":2,"id":3}`},
		"swapped":      {"a,b\n1,2\n", intake.Config{Rename: map[string]string{"a": "b", "b": "a"}, Key: "a"}, `2 2 {"b":"1","a":"2"}`},
		"types":        {csv, intake.Config{Columns: []string{"n", "ok", "doc"}, Types: map[string]string{"n": "number", "ok": "bool", "doc": "json"}}, "2 7 {\"n\":1.50,\"ok\":true,\"doc\":[1,2]}\n3 8 {\"n\":null,\"ok\":null,\"doc\":null}"},
		"objects":      {json, intake.Config{Types: map[string]string{"nr": "text"}}, `1 7 {"nr":"7","name":"Ann","x":{"a":"}"}}` + "\n" + `2 8 {"nr":"8","\u006eame":"Bo"}`},
		"some objects": {json, intake.Config{Columns: []string{"x", "name"}, Rename: map[string]string{"name": "n"}}, `1 7 {"n":"Ann","x":{"a":"}"}}` + "\n" + `2 8 {"n":"Bo"}`},
		"no header":    {"7;Ann\n8;\"B\no\"\n", intake.Config{NoHeader: true}, `1 7 {"column1":"7","column2":"Ann"}` + "\n" + `2 8 {"column1":"8","column2":"B\no"}`},
		"own names":    {"7,Ann\n8,Bo\n", intake.Config{NoHeader: true, Columns: []string{"nr", "id"}}, `1 Ann {"nr":"7","id":"Ann"}` + "\n" + `2 Bo {"nr":"8","id":"Bo"}`},
		"no name":      {"id,name,\n1,Ann,\n2,Bob,vip\n", intake.Config{Rename: map[string]string{"column3": "note"}}, `2 1 {"id":"1","name":"Ann"}` + "\n" + `3 2 {"id":"2","name":"Bob","note":"vip"}`},
		"of several":   {`{"id":1}`, intake.Config{Types: map[string]string{"limit": "number"}, Sort: "limit", Spool: &intake.Spool{}, Partial: true}, `1 1 {"id":1}`},
		"first field":  {`{"acct":"A","x":1}`, intake.Config{}, `1 A {"acct":"A","x":1}`},

		"no such column":   {csv, intake.Config{Columns: []string{"nme"}}, `! columns: no column or field "nme"; there are: "nr", "name", "n", "ok", "doc"`},
		"never there":      {json, intake.Config{Rename: map[string]string{"y": "z"}}, `! rename y=z: no column or field "y"`},
		"collision":        {csv, intake.Config{Rename: map[string]string{"nr": "name"}}, `! line 2, field "name": "nr" is renamed to this name`},
		"rename of none":   {csv, intake.Config{Rename: map[string]string{"nme": "name"}}, `! rename nme=name: no column or field "nme"; there are: "nr", "name"`},
		"no such type":     {csv, intake.Config{Types: map[string]string{"nn": "number"}}, `! types: no column or field "nn"; there are: "nr", "name"`},
		"no number":        {"id,n\n1,007\n", intake.Config{Types: map[string]string{"n": "number"}}, `! line 2, field "n": "007" is not written as a number`},
		"no truth":         {"id,n\n1,maybe\n", intake.Config{Types: map[string]string{"n": "bool"}}, `! line 2, field "n": "maybe" is neither true nor false`},
		"no JSON":          {"id,n\n1,{\n", intake.Config{Types: map[string]string{"n": "json"}}, `! line 2, field "n": "{" is not JSON`},
		"too few names":    {"7,Ann\n", intake.Config{NoHeader: true, Columns: []string{"id"}}, `! line 1: 2 fields, --columns has 1`},
		"too many fields":  {"7\n8,Bo\n", intake.Config{NoHeader: true}, `! line 2: 2 fields, the first row has 1`},
		"no key so far":    {`{"x":1}`, intake.Config{Rename: map[string]string{"nr": "id"}}, `! line 1: no field "nr" for the key`},
		"unknown encoding": {csv, intake.Config{Encoding: "x"}, `! intake: Encoding "x" is not known`},
	} {
		got, _, err := linesOf(test.in, test.cfg)
		if want, bad := strings.CutPrefix(test.want, "! "); bad {
			testenv.Says(t, err, want, "%s: got %q", name, got)
			continue
		}
		testenv.NoError(t, err)
		testenv.Same(t, got, test.want, "%s", name)
	}
}

//nolint:lll // as above
func TestEncodings(t *testing.T) {
	t.Parallel()
	const text, want = "id,name\n1,Jürgen\n", `2 1 {"id":"1","name":"Jürgen"}`
	little := testenv.Must(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String(text))(t)
	bare := testenv.Must(unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM).NewEncoder().String(text))(t)
	latin := testenv.Must(charmap.ISO8859_1.NewEncoder().String(text))(t)
	for name, test := range map[string]struct{ in, encoding, want, note string }{
		"marked":          {little, "", want, "as its byte order mark says"},
		"named":           {little, "utf-16", want, ""},
		"bare":            {bare, "utf-16be", want, ""},
		"latin":           {latin, "latin-1", want, ""},
		"windows":         {latin, "windows-1252", want, ""},
		"UTF-8":           {text, "utf-8", want, ""},
		"bare, not said":  {bare, "", "! looks like UTF-16 without a byte order mark; if it is, say so: encoding=utf-16be", ""},
		"latin, not said": {latin, "", "! line 2, field \"name\": byte 2 (0xfc) is not valid UTF-8; it may be windows-1252", ""},
		"UTF-8, marked":   {"\ufeff" + text, "latin-1", "! begins with the byte order mark of UTF-8", ""},
		"wrong":           {"id\n\x81\n", "windows-1252", "! it has bytes that are not a character", ""},
		"cut":             {bare[:len(bare)-1], "utf-16be", "! it has bytes that are not a character", ""},
	} {
		got, r, err := linesOf(test.in, intake.Config{Encoding: test.encoding})
		if want, bad := strings.CutPrefix(test.want, "! "); bad {
			testenv.Says(t, err, want, "%s: got %q", name, got)
			continue
		}
		if err != nil || got != test.want || !strings.Contains(strings.Join(r.Notes(), ""), test.note) {
			t.Errorf("%s: got %q, %v, %v; want %q, %q", name, got, err, r, test.want, test.note)
		}
	}
}

func TestSort(t *testing.T) {
	t.Parallel()
	const mixed = "id,n\na,10\nb,9\nc,\nd,x\ne,-1.5\nf,9\n"
	for _, test := range []struct {
		in   string
		desc bool
		want string
	}{
		{mixed, false, "e b f a d c"},
		{mixed, true, "d a b f e c"},
		{"id,n\nc,1700000000000000003\na,1700000000000000001\nb,1700000000000000002\n", false, "a b c"},
		{"id,n\na,-9007199254740993\nb,-9007199254740992\nc,-9007199254740994\n", false, "c a b"},
		{"id,n\na,0.1000000000000000000002\nb,1000000000000000000001e-22\nc,0.1\nd,00.10\n", false, "c d b a"},
		{"id,n\na,1e400\nb,2e400\nc,-1E+400\nd,1e99999999999999999999\ne,0e9\nf,1e-99999999999999999999\ng,-0\n", false,
			"c e g f a b d"},
		{"id,n\na,1e2\nb,0x1p1\nc,99\nd,1.\n", false, "c a b d"}, // what JSON does not have as a number is a text
		{`{"id":"c","n":1700000000000000003}` + "\n" + `{"id":"a","n":1700000000000000001.5}` + "\n" +
			`{"id":"b","n":"1700000000000000002"}`, true, "c b a"},
		{`{"id":"b","\u006e":0}` + "\n" + `{"id":"a","n":1}`, false, "b a"},
	} {
		got := testenv.Must(keysOf(test.in, intake.Config{Sort: "n", Desc: test.desc, Spool: &intake.Spool{}}))(t)
		testenv.Same(t, got, test.want, "%q, desc %t", test.in, test.desc)
	}
	_, err := keysOf(mixed, intake.Config{Sort: "m", Spool: &intake.Spool{}})
	testenv.Says(t, err, `no item has a field "m"`, "an unknown field")
}

// keysOf are the keys of an input in the order in which they are read.
func keysOf(in string, cfg intake.Config) (string, error) {
	r, err := intake.Open(strings.NewReader(in), cfg)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }() // what was read was read
	var keys []string
	for {
		var item row.Item
		if err := r.Next(&item); errors.Is(err, io.EOF) {
			return strings.Join(keys, " "), nil
		} else if err != nil {
			return "", err
		}
		keys = append(keys, item.Key)
	}
}

// What an earlier run had is put in the order that is wanted, too.
func TestSortWhatIsContinued(t *testing.T) {
	t.Parallel()
	n := 0
	r := intake.Carry("id", intake.Config{Sort: "n", Desc: true, Spool: &intake.Spool{}}, func(item *row.Item) error {
		if n++; n > 3 {
			return io.EOF
		}
		item.Key, item.Payload = fmt.Sprint(n), fmt.Appendf(nil, `{"n":%d}`, n)
		return nil
	})
	var keys string
	var item row.Item
	for r.Next(&item) == nil {
		keys += item.Key
	}
	if err := r.Close(); keys != "321" || err != nil {
		t.Errorf("got %s, %v; want 321", keys, err)
	}
}

// More than fits in memory is sorted in a file, in the order in which memory would have had it, and within the bounds
// of what may be kept.
func TestSortInAFile(t *testing.T) {
	t.Parallel()
	const rows = 60_000
	var in strings.Builder
	in.WriteString("id,n,fill\n")
	random, fill := rand.New(rand.NewPCG(1, 2)), strings.Repeat("x", 1500)
	for i := range rows {
		fmt.Fprintf(&in, "%d,%d,%s\n", i, random.IntN(1000), fill)
	}
	dir := t.TempDir()
	cfg := intake.Config{Sort: "n", Desc: true, Spool: &intake.Spool{Dir: dir}}
	r := testenv.Must(intake.Open(strings.NewReader(in.String()), cfg))(t)
	var item row.Item
	last, lastID, seen := 1000, -1, 0
	for ; ; seen++ {
		if err := r.Next(&item); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var id, n int
		testenv.Must(fmt.Sscanf(string(item.Payload), `{"id":"%d","n":"%d"`, &id, &n))(t)
		if n > last || n == last && id < lastID || item.Line != id+2 {
			t.Fatalf("row %d of line %d, with %d, comes after %d with %d", id, item.Line, n, lastID, last)
		}
		last, lastID = n, id
	}
	testenv.Same(t, seen, rows, "rows of %d", rows)
	testenv.NoError(t, r.Close())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	_, _, err := linesOf(in.String(), intake.Config{Sort: "n", Spool: &intake.Spool{Dir: dir, Max: 8 << 20}})
	if large, ok := errors.AsType[*intake.TooLargeError](err); !ok {
		t.Errorf("got %v, %v; want a TooLargeError", large, err)
	}
}
