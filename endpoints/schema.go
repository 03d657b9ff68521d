package endpoints

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func contractOf[In, Out any]() wire.Contract {
	return wire.Contract{In: schemaOf(reflect.TypeFor[In]()), Out: schemaOf(reflect.TypeFor[Out]())}
}

// maxSchemaDepth bounds how many levels of nested types a schema has.
const maxSchemaDepth = 8

// schemaOf returns the JSON Schema of a type as encoded in messages. It is nil for types without a known shape:
// interfaces, types with custom codecs, Binary. A schema over wire.MaxSchema is cut to fewer levels. It starts with
// one level, because recursive types grow without bound.
func schemaOf(t reflect.Type) (found json.RawMessage) {
	for depth := 1; depth <= maxSchemaDepth; depth++ {
		text, err := json.Marshal(newSchema(t, depth))
		if err != nil || len(text) > wire.MaxSchema || string(text) == "{}" {
			break
		}
		found = text
	}
	return found
}

// schema is the subset of JSON Schema that Go types need.
type schema struct {
	Type       string             `json:"type,omitempty"`
	Format     string             `json:"format,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"`
	Items      *schema            `json:"items,omitempty"`
	Additional *schema            `json:"additionalProperties,omitempty"`
}

// hasCodec reports whether a type has custom JSON encoding or decoding.
func hasCodec(t reflect.Type) bool {
	return slices.ContainsFunc([]reflect.Type{
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[json.Marshaler](), reflect.TypeFor[jsonv2.UnmarshalerFrom](),
		reflect.TypeFor[jsonv2.MarshalerTo](), reflect.TypeFor[encoding.TextUnmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextAppender](),
	}, reflect.PointerTo(t).Implements)
}

func newSchema(t reflect.Type, depth int) *schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return &schema{Type: "string", Format: "date-time"}
	case depth < 0 || hasCodec(t) || t == reflect.TypeFor[wire.Binary]() || t == reflect.TypeFor[time.Duration]():
		return &schema{}
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &schema{Type: "string"}
		}
		return &schema{Type: "array", Items: newSchema(t.Elem(), depth-1)}
	case reflect.Map:
		return &schema{Type: "object", Additional: newSchema(t.Elem(), depth-1)}
	case reflect.Struct:
		return structSchema(t, depth)
	}
	return &schema{Type: scalar(t.Kind())}
}

// scalar returns the JSON Schema type of a kind, or "" for any.
func scalar(kind reflect.Kind) string {
	switch {
	case kind == reflect.Bool:
		return "boolean"
	case kind == reflect.String:
		return "string"
	case kind == reflect.Float32 || kind == reflect.Float64:
		return "number"
	case kind >= reflect.Int && kind <= reflect.Uintptr:
		return "integer"
	}
	return ""
}

type member struct {
	name     string
	level    int // of embedding
	tagged   bool
	required bool
	schema   *schema
}

// structSchema returns a property for each decoded member. Of members with one name the least embedded wins, then the
// tagged one, as in encoding/json.
func structSchema(t reflect.Type, depth int) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}}
	members := s.members(t, depth, 0, true, nil)
	for _, m := range members {
		if _, done := s.Properties[m.name]; done {
			continue
		}
		rivals := slices.DeleteFunc(slices.Clone(members), func(o member) bool { return o.name != m.name })
		slices.SortStableFunc(rivals, func(a, b member) int { return a.rank() - b.rank() })
		best := rivals[0]
		if len(rivals) > 1 && rivals[1].rank() == best.rank() {
			best = member{schema: &schema{}} // ambiguous: none is decoded
		}
		s.Properties[m.name] = best.schema
		if best.required {
			s.Required = append(s.Required, m.name)
		}
	}
	return s
}

func (m *member) rank() int {
	if m.tagged {
		return 2 * m.level
	}
	return 2*m.level + 1
}

// members returns the fields of a struct and its embedded structs. It opens the schema if unknown members are kept.
func (s *schema) members(t reflect.Type, depth, level int, required bool, within []reflect.Type) (all []member) {
	if slices.Contains(within, t) {
		return nil
	}
	within = append(within, t)
	for field := range t.Fields() {
		tag := field.Tag.Get("json")
		name, rest, _ := strings.Cut(tag, ",")
		options := strings.Split(rest, ",")
		inner, inlined := embeds(&field, name, options)
		switch {
		case tag == "-" || !field.IsExported() && !field.Anonymous:
		case inlined && inner.Kind() == reflect.Struct && !hasCodec(inner):
			all = append(all, s.members(inner, depth, level+1, required && field.Type == inner, within)...)
		case inlined || slices.Contains(options, "unknown") || strings.HasPrefix(name, "'"):
			s.Additional = &schema{}
		default:
			all = append(all, memberOf(&field, name, options, depth, level, required))
		}
	}
	return all
}

// embeds reports whether the members of the field's type belong to the struct, and returns that type.
func embeds(field *reflect.StructField, name string, options []string) (inner reflect.Type, is bool) {
	if inner = field.Type; inner.Kind() == reflect.Pointer {
		inner = inner.Elem()
	}
	return inner, field.Anonymous && name == "" || slices.Contains(options, "inline") || slices.Contains(options, "embed")
}

func memberOf(field *reflect.StructField, name string, options []string, depth, level int, required bool) member {
	m := member{name: name, level: level, tagged: name != "", required: required, schema: newSchema(field.Type, depth-1)}
	if name == "" {
		m.name = field.Name
	}
	if slices.Contains(options, "string") && (m.schema.Type == "number" || m.schema.Type == "integer") {
		m.schema = &schema{Type: "string"}
	}
	for _, o := range options {
		if o == "omitempty" || o == "omitzero" || strings.HasPrefix(o, "case:") {
			m.required = false
		}
	}
	if kind := field.Type.Kind(); kind == reflect.Pointer || kind == reflect.Interface {
		m.required = false
	}
	return m
}
