package template

import (
	"fmt"
	"slices"
)

// Body is JSON whose strings have variables. Names of fields have none.
type Body struct {
	root    any // map[string]any, []any, *Text, or what JSON has beside them
	secrets []string
}

// ParseBody reads JSON with variables.
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

// Secrets are the names of the secrets that the body contains.
func (b *Body) Secrets() []string { return b.secrets }

// Expand fills in the values and returns JSON.
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
