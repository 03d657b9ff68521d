package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// MaxOps limits the operations of one add.
const MaxOps = 100_000

// Read reads operations: a sequence of JSON objects like
//
//	{"id":"order-17","key":"CUST-7","priority":0,"payload":{"amount":12}}
//
// or a list of them in {"ops":[…]}. Only the payload is required. It returns an *OpError for invalid input, a
// *TooManyError, or the reader's error.
func Read(from io.Reader) ([]collector.Op, error) {
	from, err := withoutMark(from)
	if err != nil {
		return nil, err
	}
	r := &opReader{lines: &lineCounter{from: from}}
	r.dec = jsontext.NewDecoder(r.lines)
	for {
		switch kind := r.dec.PeekKind(); kind {
		case '{':
			if err := r.object(); err != nil {
				return nil, err
			}
		case 0:
			_, err := r.dec.ReadToken()
			if errors.Is(err, io.EOF) && len(r.ops) == 0 && !r.listed {
				return nil, &OpError{Problem: "there is no operation; want objects like " + example}
			}
			if errors.Is(err, io.EOF) {
				return r.ops, nil
			}
			return nil, r.broken(err)
		default:
			return nil, r.wrong("", "want an object like %s; this is %s", example, kindName(kind))
		}
	}
}

func withoutMark(from io.Reader) (io.Reader, error) {
	const mark = "\ufeff"
	begin := make([]byte, len(mark))
	n, err := io.ReadFull(from, begin)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if string(begin[:n]) == mark {
		return from, nil
	}
	return io.MultiReader(bytes.NewReader(begin[:n]), from), nil
}

const example = `{"id":"order-17","key":"CUST-7","payload":{"amount":12}}`

// opReader reads operations value by value. What it keeps is bounded by the reader's limit.
type opReader struct {
	dec    *jsontext.Decoder
	lines  *lineCounter
	ops    []collector.Op
	listed bool // there was a list, maybe empty
}

// object reads an object, which is an operation unless its first member is ops.
func (r *opReader) object() error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	var op collector.Op
	first := true
	for ; r.dec.PeekKind() == '"'; first = false {
		token, err := r.dec.ReadToken()
		if err != nil {
			return r.broken(err)
		}
		name := token.String()
		if first && name == "ops" {
			return r.list()
		}
		if err := r.member(&op, name); err != nil {
			return err
		}
	}
	return r.end(op)
}

func (r *opReader) list() error {
	if kind := r.dec.PeekKind(); kind != '[' {
		return r.wrong("ops", "want a list of operations; this is %s", kindName(kind))
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	r.listed = true
	for r.dec.PeekKind() != ']' {
		if kind := r.dec.PeekKind(); kind != '{' && kind != 0 {
			return r.wrong("", "want an object like %s; this is %s", example, kindName(kind))
		}
		if _, err := r.dec.ReadToken(); err != nil {
			return r.broken(err)
		}
		var op collector.Op
		for r.dec.PeekKind() == '"' {
			token, err := r.dec.ReadToken()
			if err == nil {
				err = r.member(&op, token.String())
			}
			if err != nil {
				return r.broken(err)
			}
		}
		if err := r.end(op); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	if r.dec.PeekKind() == '"' {
		return &OpError{Line: r.line(), Problem: `want only "ops" in the object that holds them`}
	}
	_, err := r.dec.ReadToken()
	return r.broken(err)
}

func (r *opReader) end(op collector.Op) error {
	line := r.line()
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	if op.Payload == nil {
		return &OpError{Number: len(r.ops) + 1, Line: line, Field: "payload", Problem: "it is missing; it may be any JSON"}
	}
	if len(r.ops) == MaxOps {
		return &TooManyError{}
	}
	r.ops = append(r.ops, op)
	return nil
}

func (r *opReader) member(op *collector.Op, name string) error {
	switch name {
	case "id":
		return r.text(&op.ID, name)
	case "key":
		return r.text(&op.Key, name)
	case "priority":
		return r.priority(op)
	case "payload":
		return r.payload(op)
	}
	return r.wrong("", "unknown member %.60q; there are id, key, priority, payload", name)
}

func (r *opReader) text(into *string, name string) error {
	if kind := r.dec.PeekKind(); kind != '"' && kind != 0 {
		return r.wrong(name, "want text in quotes; this is %s", kindName(kind))
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return r.broken(err)
	}
	*into = token.String()
	return nil
}

func (r *opReader) priority(op *collector.Op) error {
	value, err := r.dec.ReadValue()
	if err != nil {
		return r.broken(err)
	}
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 || n > collector.MaxOpPriority {
		return r.wrong("priority", "want a whole number within 0 to %d, the highest first; this is %.40q",
			collector.MaxOpPriority, value)
	}
	op.Priority = n
	return nil
}

func (r *opReader) payload(op *collector.Op) error {
	value, err := r.dec.ReadValue()
	if err != nil {
		return r.broken(err)
	}
	kept := value.Clone()
	if err := kept.Compact(); err != nil {
		return r.broken(err)
	}
	if problem := payloadProblem(kept); problem != "" {
		return r.wrong("payload", "%s", problem)
	}
	op.Payload = json.RawMessage(kept)
	return nil
}

// payloadProblem says why a payload cannot be stored; empty: it can.
func payloadProblem(payload []byte) string {
	switch {
	case len(payload) > collector.MaxOpPayload:
		return fmt.Sprintf("it has %d bytes; at most %d are stored: send what it is about by reference", len(payload),
			collector.MaxOpPayload)
	case row.Deeper(payload, wire.DefaultMaxDepth):
		return fmt.Sprintf("it is nested deeper than %d", wire.DefaultMaxDepth)
	}
	return ""
}

func (r *opReader) wrong(field, format string, args ...any) error {
	return &OpError{Number: len(r.ops) + 1, Line: r.line(), Field: field, Problem: fmt.Sprintf(format, args...)}
}

func (r *opReader) broken(err error) error {
	if err == nil {
		return nil
	}
	if said, ok := errors.AsType[*OpError](err); ok {
		return said
	}
	if r.lines.err != nil {
		return r.lines.err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.wrong("", "the JSON is truncated")
	}
	problem := err.Error()
	if bad, ok := errors.AsType[*jsontext.SyntacticError](err); ok && bad.Err != nil {
		problem = bad.Err.Error()
	}
	return r.wrong("", "this is not JSON: %.200s", problem)
}

func (r *opReader) line() int { return r.lines.at(r.dec.InputOffset()) }

func kindName(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "text"
	case '0':
		return "a number"
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	default:
		return "no JSON"
	}
}
