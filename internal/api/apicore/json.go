package apicore

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/workqueue"
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
		return workqueue.TooLarge("%s is larger than %d MiB; send it in several requests", name, most>>20)
	}
	said, ok := errors.AsType[*InputError](err)
	_, text := ingest.BadJSON(name, err)
	switch {
	case ok:
		return said
	case text == "":
		return err //nolint:wrapcheck // none, or not about the JSON
	case errors.Is(err, json.ErrUnknownName):
		text += ", or see " + Prefix + "/openapi.json for those that there are"
	}
	return BadInput(text)
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
				ingest.PlaceOf(at.Parent())))
		}
		if err := check(ingest.PlaceOf(at), one); err != nil {
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
	return BadInput(ingest.PlaceOf(at) + " is empty: leave it out, or list what is meant")
}
