package strictyaml_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

type form struct {
	name, order string
	size        int
	on          bool
	age         time.Duration
	codes       []string
	params      map[string]string
}

func read(text string) (form, error) {
	f := form{params: map[string]string{}}
	doc, err := strictyaml.Open("form", "f.yaml", []byte(text), 200)
	if err != nil {
		return f, err
	}
	err = doc.Root.Fields(
		strictyaml.Field{Name: "name", Read: strictyaml.Text(&f.name)},
		strictyaml.Field{Name: "order", Read: strictyaml.OneOf(&f.order, "fifo", "priority")},
		strictyaml.Field{Name: "size", Read: strictyaml.Number(&f.size, 1, 10)},
		strictyaml.Field{Name: "on", Read: strictyaml.Truth(&f.on)},
		strictyaml.Field{Name: "age", Read: strictyaml.Duration(&f.age, time.Second, time.Hour)},
		strictyaml.Field{Name: "codes", Read: strictyaml.Texts(&f.codes)},
		strictyaml.Field{Name: "params", Read: func(v strictyaml.Value) error {
			return v.Entries("names and values", func(name string, v strictyaml.Value) error {
				text, ok := v.Plain()
				if !ok {
					return v.Wrong("a value")
				}
				f.params[name] = text
				return nil
			})
		}},
	)
	if err == nil && f.size > 5 && !doc.Given("age") {
		err = doc.Fail("size", "too much without an age")
	}
	return f, err
}

func TestOpenReadsWhatIsKnown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"\ufeff# a form\nname: x\norder: priority\nsize: 7\non: true\nage: 1m\ncodes: [A, B]\n" +
			"params: {year: 2026, ok: true}\n",
		`{"name":"x","order":"priority","size":7,"on":true,"age":"1m","codes":["A","B"],"params":{"year":2026,"ok":true}}`,
	} {
		f, err := read(text)
		if err != nil || f.name != "x" || f.order != "priority" || f.size != 7 || !f.on || f.age != time.Minute ||
			strings.Join(f.codes, " ") != "A B" || f.params["year"] != "2026" || f.params["ok"] != "true" {
			t.Errorf("%s is read as %+v, %v", text, f, err)
		}
	}
}

func TestOpenSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, want string }{
		{"",
			"form f.yaml: it is empty"},
		{"# nothing\n",
			"form f.yaml: it is empty"},
		{strings.Repeat("a", 201),
			"it has 201 bytes; a form has at most 200"},
		{"name: x\nnme: y\n",
			"f.yaml:2:1: unknown field \"nme\"; there are name, order, size"},
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
		{"size: \"3\"\n",
			"this is the text \"3\""},
		{"on: 1\n",
			"on: want true or false; this is 1"},
		{"age: 90\n",
			"age: want a time like 90s, 2m or 1h30m, within 1s to 1h0m0s; this is 90"},
		{"age: 2h\n",
			"this is the text \"2h\""},
		{"codes: A\n",
			"codes: want a list, each entry after a dash"},
		{"codes:\n  - A\n  - [B]\n",
			"f.yaml:3:5: codes[1]: want text"},
		{"params: [a]\n",
			"params: want names and values; this is a list"},
		{"params: {a: [b]}\n",
			"params.a: want a value; this is a list"},
		{"params: {1: b}\n",
			"the name \"1\" has to stand in quotes"},
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
		"name: x\nname: " + canary:          "f.yaml:2:1: name stands twice",
		"{\"" + canary + " b\": x}":         "f.yaml:1:2: want fields: name, size; what stands here is no such name",
		"name: !" + canary + " x":           "f.yaml:1:7: tags, directives and marks of keys are not allowed",
		"name: '" + canary:                  "f.yaml:1:7: this is not YAML",
		canary:                              "f.yaml:1:1: want fields: name, size; this is a text",
		strings.Repeat(canary, 100) + ": x": "it has 603 bytes; a form has at most 200",
	} {
		var name string
		var size int
		doc, err := strictyaml.OpenSecret("form", "f.yaml", []byte(text), 200)
		if err == nil {
			err = doc.Root.Fields(
				strictyaml.Field{Name: "name", Read: strictyaml.Text(&name)},
				strictyaml.Field{Name: "size", Read: strictyaml.Number(&size, 1, 10)},
			)
		}
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q gives %v; want …%s…", text, err, want)
		}
	}
}
