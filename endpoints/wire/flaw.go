package wire

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Codes of results whose JSON is invalid or ambiguous.
const (
	CodeTooDeep       = "nested_too_deep" // deeper than readers accept; permanent
	CodeNotUTF8       = "not_utf8"        // not UTF-8; permanent
	CodeDuplicateName = "duplicate_name"  // a name occurs twice in one object; permanent
	CodeLoneSurrogate = "lone_surrogate"  // an escape is half of a surrogate pair; permanent
)

// Flaw is why a value is not JSON that all readers understand alike.
type Flaw struct {
	Code  string
	Words string // the problem, to follow "JSON"
	At    string // JSON pointer, if known
}

// FlawOf returns what is wrong with a value, or nil.
func FlawOf(value []byte, maxDepth int) *Flaw {
	valid := func(opts ...jsontext.Options) bool { return jsontext.Value(value).IsValid(opts...) }
	names, text := jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)
	switch {
	case row.Deeper(value, maxDepth):
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

// where returns the JSON pointer at which the decoder stops.
func where(value []byte, opts ...jsontext.Options) string {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(value), opts...).ReadValue()
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return string(syntax.JSONPointer)
	}
	return ""
}

// Slot returns the error of the item with that result.
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
