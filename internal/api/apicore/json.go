package apicore

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// JSON is a JSON request body, parsed while it is read into a T, whose lists bound themselves by [ReadList]. huma
// would hold the body three times and report each of a million mistakes. [ReadsJSON] describes it.
type JSON[T any] struct {
	sent T
	bad  error
}

// Resolve implements huma.Resolver.
func (b *JSON[T]) Resolve(ctx huma.Context) []error {
	b.bad = ReadJSON(ctx.BodyReader(), ctx.Operation().MaxBodyBytes, "the body", &b.sent)
	return nil
}

func (b *JSON[T]) wrong() error { return b.bad }

// Sent returns the parsed body.
func (b *JSON[T]) Sent() *T { return &b.sent }

// ReadsJSON describes an operation whose body is JSON of up to most bytes.
func ReadsJSON[T any](api huma.API, op huma.Operation, most int64) huma.Operation {
	op.MaxBodyBytes = most
	return Streamed(op, &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: SchemaOf[T](api)},
	}})
}

// ReadJSON parses one JSON object of up to most bytes. name is used in errors.
func ReadJSON(from io.Reader, most int64, name string, into any) error {
	limited := &io.LimitedReader{R: Whole(from, name, "nothing was changed"), N: most + 1}
	err := json.UnmarshalRead(limited, into, json.RejectUnknownMembers(true))
	if limited.N <= 0 {
		return TooLarge(fmt.Sprintf("%s is larger than %d MiB; send it in several requests", name, most>>20))
	}
	wrong, syntax := &json.SemanticError{}, &jsontext.SyntacticError{}
	switch {
	case errors.As(err, &wrong):
		return wrongValue(name, wrong)
	case errors.As(err, &syntax) && syntax.ByteOffset == 0 && errors.Is(err, io.ErrUnexpectedEOF):
		return BadInput(name + " is empty; send one JSON object")
	case errors.As(err, &syntax):
		return BadInput(fmt.Sprintf("%s is not valid JSON at byte %d: %v", name, syntax.ByteOffset+1, syntax.Err))
	}
	return err //nolint:wrapcheck // says where
}

func wrongValue(name string, wrong *json.SemanticError) error {
	place := placeOf(wrong.JSONPointer)
	if said, ok := errors.AsType[*InputError](wrong.Err); ok {
		return said
	}
	if errors.Is(wrong.Err, json.ErrUnknownName) {
		return BadInput(fmt.Sprintf("%s has an unknown member %q; leave it out, or see %s/openapi.json for those that there "+
			"are", name, Echo(place), Prefix))
	}
	if place == "" {
		place = name
	}
	if wrong.GoType == reflect.TypeFor[time.Time]() {
		return BadInput(Echo(place) + " must be a time as in RFC 3339, like 2026-11-24T20:15:00Z")
	}
	if _, own := reflect.TypeAssert[encoding.TextUnmarshaler](reflect.New(wrong.GoType)); own && wrong.Err != nil {
		return BadInput(Echo(place) + ": " + Cut(wrong.Err.Error(), 2*MaxEchoed))
	}
	but := ""
	if len(wrong.JSONValue) > 0 {
		but = ", not " + Echo(string(wrong.JSONValue))
	}
	return BadInput(Echo(place) + " must be " + wanted(wrong.GoType) + but)
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "an array"
	case reflect.Array:
		return fmt.Sprintf("an array of %d values", t.Len())
	case reflect.Struct, reflect.Map:
		return "a JSON object"
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Float64:
		return "a number"
	default:
		return fmt.Sprintf("a whole number up to %d", uint64(1)<<(t.Bits()-1)-1)
	}
}

func placeOf(at jsontext.Pointer) string {
	place := ""
	for name := range at.Tokens() {
		switch {
		case strings.Trim(name, "0123456789") == "" && name != "" && place != "":
			place += "[" + name + "]"
		case place != "":
			place += "." + name
		default:
			place = name
		}
	}
	return place
}

// ReadList reads an array of 1 to most values and stops at the first that check refuses. An empty list is an error:
// it would select as much as a missing list.
func ReadList[T any](dec *jsontext.Decoder, most int, check func(place string, one T) error) (all []T, err error) {
	if dec.PeekKind() != '[' { // null, if not an error
		return nil, cmp.Or(json.UnmarshalDecode(dec, &all), emptyList(dec.StackPointer()))
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != ']' {
		var one T
		if err := json.UnmarshalDecode(dec, &one); err != nil {
			return nil, err
		}
		at := dec.StackPointer()
		if len(all) == most {
			return nil, BadInput(fmt.Sprintf("there are more than %d %s; send them in several requests", most,
				placeOf(at.Parent())))
		}
		if err := check(placeOf(at), one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if _, err = dec.ReadToken(); err == nil && len(all) == 0 {
		err = emptyList(dec.StackPointer())
	}
	return all, err
}

func emptyList(at jsontext.Pointer) error {
	return BadInput(placeOf(at) + " is empty: leave it out, or list what is meant")
}
