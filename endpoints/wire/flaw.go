package wire

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// Codes of results that readers of JSON understand in different ways, or not at all.
const (
	CodeTooDeep       = "nested_too_deep" // deeper than any reader of the protocol takes; not retryable
	CodeNotUTF8       = "not_utf8"        // JSON; not retryable
	CodeDuplicateName = "duplicate_name"  // stands in one object of the JSON twice; not retryable
	CodeLoneSurrogate = "lone_surrogate"  // an escape in the JSON that stands for no character; not retryable
)

// Flaw is why a value is no JSON that everybody reads alike.
type Flaw struct {
	Code  string
	Words string // what is wrong, after "JSON"
	At    string // a JSON pointer to the place, where it is known
}

// FlawOf returns what is wrong with a value that should be JSON; nil: nothing.
func FlawOf(value []byte, maxDepth int) *Flaw {
	valid := func(opts ...jsontext.Options) bool { return jsontext.Value(value).IsValid(opts...) }
	names, text := jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)
	switch {
	case jsonvalue.Deeper(value, maxDepth):
		return &Flaw{Code: CodeTooDeep, Words: fmt.Sprintf("that is nested over %d deep", maxDepth)}
	case valid():
		return nil
	case !utf8.Valid(value):
		return &Flaw{Code: CodeNotUTF8, Words: "that is not UTF-8"}
	case !valid(names, text):
		return &Flaw{Code: CodeBadResult, Words: "that is none"}
	case !valid(names):
		return &Flaw{CodeLoneSurrogate, `in which an escape is half of a pair, like \ud83d, and so no character`,
			where(value, names)}
	default:
		return &Flaw{CodeDuplicateName, "in which a name stands twice in one object", where(value)}
	}
}

// where is where a decoder stops.
func where(value []byte, opts ...jsontext.Options) string {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(value), opts...).ReadValue()
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return string(syntax.JSONPointer)
	}
	return ""
}

// Slot is the error of an item whose result it is.
func (f *Flaw) Slot() *SlotError {
	words := "the result is JSON " + f.Words
	if f.Code == CodeBadResult {
		words = "the result is not JSON; set its content type if it is not meant to be"
	}
	if f.At != "" {
		words += ": " + f.At
	}
	return NewSlotError(f.Code, words, false)
}
