// Package itemschema validates the items of a run with a JSON Schema (draft 2020-12 unless the schema names another),
// and proposes a schema for existing items.
//
// It validates with santhosh-tekuri/jsonschema, with formats asserted.
//
// A schema cannot reach outside: $refs to files or servers are refused. Patterns are RE2's, in linear time. A check
// has a bounded number of steps, because references multiply: forty definitions with two references each make a
// trillion.
//
// Items must be objects as encoded by internal/intake: valid JSON without space between tokens and without repeated
// names. A Schema is not safe for concurrent use.
package itemschema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// MaxBytes bounds a schema, like a plan, which may contain it.
const MaxBytes = 64 << 10

// place is the schema's placeholder address in its compiler.
const place = "tranche:items"

// Schema describes valid items.
type Schema struct {
	full        *jsonschema.Schema
	steps, most int // of the current check
}

// Error reports an invalid schema.
type Error struct{ Reason string }

func (e *Error) Error() string { return e.Reason }

// Compile compiles a schema. The error is an *Error.
func Compile(text []byte) (*Schema, error) {
	if len(text) > MaxBytes {
		return nil, &Error{fmt.Sprintf("it has %d bytes, and at most %d are allowed", len(text), MaxBytes)}
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, &Error{fmt.Sprintf("it is not valid JSON: %v", err)}
	}
	if _, object := doc.(map[string]any); !object {
		return nil, &Error{`want an object, like {"type": "object", "required": ["id"]}`}
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(nothingElse{})
	c.AssertFormat()
	if err := c.AddResource(place, doc); err != nil {
		return nil, &Error{explain(err)}
	}
	full, err := c.Compile(place)
	if err != nil {
		return nil, &Error{explain(err)}
	}
	s := &Schema{full: full}
	s.meter(reflect.ValueOf(full), map[*jsonschema.Schema]bool{})
	if _, err := s.Check([]byte("{}")); err != nil {
		return nil, &Error{err.Error()}
	}
	return s, nil
}

// A check may take minSteps plus byteSteps per byte of the item. A step compares one value with one schema.
const (
	minSteps  = 100_000
	byteSteps = 20
)

var errTooManySteps = errors.New("checking an item against the schema takes too many steps; " +
	"use fewer $refs in allOf, anyOf and oneOf")

// meter makes a schema and its subschemas count steps and stop a check that takes too many. Formats come first.
func (s *Schema) meter(v reflect.Value, seen map[*jsonschema.Schema]bool) {
	switch v.Kind() {
	case reflect.Interface:
		s.meter(v.Elem(), seen)
	case reflect.Slice:
		for i := range v.Len() {
			s.meter(v.Index(i), seen)
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			s.meter(entries.Value(), seen)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			s.meter(field, seen)
		}
	case reflect.Pointer:
		switch v.Type() {
		case reflect.TypeFor[*jsonschema.DynamicRef]():
			s.meter(v.Elem(), seen)
		case reflect.TypeFor[*jsonschema.Schema]():
			at := (*jsonschema.Schema)(v.UnsafePointer()) // Interface rejects unexported fields
			if at == nil || seen[at] {
				return
			}
			seen[at] = true
			s.meter(v.Elem(), seen)
			at.Format = s.counted(at)
		}
	}
}

func (s *Schema) counted(at *jsonschema.Schema) *jsonschema.Format {
	steps := 1 + len(at.AllOf) + len(at.AnyOf) + len(at.OneOf)
	format := cmp.Or(at.Format, &jsonschema.Format{Validate: func(any) error { return nil }})
	return &jsonschema.Format{Name: format.Name, Validate: func(v any) error {
		if s.steps += steps + size(v); s.steps > s.most {
			return errTooManySteps
		}
		return format.Validate(v)
	}}
}

// nothingElse prevents schemas from reading the node's files.
type nothingElse struct{}

var errElsewhere = errors.New("a $ref may not leave the schema; put what it refers to under $defs")

// Load implements jsonschema.URLLoader.
func (nothingElse) Load(string) (any, error) { return nil, errElsewhere }

func explain(err error) string {
	if errors.Is(err, errElsewhere) {
		return errElsewhere.Error()
	}
	if bad, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if wrong, ok := errors.AsType[*jsonschema.ValidationError](bad.Err); ok {
			if all := faultsOf(wrong); len(all) > 0 {
				return "it is not a JSON Schema: " + all[0].String()
			}
		}
	}
	return "it is not a JSON Schema: " + strings.ReplaceAll(err.Error(), place, "")
}

// maxDigits bounds the length of numbers checked: comparing takes more than linear time.
const maxDigits = 400

// size is the cost of looking at a value once, in steps.
func size(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) / 64
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// Check returns an item's faults by field, or nil if it is valid; an error if the check takes too many steps.
func (s *Schema) Check(item []byte) ([]Fault, error) {
	value, err := decode(item)
	if err != nil {
		return faults(err), nil
	}
	s.steps, s.most = 0, minSteps+byteSteps*len(item)
	err = s.full.Validate(value)
	if s.steps > s.most {
		return nil, errTooManySteps
	}
	return faults(err), nil
}

func faults(err error) []Fault {
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return faultsOf(wrong)
	}
	return []Fault{{Problem: err.Error()}}
}

func decode(value []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("not valid JSON: %w", err)
	}
	return out, refuseLong(out)
}

// refuseLong rejects numbers that take too long to compare.
func refuseLong(value any) error {
	switch v := value.(type) {
	case json.Number:
		_, exponent, _ := strings.Cut(strings.ToLower(v.String()), "e")
		if len(v) > maxDigits || len(strings.TrimLeft(exponent, "+-0")) > 3 {
			return fmt.Errorf("the number %.20s… has too many digits to be checked; write it as a text", v)
		}
	case []any:
		for _, entry := range v {
			if err := refuseLong(entry); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, entry := range v {
			if err := refuseLong(entry); err != nil {
				return err
			}
		}
	}
	return nil
}

func english() *message.Printer { return message.NewPrinter(language.English) }

// Fault is one reason why an item is invalid.
type Fault struct {
	Field   string // such as address.city or lines.0.amount; empty for the whole item
	Problem string
}

func (f Fault) String() string {
	if f.Field == "" {
		return f.Problem
	}
	return fmt.Sprintf("%s: %s", f.Field, f.Problem)
}

// Limits of the faults reported for an item.
const (
	maxFaults  = 20
	maxField   = 100 // bytes
	maxProblem = 200
)

func faultsOf(err *jsonschema.ValidationError) []Fault {
	var all []Fault
	collect(err, &all)
	slices.SortFunc(all, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Problem, b.Problem))
	})
	all = slices.Compact(all)
	return all[:min(len(all), maxFaults)]
}

func collect(err *jsonschema.ValidationError, all *[]Fault) {
	add := func(name, problem string) {
		path := err.InstanceLocation
		if name != "" {
			path = append(slices.Clone(path), name)
		}
		*all = append(*all, Fault{short(strings.Join(path, "."), maxField), short(problem, maxProblem)})
	}
	switch is := err.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range is.Missing {
			add(name, "it is missing")
		}
	case *kind.AdditionalProperties:
		for _, name := range is.Properties {
			add(name, "the schema has no such field")
		}
	case *kind.AnyOf, *kind.OneOf, *kind.Not: // the branches' errors help no one
		add("", "it fits none of what the schema allows: "+err.ErrorKind.LocalizedString(english()))
	case *kind.FalseSchema:
		add("", "the schema allows nothing here")
	default:
		if len(err.Causes) == 0 {
			add("", err.ErrorKind.LocalizedString(english()))
		}
		for _, cause := range err.Causes {
			collect(cause, all)
		}
	}
}

func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// ValueEnd returns the end of the value that starts at a position in valid JSON without spaces.
func ValueEnd(text []byte, at int) int {
	if at >= len(text) {
		return at
	}
	switch text[at] {
	case '"':
		return textEnd(text, at)
	case '{', '[':
		return nestedEnd(text, at)
	default:
		for ; at < len(text); at++ {
			if c := text[at]; c == ',' || c == ':' || c == '}' || c == ']' {
				return at
			}
		}
		return at
	}
}

func nestedEnd(text []byte, at int) int {
	depth := 0
	for ; at < len(text); at++ {
		switch text[at] {
		case '"':
			at = textEnd(text, at) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
	return len(text)
}

func textEnd(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '"':
			return at + 1
		case '\\':
			at++
		}
	}
	return len(text)
}
