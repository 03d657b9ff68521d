package itemschema

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Guess infers a schema that all added items fit.
type Guess struct {
	items  int
	names  []string
	fields map[string]*column
}

type column struct {
	seen  int
	kinds []string // JSON Schema types
	texts int
	empty bool // some text is empty
	forms []form
}

type form struct {
	is    func(string) bool
	write func(map[string]any)
}

var (
	whole   = regexp.MustCompile(`^-?[0-9]+$`)
	decimal = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)
)

// forms returns the recognized forms, the narrowest first.
func forms() []form {
	pattern := func(r *regexp.Regexp) func(map[string]any) {
		return func(schema map[string]any) { schema["pattern"] = r.String() }
	}
	date := func(layout, name string) form {
		return form{func(s string) bool { _, err := time.Parse(layout, s); return err == nil },
			func(schema map[string]any) { schema["format"] = name }}
	}
	return []form{
		{whole.MatchString, pattern(whole)}, {decimal.MatchString, pattern(decimal)},
		date(time.DateOnly, "date"), date(time.RFC3339, "date-time"),
	}
}

// Add adds an item.
func (g *Guess) Add(item []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(item))
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	g.items++
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		c := g.column(name.String())
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := c.add(value); err != nil {
			return err
		}
	}
	return nil
}

func (g *Guess) column(name string) *column {
	if g.fields == nil {
		g.fields = map[string]*column{}
	}
	if g.fields[name] == nil {
		g.names = append(g.names, name)
		g.fields[name] = &column{forms: forms()}
	}
	return g.fields[name]
}

func (c *column) add(value jsontext.Value) error {
	c.seen++
	kind := kindOf(value)
	if !slices.Contains(c.kinds, kind) {
		c.kinds = append(c.kinds, kind)
	}
	if kind != "string" {
		return nil
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return err
	}
	c.texts++
	c.empty = c.empty || len(text) == 0
	c.forms = slices.DeleteFunc(c.forms, func(f form) bool { return !f.is(string(text)) })
	return nil
}

func kindOf(value jsontext.Value) string {
	switch value.Kind() {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	default:
		if strings.ContainsAny(string(value), ".eE") {
			return "number"
		}
		return "integer"
	}
}

// Schema returns a JSON Schema of the items: the types of fields, which fields are required, and formats of texts
// that look like numbers or dates. It is a proposal for review; later items may differ.
func (g *Guess) Schema() json.RawMessage {
	var out bytes.Buffer
	out.WriteString(`{"type":"object","required":`)
	required := []string{}
	for _, name := range g.names {
		if g.fields[name].seen == g.items {
			required = append(required, name)
		}
	}
	write := func(value any) {
		text, _ := json.Marshal(value) // of texts and lists of them
		out.Write(text)
	}
	write(required)
	out.WriteString(`,"properties":{`)
	for i, name := range g.names {
		if i > 0 {
			out.WriteByte(',')
		}
		write(name)
		out.WriteByte(':')
		write(g.fields[name].schema())
	}
	out.WriteString("}}")
	return out.Bytes()
}

func (c *column) schema() map[string]any {
	kinds := slices.Clone(c.kinds)
	if slices.Contains(kinds, "number") {
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "integer" })
	}
	slices.Sort(kinds)
	schema := map[string]any{"type": kinds}
	if len(kinds) == 1 {
		schema["type"] = kinds[0]
	}
	if c.texts > 0 && !c.empty {
		if len(c.forms) > 0 {
			c.forms[0].write(schema)
		} else {
			schema["minLength"] = 1
		}
	}
	return schema
}
