package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// Schema returns the JSON Schema of the documents that read accepts, without what it checks of their meaning. It calls
// read with an empty document, whose values describe what they accept.
func Schema(read func(*Document) error) map[string]any {
	d := &Document{}
	d.Root = Value{of: d}.undescribed()
	_ = read(d) // everything is missing
	d.Root.schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return d.Root.schema
}

func (v Value) undescribed() Value {
	return Value{of: v.of, at: &token.Position{}, schema: map[string]any{}}
}

// say sets a keyword of the schema, unless it is set.
func (v Value) say(keyword string, is any) {
	if _, said := v.schema[keyword]; !said && v.schema != nil {
		v.schema[keyword] = is
	}
}

func (v Value) describeFields(fields []Field) {
	properties := map[string]any{}
	for _, f := range fields {
		field := v.undescribed()
		if f.Doc != "" {
			field.say("description", f.Doc)
		}
		_ = f.Read(field)
		properties[f.Name] = field.schema
	}
	v.say("type", "object")
	v.say("properties", properties)
	v.say("additionalProperties", false)
}

func (v Value) describeEntries(kind, keyword string, read func(Value) error) {
	entry := v.undescribed()
	_ = read(entry)
	v.say("type", kind)
	v.say(keyword, entry.schema)
}

// describe describes what decode reads into a value with this tag, for a schema.
func (v Value) describe(into reflect.Value, tag reflect.StructTag) {
	if v.schema == nil {
		return
	}
	least, most, bounded := bounds(tag)
	limit := func(lower, upper string) {
		if bounded {
			v.say(upper, most)
		}
		if bounded && into.Kind() == reflect.Int || least > 0 {
			v.say(lower, least)
		}
	}
	if to, ok := reflect.TypeAssert[encoding.TextUnmarshaler](reflect.New(into.Type())); ok {
		v.describeText(to, tag)
		return
	}
	switch into.Kind() {
	case reflect.Int:
		v.say("type", "integer")
		limit("minimum", "maximum")
	case reflect.Bool:
		v.say("type", "boolean")
	case reflect.String:
		v.say("type", "string")
		if words, limited := tag.Lookup("enum"); limited {
			v.say("enum", strings.Split(words, ","))
			return
		}
		v.say("minLength", 1)
		limit("minLength", "maxLength")
	case reflect.Slice:
		limit("minItems", "maxItems")
	case reflect.Map:
		limit("minProperties", "maxProperties")
	}
}

// describeText describes a type that parses itself by what it says it wants.
func (v Value) describeText(to encoding.TextUnmarshaler, tag reflect.StructTag) {
	v.say("type", "string")
	if to.UnmarshalText([]byte("7")) == nil {
		v.schema["type"] = []string{"string", "integer"}
	}
	want := to.UnmarshalText(nil)
	if want == nil {
		return
	}
	text := strings.TrimPrefix(want.Error(), "want ")
	if least, bounded := tag.Lookup("min"); bounded {
		text += fmt.Sprintf(", within %s to %s", least, tag.Get("max"))
	}
	if doc, ok := v.schema["description"]; ok {
		text = fmt.Sprintf("%v: %s", doc, text)
	}
	v.schema["description"] = text
}
