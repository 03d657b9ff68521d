package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Text is a text with variables.
type Text struct {
	pieces []piece
}

type piece struct {
	literal  string
	variable *variable
}

var errBrace = errors.New("a brace without its other one; write {{ or }} for a brace itself")

// ParseText parses a text with variables.
func ParseText(text string, variables Variables) (*Text, error) {
	t := &Text{}
	var literal strings.Builder
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			literal.WriteString(text)
			break
		}
		literal.WriteString(text[:i])
		brace, rest := text[i], text[i+1:]
		if rest != "" && rest[0] == brace {
			literal.WriteByte(brace)
			text = rest[1:]
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if brace == '}' || !closed || strings.Contains(name, "{") {
			return nil, errBrace
		}
		v, err := variables.parse(name, inText)
		if err != nil {
			return nil, err
		}
		t.literal(&literal)
		t.pieces = append(t.pieces, piece{variable: &v})
		text = after
	}
	t.literal(&literal)
	return t, nil
}

func (t *Text) literal(b *strings.Builder) {
	if b.Len() > 0 {
		t.pieces = append(t.pieces, piece{literal: b.String()})
		b.Reset()
	}
}

// Secrets returns the names of the secrets in the text.
func (t *Text) Secrets() (names []string) {
	for _, p := range t.pieces {
		if p.variable != nil && p.variable.root == "secret" {
			names = append(names, p.variable.of)
		}
	}
	return names
}

// Expand inserts the values, which must be texts, numbers or booleans.
func (t *Text) Expand(in *Values) (string, error) {
	var b strings.Builder
	for _, p := range t.pieces {
		if p.variable == nil {
			b.WriteString(p.literal)
			continue
		}
		value, there, err := p.variable.value(in)
		if err != nil {
			return "", err
		}
		if !there {
			return "", p.variable.fails("it has no value")
		}
		text, ok := scalar(value)
		if !ok {
			return "", p.variable.fails("it is a list or an object, which has no place within a text")
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// json returns the text as a JSON string, or the value if it is just one variable; null for a missing optional part.
func (t *Text) json(in *Values) (json.RawMessage, error) {
	if len(t.pieces) != 1 || t.pieces[0].variable == nil {
		text, err := t.Expand(in)
		if err != nil {
			return nil, err
		}
		return quote(text)
	}
	v := t.pieces[0].variable
	value, there, err := v.value(in)
	switch {
	case err != nil:
		return nil, err
	case there:
		return quote(value)
	case v.root == "parts" && in.Parts[v.of].Data == nil, in.Nulls && v.null(in):
		return json.RawMessage("null"), nil
	}
	return nil, v.fails("it has no value")
}

func quote(value any) (json.RawMessage, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("write a value as JSON: %w", err)
	}
	return text, nil
}

// Body is JSON whose strings, except field names, have variables.
type Body struct {
	root    any // map[string]any, []any, *Text, or other JSON values
	secrets []string
}

// ParseBody parses JSON with variables.
func ParseBody(text []byte, variables Variables) (*Body, error) {
	var raw any
	if err := decode(text, &raw); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	b := &Body{}
	var err error
	b.root, err = b.parse(raw, variables)
	return b, err
}

func (b *Body) parse(raw any, variables Variables) (parsed any, err error) {
	switch v := raw.(type) {
	case string:
		text, err := ParseText(v, variables)
		if err == nil {
			b.secrets = append(b.secrets, text.Secrets()...)
		}
		return text, err
	case []any:
		v = slices.Clone(v)
		for i := range v {
			if v[i], err = b.parse(v[i], variables); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[string]any:
		for name := range v {
			if v[name], err = b.parse(v[name], variables); err != nil {
				return nil, fmt.Errorf("%.60s: %w", name, err)
			}
		}
		return v, nil
	}
	return raw, nil
}

// Secrets returns the names of the secrets in the body.
func (b *Body) Secrets() []string { return b.secrets }

// Expand inserts the values and returns JSON.
func (b *Body) Expand(in *Values) ([]byte, error) {
	filled, err := fill(b.root, in)
	if err != nil {
		return nil, err
	}
	return quote(filled)
}

func fill(node any, in *Values) (filled any, err error) {
	switch v := node.(type) {
	case *Text:
		return v.json(in)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if out[i], err = fill(v[i], in); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			if out[name], err = fill(v[name], in); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return node, nil
}
