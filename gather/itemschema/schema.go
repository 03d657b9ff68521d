package itemschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// MaxBytes is how long a schema may be: as long as a plan, which may have it in it.
const MaxBytes = 64 << 10

// place is the address of a schema within its compiler. Nothing is there.
const place = "tranche:items"

// Schema describes valid items. Any number of goroutines may use one.
type Schema struct{ full *jsonschema.Schema }

// Error reports an invalid schema.
type Error struct{ Reason string }

func (e *Error) Error() string { return e.Reason }

// Compile reads a schema. The error is an *Error.
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
	return &Schema{full: full}, nil
}

// nothingElse keeps schemas from reading files of the node.
type nothingElse struct{}

var errElsewhere = errors.New("a $ref may not leave the schema; put what it refers to under $defs")

// Load implements jsonschema.URLLoader.
func (nothingElse) Load(string) (any, error) { return nil, errElsewhere }

// explain says what is wrong with a schema, without the address that it has here.
func explain(err error) string {
	if errors.Is(err, errElsewhere) {
		return errElsewhere.Error()
	}
	if bad, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if wrong, ok := errors.AsType[*jsonschema.ValidationError](bad.Err); ok {
			if all := faultsOf(wrong); len(all) > 0 {
				return "it is no JSON Schema: " + all[0].String()
			}
		}
	}
	return "it is no JSON Schema: " + strings.ReplaceAll(err.Error(), place, "")
}

// maxDigits is how long a number may be that is looked at: what it takes to compare one grows faster than its length.
const maxDigits = 400

// Check returns what is wrong with an item, by field; nil when it is valid.
func (s *Schema) Check(item []byte) []Fault {
	value, err := decode(item)
	if err != nil {
		return []Fault{{Problem: err.Error()}}
	}
	return faults(s.full.Validate(value))
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

// refuseLong finds numbers that take too long to be compared.
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
