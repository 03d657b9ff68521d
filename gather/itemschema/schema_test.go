package itemschema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/gather/itemschema"
)

const accounts = `{"type":"object","required":["id","balance"],"properties":{
	"id":{"type":"string","minLength":3,"maxLength":6},"balance":{"type":"string","pattern":"^-?[0-9]+\\.[0-9]{2}$"},
	"kind":{"enum":["giro","savings",7]},"limit":{"type":["integer","null"],"minimum":0,"exclusiveMaximum":1000},
	"opened":{"type":"string","format":"date"},
	"address":{"type":"object","required":["city"],"properties":{"city":{"type":"string"}},"additionalProperties":false},
	"tags":{"type":"array","items":{"type":"string"}}}}`

//nolint:lll // a row is a line
func TestCheckSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	schema, err := itemschema.Compile([]byte(accounts))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		`{"id":"C-1","balance":"1.00"}`: "",
		`{"id":"C-1","balance":"1.00","kind":"giro","limit":999,"opened":"2024-02-29","more":[1,{}]}`: "",
		`{"id":"C-1","balance":"1.00","limit":null,"kind":7,"tags":["a"],"address":{"city":"Oslo"}}`:  "",
		`{"id":"C-1","balance":"1.00","limit":0}`:                                                     "",
		`{"id":"C-1","balance":"1.00","limit":5.0}`:                                                   "",
		`{"id":"C\u002d1","balance":"1.00"}`:                                                          "",
		`{"i\u0064":"C-1","balance":"1.00"}`:                                                          "",
		`{"id":"C-1","saldo":"1.00"}`:                                                                 "balance: it is missing",
		`{"id":"C-1","balance":1.00}`:                                                                 "balance: got number, want string",
		`{"id":"C-1","balance":"1"}`:                                                                  "balance: '1' does not match pattern",
		`{"id":"C-1","balance":"1.00","limit":1000}`:                                                  "limit: exclusiveMaximum",
		`{"id":"C-1","balance":"1.00","limit":-1}`:                                                    "limit: minimum: got -1, want 0",
		`{"id":"C-1","balance":"1.00","limit":1.5}`:                                                   "limit: got number, want null or integer",
		`{"id":"C-1","balance":"1.00","limit":1e999999}`:                                              "has too many digits",
		`{"id":"C-1","balance":"1.00","kind":"gold"}`:                                                 "kind: value must be one of",
		`{"id":"C-1","balance":"1.00","opened":"2023-02-29"}`:                                         "opened: '2023-02-29' is not valid date",
		`{"id":"C-1","balance":"1.00","address":{"city":"Oslo","zip":1}}`:                             "address.zip: the schema has no such field",
		`{"id":"C-1","balance":"1.00","address":{}}`:                                                  "address.city: it is missing",
		`{"id":"C-1","balance":"1.00","tags":["a",1]}`:                                                "tags.1: got number, want string",
		`{"id":"C","balance":"1.00"}`:                                                                 "id: minLength: got 1, want 3",
		`{}`:                                                                                          "balance: it is missing; id: it is missing",
	}
	for item, want := range tests {
		var got []string
		faults, err := schema.Check([]byte(item))
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range faults {
			got = append(got, fault.String())
		}
		if all := strings.Join(got, "; "); (all == "") != (want == "") || !strings.Contains(all, want) {
			t.Errorf("%s: got %q, want %q", item, all, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"type":`:                          "not valid JSON",
		`true`:                              "want an object",
		`{"type":"strin"}`:                  "it is not a JSON Schema: type",
		`{"$ref":"file:///etc/passwd"}`:     "may not leave the schema",
		`{"$ref":"https://example.org/s"}`:  "may not leave the schema",
		`{"pattern":"("}`:                   "it is not a JSON Schema",
		strings.Repeat(" ", 64<<10) + "{}":  "at most 65536",
		`{"$schema":"https://example.org"}`: "may not leave the schema",
	} {
		if _, err := itemschema.Compile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", text, err, want)
		}
	}
}

// multiplying is a schema whose definitions each refer to the next twice, 40 deep.
func multiplying(last string) string {
	const each = `{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 40 {
		fmt.Fprintf(&b, `"d%d":`+each+`,`, i, i+1, i+1)
	}
	b.WriteString(`"d40":` + last + `}}`)
	return b.String()
}

func TestChecksHaveAnEnd(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		multiplying(`{}`), multiplying(`{"minProperties":3}`), multiplying(`{"type":"string"}`),
		strings.Replace(multiplying(`{}`), `{"$ref":"#/$defs/d0"`, `{"not":{"$ref":"#/$defs/d0"}`, 1),
		`{"$schema":"http://json-schema.org/draft-07/schema",` + multiplying(`{}`)[1:],
		strings.ReplaceAll(multiplying(`{}`), `{"$ref":"#/$defs/d`, `{"$dynamicRef":"#/$defs/d`),
	} {
		if _, err := itemschema.Compile([]byte(schema)); err == nil || !strings.Contains(err.Error(), "too many steps") {
			t.Errorf("%.60s: got %v", schema, err)
		}
	}
	// What an item multiplies is found in the item.
	schema, err := itemschema.Compile([]byte(`{"$defs":{"d":{"allOf":[{"properties":{"a":{"$ref":"#/$defs/d"}}},` +
		`{"properties":{"a":{"$ref":"#/$defs/d"}}}]}},"$ref":"#/$defs/d"}`))
	if err != nil {
		t.Fatal(err)
	}
	nested := func(depth int) []byte {
		return []byte(strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth))
	}
	if faults, err := schema.Check(nested(60)); err == nil {
		t.Errorf("got %v of a nested item, and no error", faults)
	}
	if faults, err := schema.Check(nested(5)); faults != nil || err != nil {
		t.Errorf("got %v, %v after it", faults, err)
	}
	schema, err = itemschema.Compile([]byte(strings.Replace(strings.Replace(multiplying(`{"minLength":1}`),
		`"d20":{"allOf":[{"$ref":"#/$defs/d21"},{"$ref":"#/$defs/d21"}]}`, `"d20":{"minLength":1}`, 1),
		`{"$ref":"#/$defs/d0"`, `{"properties":{"a":{"$ref":"#/$defs/d0"}}`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if faults, err := schema.Check([]byte(`{"a":"` + strings.Repeat("x", 1<<20) + `"}`)); err == nil {
		t.Errorf("got %v of a long text that is read a million times, and no error", faults)
	}
	flat := []byte(`{"a":[` + strings.Repeat("1,", 400_000) + `1]}`)
	schema, err = itemschema.Compile([]byte(`{"properties":{"a":{"items":{"anyOf":[{"type":"null"},{"minimum":1}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if faults, err := schema.Check(flat); faults != nil || err != nil {
		t.Errorf("got %v, %v of a large item", faults, err)
	}
}

func TestGuessFitsWhatItWasMadeOf(t *testing.T) {
	t.Parallel()
	items := []string{
		`{"id":"C-1","balance":"1.00","n":1,"on":"2024-01-31","note":"","at":"2024-01-31T10:00:00Z"}`,
		`{"id":"C-2","balance":"-20","n":2.5,"on":"2024-02-29","note":"x","x":null,"list":[1]}`,
	}
	var guess itemschema.Guess
	for _, item := range items {
		if err := guess.Add([]byte(item)); err != nil {
			t.Fatal(err)
		}
	}
	const want = `{"type":"object","required":["id","balance","n","on","note"],"properties":{` +
		`"id":{"minLength":1,"type":"string"},"balance":{"pattern":"^-?[0-9]+(\\.[0-9]+)?$","type":"string"},` +
		`"n":{"type":"number"},"on":{"format":"date","type":"string"},"note":{"type":"string"},` +
		`"at":{"format":"date-time","type":"string"},"x":{"type":"null"},"list":{"type":"array"}}}`
	if got := string(guess.Schema()); got != want {
		t.Errorf("got %s", got)
	}
	schema, err := itemschema.Compile(guess.Schema())
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		if faults, err := schema.Check([]byte(item)); faults != nil || err != nil {
			t.Errorf("%s: %v", item, faults)
		}
	}
	if faults, err := schema.Check([]byte(`{"id":"C-3","saldo":"3"}`)); len(faults) == 0 || err != nil {
		t.Error("a renamed column fits")
	}
}

func TestExamplesFit(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":"integer","minimum":5}}}`: `` +
			`{"id":"text","n":5} {"id":""} {"id":"12.50","n":5} {"id":"Zoë 漢字","n":2147483647} {"id":"` +
			strings.Repeat("long ", 50) + `","n":5}`,
		`{"properties":{"day":{"format":"date"},"of":{"enum":["a","b"]},"list":{"items":{"$ref":"#/$defs/yes"}}},
			"$defs":{"yes":{"type":"boolean"}}}`: `{"day":"2024-02-29","list":[true],"of":"a"} {} ` +
			`{"day":"2024-02-29","list":[true,false],"of":"a"} {"day":"2024-02-29","list":[false],"of":"b"} ` +
			`{"day":"2024-02-29","list":[],"of":"a"}`,
		`{"required":["p"],"properties":{"p":{"pattern":"^-?[0-9]+$"}}}`: `{"p":"0"} {"p":"-1"}`,
		`{"required":["p"],"properties":{"p":{"pattern":"^q{7}$"}}}`:     ``,
		`{"properties":{"a":{"type":"array","items":{"type":"boolean"},"minItems":1},"m":{"type":["null","number"]},
			"o":{"type":"object","additionalProperties":{"const":1}},"c":{"oneOf":[{"maximum":0,"type":"number"},
			{"type":"null"}]}}}`: `{"a":[true],"c":0,"m":12.5,"o":{"name":1}} {} ` +
			`{"a":[true,false],"c":-1,"m":-1,"o":{"name":1}} {"a":[false],"c":null,"m":null,"o":{"name":1}} ` +
			`{"a":[true],"c":0,"m":1e-9,"o":{"name":1}}`,
	} {
		compiled, err := itemschema.Compile([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s", compiled.Examples()); got != "["+want+"]" {
			t.Errorf("%s: got %s, want %s", schema, got, want)
		}
	}
}
