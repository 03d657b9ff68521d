package endpoints

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Binary is a result that is not JSON: a PDF, an image. Use it, or a pointer to it, as a handler's Out.
type Binary struct {
	ContentType string // such as application/pdf; "" means application/octet-stream
	Data        []byte
}

// decodePayload reads a payload into input, which points to a handler's In; nil leaves it as it is. A panic of the
// type's own decoder is an error: it must not cost more than the item.
func decodePayload(payload []byte, input any) (err error) {
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

// appendResult writes the member of a slot that holds a result: "d", or "t" and "b". result points to a handler's Out.
// On an error, which a panic of the type's own encoder counts as, buf holds a part of it.
func appendResult(buf *bytes.Buffer, result any) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	switch r := result.(type) {
	case *Binary:
		return appendBinary(buf, r)
	case **Binary:
		if *r != nil {
			return appendBinary(buf, *r)
		}
	case *any:
		switch v := (*r).(type) {
		case Binary:
			return appendBinary(buf, &v)
		case *Binary:
			if v != nil {
				return appendBinary(buf, v)
			}
		}
	}
	buf.WriteString(`"d":`)
	return json.MarshalWrite(buf, result)
}

func appendBinary(buf *bytes.Buffer, r *Binary) error {
	contentType := r.ContentType
	if contentType == "" {
		contentType = DefaultBinaryType
	}
	if !validContentType(contentType) {
		return fmt.Errorf("content type %.80q is not one", contentType)
	}
	buf.Grow(base64.StdEncoding.EncodedLen(len(r.Data)) + len(contentType) + len(`"t":"","b":""}`))
	buf.Write(appendEncoded(buf.AvailableBuffer(), contentType, r.Data))
	return nil
}

// appendEncoded writes "t":"image/png","b":"…".
func appendEncoded(b []byte, contentType string, data []byte) []byte {
	b = append(b, `"t":`...)
	b = appendString(b, contentType)
	b = append(b, `,"b":"`...)
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

// payloadError says where a payload does not fit the handler's input. It names the place and the types, never the
// value: payloads do not belong in messages and logs.
func payloadError(err error, input reflect.Type) *SlotError {
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
	return newSlotError(CodeBadPayload, fmt.Sprintf("the payload does not fit %v %s", input, detail), false)
}

func place(pointer jsontext.Pointer) string {
	if pointer == "" {
		return "its root"
	}
	return cut(string(pointer), 200)
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
