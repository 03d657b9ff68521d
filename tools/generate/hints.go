package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type object = map[string]any

// hinted returns the document with hints for the generator: each schema member's Go name and type on the server, so
// that client code looks like the server's. The server's own types become strings, or types that the client package
// defines by hand. The published document has no hints.
func hinted(doc *huma.OpenAPI) (object, error) {
	text, err := doc.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("write the document: %w", err)
	}
	var root object
	if err := json.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	h := hinter{registry: doc.Components.Schemas, schemas: at(root, "components", "schemas"), enums: object{}}
	for _, item := range at(root, "paths") {
		for _, op := range item.(object) {
			body, _ := json.Marshal(at(op.(object), "requestBody")) // it was JSON
			h.asked = append(h.asked, body...)
		}
	}
	for name, schema := range h.schemas {
		if err := h.schema(name, schema.(object)); err != nil {
			return nil, err
		}
	}
	for name, enum := range h.enums {
		if _, taken := h.schemas[name]; taken {
			return nil, fmt.Errorf("the values called %s have the name of a schema", name)
		}
		h.schemas[name] = enum
	}
	delete(at(root, "components"), "responses") // all have the same type under different names
	for path, item := range at(root, "paths") {
		for method, op := range item.(object) {
			h.operation(strings.ToUpper(method), path, op.(object))
		}
	}
	return root, nil
}

func at(from object, names ...string) object {
	for _, name := range names {
		from, _ = from[name].(object)
	}
	return from
}

const commentWidth = 118

type hinter struct {
	registry huma.Registry
	schemas  object
	enums    object // texts with a limited set of values, by the name of their type
	asked    []byte // the bodies of requests
}

func (h *hinter) schema(name string, schema object) error {
	goType := h.registry.TypeFromRef("#/components/schemas/" + name)
	if goType == nil || goType.Kind() != reflect.Struct {
		return fmt.Errorf("schema %s is of no struct; the client needs the names of its fields", name)
	}
	fields := map[string]reflect.StructField{}
	order := map[string]int{}
	for i, field := range reflect.VisibleFields(goType) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); field.IsExported() && tag != "" && tag != "-" {
			fields[tag], order[tag] = field, i
		}
	}
	parts := h.parts(name, goType)
	if len(parts) > 0 {
		schema["x-client-embeds"] = slices.Sorted(maps.Keys(parts))
	}
	members := at(schema, "properties")
	for member, described := range members {
		field, ok := fields[member]
		if !ok {
			return fmt.Errorf("schema %s has a member %s that %s has not", name, member, goType)
		}
		if within(parts, field) {
			delete(members, member)
			continue
		}
		p := described.(object)
		text := h.goType(field.Type, p)
		p["x-go-name"], p["x-go-type"], p["x-order"] = camel(member), text, order[member]
		p["x-go-type-skip-optional-pointer"] = true
		p["x-omitempty"] = strings.Contains(field.Tag.Get("json"), ",omitempty")
		p["x-omitzero"] = strings.Contains(field.Tag.Get("json"), ",omitzero")
		sayValues(p, text)
	}
	return nil
}

// parts returns the types that a type embeds in the client, by schema name: those that it embeds on the server and
// that have a schema. Request bodies are flat, since users write them as literals.
func (h *hinter) parts(name string, goType reflect.Type) map[string]reflect.StructField {
	parts := map[string]reflect.StructField{}
	if bytes.Contains(h.asked, []byte("/"+name+`"`)) {
		return parts
	}
	for _, field := range reflect.VisibleFields(goType) {
		part := huma.DefaultSchemaNamer(field.Type, "")
		if field.Anonymous && field.Tag.Get("json") == "" && h.schemas[part] != nil && !within(parts, field) &&
			h.registry.TypeFromRef("#/components/schemas/"+part) == field.Type {
			parts[part] = field
		}
	}
	return parts
}

func within(parts map[string]reflect.StructField, field reflect.StructField) bool {
	for _, p := range parts {
		if len(field.Index) > len(p.Index) && slices.Equal(field.Index[:len(p.Index)], p.Index) {
			return true
		}
	}
	return false
}

func (h *hinter) goType(t reflect.Type, schema object) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "time.Time"
	case reflect.TypeFor[json.RawMessage]():
		return "json.RawMessage"
	case reflect.TypeFor[[]byte]():
		return "[]byte"
	case reflect.TypeFor[workqueue.Duration](), reflect.TypeFor[collector.Span]():
		return "Duration"
	case reflect.TypeFor[workqueue.Adaptive](), reflect.TypeFor[runs.Sizing]():
		return "Sizing"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + h.goType(t.Elem(), schema)
	case reflect.Slice:
		return "[]" + h.goType(t.Elem(), at(schema, "items"))
	case reflect.Map:
		return "map[" + h.goType(t.Key(), object{}) + "]" + h.goType(t.Elem(), at(schema, "additionalProperties"))
	case reflect.Struct:
		return huma.DefaultSchemaNamer(t, "")
	case reflect.Interface:
		return "any"
	case reflect.String:
		return h.text(t, schema)
	case reflect.Array: // ids, which are strings in JSON
		return "string"
	default:
		return t.Kind().String()
	}
}

func (h *hinter) text(t reflect.Type, schema object) string {
	given, ok := schema["enum"].([]any)
	values := slices.Clone(given)
	if !ok || t.PkgPath() == "" {
		return "string"
	}
	if former, ok := h.enums[t.Name()].(object); ok { // one place may allow fewer values than another
		for _, value := range former["enum"].([]any) {
			if !slices.Contains(values, value) {
				values = append(values, value)
			}
		}
	}
	slices.SortFunc(values, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	names := make([]any, 0, len(values))
	for _, value := range values {
		names = append(names, t.Name()+camel(value.(string)))
	}
	h.enums[t.Name()] = object{"type": "string", "enum": values, "x-enum-varnames": names,
		"description": "is a text; a newer server may know more values."}
	return t.Name()
}

// sayValues lists the values of a string without a named type in its comment.
func sayValues(schema object, goType string) {
	values, ok := schema["enum"].([]any)
	if !ok || strings.TrimLeft(goType, "*[]") != "string" {
		return
	}
	said, _ := schema["description"].(string)
	texts := make([]string, 0, len(values))
	for _, value := range values {
		texts = append(texts, fmt.Sprint(value))
	}
	schema["description"] = strings.TrimPrefix(said+"; one of "+strings.Join(texts, ", "), "; ")
}

// operation adds hints to the parameters, and the types that the client's method takes and returns.
func (h *hinter) operation(method, path string, op object) {
	if parameters, ok := op["parameters"].([]any); ok {
		op["parameters"] = slices.DeleteFunc(parameters, func(p any) bool {
			return p.(object)["in"] == "header" // the client sets the actor, the rest are options of a call
		})
		for _, p := range op["parameters"].([]any) {
			hintParameter(p.(object))
		}
	}
	op["x-client-comment"] = comment(method, path, op)
	if document := typeOfContent(at(op, "requestBody", "content", "application/json")); document != "" {
		op["x-client-body"] = document
	} else if body := at(op, "requestBody"); body != nil {
		body["content"] = object{"application/octet-stream": object{"schema": object{"type": "string", "format": "binary"}}}
	}
	results := map[string]bool{}
	for status, answer := range at(op, "responses") {
		content := at(answer.(object), "content")
		if status[0] == '2' && (status != "202" || content != nil) { // without content, the client returns an error
			results[typeOfContent(at(content, "application/json"))] = true
		}
		if content["text/event-stream"] != nil {
			op["x-client-events"] = true
		}
	}
	if names := slices.Collect(maps.Keys(results)); len(names) == 1 && names[0] != "" {
		op["x-client-result"] = names[0]
		h.pages(op, at(h.schemas, names[0], "properties"))
	}
	delete(op, "responses") // the hints replace them
	op["responses"] = object{"200": object{"description": "ok"}}
}

// pages adds hints for paginated operations: their answers have one list and next.
func (h *hinter) pages(op, answer object) {
	listed, isList := strings.CutPrefix(camel(op["operationId"].(string)), "List")
	if !isList || answer["next"] == nil {
		return
	}
	var lists []object
	for _, member := range answer {
		if text, _ := member.(object)["x-go-type"].(string); strings.HasPrefix(text, "[]") {
			lists = append(lists, member.(object))
		}
	}
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		if name := p.(object)["name"]; len(lists) == 1 && (name == "after" || name == "before") {
			op["x-client-pages"] = object{"from": p.(object)["x-go-name"], "entries": lists[0]["x-go-name"],
				"entry": strings.TrimPrefix(lists[0]["x-go-type"].(string), "[]"), "name": "All" + listed}
		}
	}
}

func typeOfContent(content object) string {
	ref, _ := at(content, "schema")["$ref"].(string)
	return ref[strings.LastIndex(ref, "/")+1:]
}

// hintParameter sets a parameter's type. Absent means the zero value, except for numbers where 0 is meaningful.
func hintParameter(p object) {
	schema := at(p, "schema")
	text := map[string]string{
		"string": "string", "boolean": "bool", "number": "float64", "integer": "int64", "array": "[]string",
	}[fmt.Sprint(schema["type"])]
	if list, ok := schema["type"].([]any); ok && slices.Contains(list, any("array")) {
		text = "[]string"
	}
	if most, ok := schema["maximum"].(float64); ok && text == "int64" && most < 1<<31 {
		text = "int"
	}
	if schema["format"] == "date-time" {
		text = "time.Time"
	}
	least, bounded := schema["minimum"].(float64)
	if usual, ok := schema["default"].(float64); ok && bounded && least <= 0 && usual != 0 {
		text = "*" + text
	}
	sayValues(schema, text)
	if said, ok := schema["description"].(string); ok {
		p["description"] = said
	}
	schema["x-go-type"], schema["x-go-type-skip-optional-pointer"] = text, true
	p["x-go-type-skip-optional-pointer"] = true
	p["x-go-name"] = camel(p["name"].(string))
}

func comment(method, path string, op object) string {
	text := fmt.Sprintf("%s: %s.", camel(op["operationId"].(string)), strings.TrimSuffix(op["summary"].(string), "."))
	if described, _ := op["description"].(string); described != "" {
		text += "\n\n" + described
	}
	text += fmt.Sprintf("\n\nIt is %s %s, for role %s.", method, path, op["x-tranche-role"])
	var lines strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if lines.Len() > 0 {
			lines.WriteString("\n//\n")
		}
		lines.WriteString(wrapped(paragraph))
	}
	return lines.String()
}

func wrapped(paragraph string) string {
	var lines []string
	line := "//"
	for word := range strings.FieldsSeq(paragraph) {
		if len(line)+1+len(word) > commentWidth {
			lines, line = append(lines, line), "//"
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}

func camel(name string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(name, func(r rune) bool { return strings.ContainsRune("-_ :.", r) }) {
		switch word {
		case "id", "sql", "http", "url", "eta", "json", "nats", "pid", "sha256", "oidc":
			b.WriteString(strings.ToUpper(word))
		case "ids":
			b.WriteString("IDs")
		default:
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}
