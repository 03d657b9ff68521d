package intake_test

import (
	"bytes"
	"cmp"
	stdcsv "encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// oracleCSV reads with encoding/csv and adds the rules of this package. It returns the good rows and whether the input
// is good to its end.
func oracleCSV(in []byte) (rows [][]string, lines []int, good bool) {
	in = bytes.TrimPrefix(in, []byte("\uFEFF"))
	if line, rest, _ := bytes.Cut(in, []byte("\n")); len(bytes.TrimSuffix(line, []byte("\r"))) == len("sep=;") &&
		strings.EqualFold(string(line[:4]), "sep=") {
		in = append([]byte("\n"), rest...)
	}
	if len(bytes.Trim(in, " \t\r\n")) == 0 {
		return nil, nil, false // encoding/csv would take a space for a name
	}
	r := stdcsv.NewReader(bytes.NewReader(in))
	r.FieldsPerRecord = -1
	header, err := r.Read()
	if err != nil || !goodHeader(header) {
		return nil, nil, false
	}
	key := slices.Index(header, "key")
	if key < 0 {
		key = slices.Index(header, "id")
	}
	if key < 0 {
		key = max(slices.IndexFunc(header, func(name string) bool { return name != "" }), 0)
	}
	rows = [][]string{header}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows, lines, len(rows) > 1
		}
		if err != nil || len(record) != len(header) || !storable(record) || !goodKey(record[key]) {
			return rows, lines, false
		}
		line, _ := r.FieldPos(0)
		rows, lines = append(rows, record), append(lines, line)
	}
}

func goodHeader(names []string) bool {
	seen := make(map[string]bool)
	for i, name := range names {
		name = cmp.Or(name, fmt.Sprintf("column%d", i+1))
		if seen[name] || strings.Contains(name, "\r") {
			return false
		}
		seen[name] = true
	}
	return storable(names)
}

func storable(fields []string) bool {
	return !slices.ContainsFunc(fields, func(f string) bool { return !utf8.ValidString(f) || strings.Contains(f, "\x00") })
}

func goodKey(key string) bool { return key != "" && len(key) <= intake.MaxKeyBytes }

func FuzzCSV(f *testing.F) {
	for _, seed := range []string{
		"id,name\n7,Ann\n8,\n", "\uFEFFid,b\r\n\r\n1,\"x\"\"\r\ny\"\r\n", "a\n\"b\nc", "a,b\n1,2,3\n", "id\n\"\"\"\"\r",
		"key,a\n1,\"x\"y\n", "a,a\n", "a,\"\"\n1,2", "id\n\r\r\n", "id,b\n1,\xff\n", "id,b\n1,\\\t\x01\x00\n",
		"\"i\nd\"\n1\n", " \n ", ",id,\n1,2,3\n,4,\n", "sep=;\nid,a\n1,2\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		want, lines, good := oracleCSV(in)
		got, err := readAll(bytes.NewReader(in), intake.Config{Format: intake.CSV, Delimiter: ','})
		if foreign(err) || err != nil && strings.HasSuffix(err.Error(), row.LoneCR) { // encoding/csv takes it
			return
		}
		testenv.MustSame(t, good, (err == nil), "that encoding/csv and the rules take it, as we do: %v", err)
		testenv.MustSame(t, len(got), max(len(want)-1, 0), "rows")
		for i, row := range got {
			testenv.Same(t, row.line, lines[i], "row %d: line", i)
			// encoding/csv has no "\r\n" in its fields, and here a field is as it is written.
			unix := regexp.MustCompile(`(^|[^\\])((\\\\)*)\\r\\n`).ReplaceAllString(row.payload, `$1$2\n`)
			comparePayload(t, unix, want[0], want[i+1])
		}
	})
}

// foreign reports an error about the kind of the input, which the oracles know nothing of.
func foreign(err error) bool {
	var whole *row.InputError
	return errors.As(err, &whole) && !errors.Is(err, row.ErrNoRows)
}

// comparePayload reads a payload with encoding/json and wants the values, in order.
func comparePayload(t *testing.T, payload string, names, values []string) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(payload))
	want := []json.Token{json.Delim('{')}
	for i, name := range names {
		if name != "" || values[i] != "" {
			want = append(want, cmp.Or(name, fmt.Sprintf("column%d", i+1)), values[i])
		}
	}
	want = append(want, json.Delim('}'))
	for _, w := range want {
		testenv.MustSame(t, testenv.Must(dec.Token())(t), w, "payload %s", payload)
	}
	_, err := dec.Token()
	testenv.Is(t, err, io.EOF, "payload %s continues", payload)
}

// oracleNDJSON judges one line with encoding/json. The key is that of the field "id".
func oracleNDJSON(line []byte) (key string, good bool) {
	if !json.Valid(line) || !utf8.Valid(line) || loneSurrogate(line) {
		return "", false
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return "", false
	}
	fields := make(map[string]any)
	if !readObject(dec, fields) {
		return "", false
	}
	switch id := fields["id"].(type) {
	case string:
		return id, goodKey(id)
	case json.Number:
		return id.String(), !strings.ContainsAny(id.String(), ".eE") && goodKey(id.String())
	default:
		return "", false
	}
}

// readObject reads up to the closing brace; false means a name twice, or a NUL.
func readObject(dec *json.Decoder, fields map[string]any) bool {
	for dec.More() {
		name, err := dec.Token()
		text, ok := name.(string)
		if _, twice := fields[text]; err != nil || !ok || twice || strings.Contains(text, "\x00") {
			return false
		}
		value, ok := readValue(dec)
		if !ok {
			return false
		}
		fields[text] = value
	}
	_, err := dec.Token()
	return err == nil
}

func readValue(dec *json.Decoder) (any, bool) {
	token, err := dec.Token()
	if err != nil {
		return nil, false
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return nil, readObject(dec, make(map[string]any))
		}
		for dec.More() {
			if _, ok := readValue(dec); !ok {
				return nil, false
			}
		}
		_, err := dec.Token()
		return nil, err == nil
	case string:
		return token, !strings.Contains(token, "\x00")
	default:
		return token, true
	}
}

// pairs are whole, or escape a backslash; lone is one of \ud800 to \udfff where they are left out.
var (
	pairs = regexp.MustCompile(`\\\\|(?i:\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})`)
	lone  = regexp.MustCompile(`(?i)\\ud[89a-f]`)
)

// loneSurrogate finds half a pair. encoding/json reads it as U+FFFD.
func loneSurrogate(line []byte) bool { return lone.Match(pairs.ReplaceAll(line, []byte(" "))) }

func FuzzNDJSON(f *testing.F) {
	for _, seed := range []string{
		"{\"id\":7,\"n\":1.50}\n{\"id\":\"8\"}\n", ` { "id" : -1 , "a" : [ {} , "\\u0000" ] } `, `{"id":"\u0000"}`,
		`{"id":1,"a":{"b":1,"b":2}}`, `{"\u0069d":"\ud83d\ude00"}`, `{"id":"\ud800"}`, `{"id":1}{"id":2}`, `{"id":1.0}`,
		"{\"id\":1,\n\"a\":2}", "{\"id\":\"a\xff\"}", "[1]", "{}", `{"id":"a\"b\\"}`, "{\"id\":\"\x01\"}",
		"\uFEFF{\"id\":1}\r",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readAll(bytes.NewReader(in), intake.Config{Format: intake.NDJSON, Key: "id"})
		if foreign(err) {
			return
		}
		good, next := true, 0
		for i, line := range bytes.Split(bytes.TrimPrefix(in, []byte("\uFEFF")), []byte("\n")) {
			if line = bytes.Trim(line, " \t\r"); len(line) == 0 {
				continue
			}
			key, ok := oracleNDJSON(line)
			if !ok {
				good = false
				break
			}
			if next == len(got) {
				t.Fatalf("line %d is good, and was not read: %v", i+1, err)
			}
			var compact bytes.Buffer
			testenv.NoError(t, json.Compact(&compact, line))
			testenv.MustSame(t, got[next], (parsed{key, compact.String(), i + 1}), "row %d", next)
			next++
		}
		if next != len(got) || (good && next > 0) != (err == nil) {
			t.Fatalf("got %d rows and %v, the oracle %d and good=%t", len(got), err, next, good)
		}
	})
}

// FuzzOpen only wants to see no panic and no endless loop, whatever the input is recognized as.
func FuzzOpen(f *testing.F) {
	f.Add(gzipped(f, []byte("id\n1\n")))
	f.Add(zstandard(f, []byte("{\"id\":1}\n")))
	f.Add([]byte("id;a\n1;2\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		rows, err := readAll(bytes.NewReader(in), intake.Config{MaxDecompressed: 1 << 20})
		if err == nil && len(rows) == 0 {
			t.Fatal("neither rows nor an error")
		}
		for _, row := range rows {
			if !json.Valid([]byte(row.payload)) || row.payload[0] != '{' || strings.ContainsAny(row.payload, "\n\x00") {
				t.Fatalf("payload %q", row.payload)
			}
		}
	})
}
