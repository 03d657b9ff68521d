package strictyaml_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

type form struct {
	embedded

	Order  string             `json:"order" enum:"fifo,priority"`
	Size   int                `json:"size" min:"1" max:"10"`
	On     bool               `json:"on"`
	Age    workqueue.Duration `json:"age" min:"1s" max:"1h"`
	Bytes  *workqueue.Bytes   `json:"bytes"`
	Codes  []string           `json:"codes" min:"1" max:"2"`
	Words  []string           `json:"words" enum:"a,b"`
	Params map[string]string  `json:"params" want:"names and values" max:"2"`
	Deep   map[string]*deep   `json:"deep"`
	Any    json.RawMessage    `json:"any"`
	Kept   string             `json:"-"`
}

type embedded struct {
	Name string `json:"name" max:"5"`
	Size string `json:"size"` // the outer one counts
}

type deep struct {
	N int `json:"n"`
}

func read(text string) (form, error) {
	var f form
	doc, err := strictyaml.Open("form", "f.yaml", []byte(text), 200)
	if err != nil {
		return f, err
	}
	err = doc.Root.Decode(&f)
	if err == nil && f.Size > 5 && !doc.Given("age") {
		err = doc.Fail("size", "too much without an age")
	}
	return f, err
}

func TestOpenReadsWhatIsKnown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"\ufeff# a form\nname: x\norder: priority\nsize: 7\non: true\nage: 1m\ncodes: [A, B]\n" +
			"params: {year: 2026, ok: true}\nbytes: 2KiB\ndeep: {x: {n: 3}}\nany: [1, null]\n",
		`{"name":"x","order":"priority","size":7,"on":true,"age":"1m","codes":["A","B"],"params":{"year":2026,"ok":true},` +
			`"bytes":2048,"deep":{"x":{"n":3}},"any":[1,null]}`,
	} {
		f, err := read(text)
		if err != nil || f.Name != "x" || f.Order != "priority" || f.Size != 7 || !f.On ||
			f.Age != workqueue.Duration(time.Minute) || *f.Bytes != 2048 || strings.Join(f.Codes, " ") != "A B" ||
			f.Params["year"] != "2026" || f.Params["ok"] != "true" || f.Deep["x"].N != 3 || string(f.Any) != `[1,null]` {
			t.Errorf("%s is read as %+v, %v", text, f, err)
		}
	}
}

func TestOpenSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, want string }{
		{"",
			"form f.yaml: it is empty"},
		{strings.Repeat("a", 201),
			"it has 201 bytes; a form has at most 200"},
		{"name: x\nnme: y\n",
			"f.yaml:2:1: unknown field \"nme\", did you mean name?; there are name, order, size"},
		{"names: x\n",
			"f.yaml:1:1: unknown field \"names\", did you mean name?; there are name"},
		{"name: x\nname: y\n",
			"mapping key \"name\" already defined"},
		{"name: 5\n",
			"f.yaml:1:7: name: want text; put it in quotes if it looks like something else; this is 5"},
		{"name: ''\n",
			"want text; this is an empty one"},
		{"name: x\nparams: {a: \"b\\0c\"}\n",
			"f.yaml:2:13: a NUL is not part of any text here"},
		{"name:\n",
			"f.yaml:1:1: name: want text"},
		{"order: lifo\n",
			"f.yaml:1:8: order: want one of fifo, priority; this is the text \"lifo\""},
		{"size: 0x3\n",
			"size: want a whole number within 1 to 10; this is 0x3"},
		{"size: 11\n",
			"size: want a whole number within 1 to 10; this is 11"},
		{"on: 1\n",
			"on: want true or false; this is 1"},
		{"age: 90\n",
			"age: want a duration like 90s, 2m or 1h30m, within 1s to 1h; this is 90"},
		{"name: longer\n",
			"name: it has 6 bytes, and at most 5 are allowed"},
		{"codes: []\n",
			"f.yaml:1:8: codes: the list is empty"},
		{"codes: [A, B, C]\n",
			"codes: there are 3, and at most 2 are allowed"},
		{"words: [a, c]\n",
			"f.yaml:1:12: words[1]: want one of a, b; this is the text \"c\""},
		{"bytes: much\n",
			"f.yaml:1:8: bytes: want a size like 512KiB, 2MiB or a number of bytes; this is the text \"much\""},
		{"deep:\n  x: {m: 1}\n",
			"f.yaml:2:7: unknown field \"m\"; there are n"},
		{"deep:\n  x: {n: 1.5}\n",
			"deep.x.n: want a whole number like 500; this is 1.5"},
		{"codes: A\n",
			"codes: want a list, each entry after a dash"},
		{"codes:\n  - A\n  - [B]\n",
			"f.yaml:3:5: codes[1]: want text"},
		{"params: [a]\n",
			"params: want names and values; this is a list"},
		{"params: {a: [b]}\n",
			"params.a: want a value: text, a number, true or false; this is a list"},
		{"params: {1: b}\n",
			"the name \"1\" must be in quotes"},
		{"- a\n",
			"f.yaml:1:1: want fields: name, order"},
		{"name: &a x\n",
			"anchors and aliases are not allowed"},
		{"name: !!str x\n",
			"is not allowed here"},
		{"a: x\n---\nb: y\n",
			"a second document"},
		{"name: \x01\n",
			"a control character (U+0001) is not allowed"},
		{"name: \xff\n",
			"this is not UTF-8"},
		{"params:\n\ta: x\n",
			"a tab; YAML is indented with spaces"},
		{strings.Repeat("[", 50),
			"the nesting is deeper than 8"},
		{"name: x\nsize: 7\n",
			"f.yaml:2:7: size: too much without an age\n    2 | size: 7\n              ^"},
		{"name: 'x\n",
			"f.yaml:1:"},
		{"name: x\nsize: [\u202eevil]]",
			"\uFFFDevil"},
	} {
		text, want := tc.text, tc.want
		_, err := read(text)
		bad, ok := errors.AsType[*strictyaml.Error](err)
		if !ok || !strings.Contains(bad.Error(), want) {
			t.Errorf("%q gives %v; want …%s…", text, err, want)
		}
	}
}

// A text that may hold passwords is quoted nowhere, and may be empty.
func TestOpenSecretQuotesNothing(t *testing.T) {
	t.Parallel()
	const canary = "CANARY"
	for text, want := range map[string]string{
		"":                                  "",
		"# " + canary:                       "",
		"name: " + canary:                   "",
		"size: " + canary:                   "form f.yaml:1:7: size: want a whole number within 1 to 10; this is a text",
		"size: 11":                          "f.yaml:1:7: size: want a whole number within 1 to 10; this is a number",
		"name: x\nnme: " + canary:           "f.yaml:2:1: nme: there is no such field; there are name, size",
		"name: x\nname: " + canary:          "f.yaml:2:1: name appears twice",
		"{\"" + canary + " b\": x}":         "f.yaml:1:2: want fields: name, size; this is not such a name",
		"name: !" + canary + " x":           "f.yaml:1:7: tags, directives and marks of keys are not allowed",
		"name: '" + canary:                  "f.yaml:1:7: this is not YAML",
		canary:                              "f.yaml:1:1: want fields: name, size; this is a text",
		strings.Repeat(canary, 100) + ": x": "it has 603 bytes; a form has at most 200",
	} {
		var f struct {
			Name string `json:"name"`
			Size int    `json:"size" min:"1" max:"10"`
		}
		doc, err := strictyaml.OpenSecret("form", "f.yaml", []byte(text), 200)
		if err == nil {
			err = doc.Root.Decode(&f)
		}
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q gives %v; want …%s…", text, err, want)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"fail_fast", "max_failed", "max_attempts", "timeout", "retry_backoff", "max_backoff", "whole_chunk",
		"retry_codes", "rate", "request-rate", "a-max-bytes", "b-max-bytes", "c-max-bytes", "d-max-bytes"}
	for name, want := range map[string]string{
		"failfast": "fail_fast", "attempts": "max_attempts", "max_fail": "max_failed", "request_timeout": "timeout",
		"backoff": "retry_backoff max_backoff", "retry_code": "retry_codes", "call-rate": "rate request-rate",
		"wholechunk": "whole_chunk", "b-bytes": "b-max-bytes", "max-bytes": "", "color": "", "-": "", "": "",
		"timeouts": "timeout", "tiemout": "timeout",
	} {
		if got := strings.Join(strictyaml.Nearest(name, known), " "); got != want {
			t.Errorf("%q: nearest is %q, want %q", name, got, want)
		}
	}
}
