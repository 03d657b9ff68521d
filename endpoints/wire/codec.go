package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// Binary is a result that is not JSON: a PDF, an image. Use it, or a pointer to it, as a handler's Out.
type Binary struct {
	ContentType string // such as application/pdf; "" means application/octet-stream
	Data        []byte
}

// DecodePayload reads a payload into input, which points to a handler's In; nil leaves it as it is. A panic of the
// type's own decoder is an error: it must not cost more than the item.
func DecodePayload(payload []byte, input any) (err error) {
	if payload == nil {
		return nil
	}
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	return json.Unmarshal(payload, input)
}

// EncodePayload writes a payload as JSON, the same way each time, so that what is repeated repeats its bytes. A panic
// of the type's own encoder is an error. On an error buf holds a part of it.
func EncodePayload(buf *bytes.Buffer, value any) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	from := buf.Len()
	if err := json.MarshalWrite(buf, value, json.Deterministic(true)); err != nil {
		return err
	}
	return CheckDepth(buf.Bytes()[from:])
}

// AppendResult writes the member of a slot that holds a result: "d", or "t" and "b". result points to a handler's Out.
// On an error, which a panic of the type's own encoder counts as, buf holds a part of it.
func AppendResult(buf *bytes.Buffer, result any) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	if b := AsBinary(result); b != nil {
		kind, err := b.TypeOf()
		if err == nil {
			AppendBytes(buf, kind, b.Data)
		}
		return err
	}
	buf.WriteString(`"d":`)
	from := buf.Len()
	if err := json.MarshalWrite(buf, result); err != nil {
		return err
	}
	return CheckDepth(buf.Bytes()[from:])
}

// CheckDepth refuses valid JSON that is nested deeper than any reader of the protocol takes, so that it does not cost
// the message that it stands in.
func CheckDepth(value []byte) error {
	if jsonvalue.Deeper(value, DefaultMaxDepth) {
		return fmt.Errorf("it is nested over %d deep", DefaultMaxDepth)
	}
	return nil
}

// AsBinary returns the result that is not JSON, if it is none. result points to a handler's Out.
func AsBinary(result any) *Binary {
	switch r := result.(type) {
	case *Binary:
		return r
	case **Binary:
		return *r
	case *any:
		switch v := (*r).(type) {
		case Binary:
			return &v
		case *Binary:
			return v
		}
	}
	return nil
}

// TypeOf returns the content type of a result that is not JSON.
func (b *Binary) TypeOf() (string, error) {
	if b.ContentType == "" {
		return DefaultBinaryType, nil
	}
	if !ValidContentType(b.ContentType) {
		return "", fmt.Errorf("content type %.80q is not one", b.ContentType)
	}
	return b.ContentType, nil
}

// AppendBytes writes a result that is not JSON, as a slot has it.
func AppendBytes(buf *bytes.Buffer, contentType string, data []byte) {
	buf.Grow(base64.StdEncoding.EncodedLen(len(data)) + len(contentType) + len(`"t":"","b":""}`))
	buf.Write(appendEncoded(buf.AvailableBuffer(), contentType, data))
}

// appendEncoded writes "t":"image/png","b":"…".
func appendEncoded(b []byte, contentType string, data []byte) []byte {
	b = append(b, `"t":`...)
	b = AppendString(b, contentType)
	b = append(b, `,"b":"`...)
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

// PayloadError says where a payload does not fit the handler's input. It names the place and the types, never the
// value: payloads do not belong in messages and logs.
func PayloadError(err error, input reflect.Type) *SlotError {
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	var detail string
	switch {
	case errors.As(err, &semantic):
		detail = fmt.Sprintf("at %s", place(semantic.JSONPointer))
		if kind := semantic.JSONKind; kind != 0 {
			detail += fmt.Sprintf(": a JSON %s", kindName(kind))
		}
		if semantic.GoType != nil {
			detail += fmt.Sprintf(" does not fit Go type %s", semantic.GoType)
		}
	case errors.As(err, &syntactic):
		detail = fmt.Sprintf("at %s: %v", place(syntactic.JSONPointer), syntactic.Err)
	default:
		detail = "its own decoder refused it"
	}
	return NewSlotError(CodeBadPayload, fmt.Sprintf("the payload does not fit %v %s", input, detail), false)
}

func place(pointer jsontext.Pointer) string {
	if pointer == "" {
		return "its root"
	}
	return Cut(string(pointer), 200)
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '0':
		return "number"
	case '{':
		return "object"
	default:
		return "array"
	}
}
