package itemschema

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	maxExamples     = 5
	maxExampleDepth = 8
)

// Examples returns a few different items that fit the schema: a usual one, one with as little as possible, and others
// with edge values. There are none if the schema requires more than types, bounds, formats and simple patterns.
func (s *Schema) Examples() (items []json.RawMessage) {
	for n := range maxExamples {
		item, err := json.Marshal(example(s.full, n, 0))
		if err != nil || slices.ContainsFunc(items, func(i json.RawMessage) bool { return bytes.Equal(i, item) }) {
			continue
		}
		if faults, err := s.Check(item); err == nil && len(faults) == 0 {
			items = append(items, item)
		}
	}
	return items
}

// example returns the nth value for a schema, without checking that it fits.
func example(s *jsonschema.Schema, n, depth int) any {
	if s == nil || depth > maxExampleDepth {
		return nil
	}
	choices := slices.Concat(s.AnyOf, s.OneOf)
	switch {
	case s.Const != nil:
		return *s.Const
	case s.Enum != nil && len(s.Enum.Values) > 0:
		return s.Enum.Values[n%len(s.Enum.Values)]
	case len(s.Examples) > 0:
		return s.Examples[n%len(s.Examples)]
	case s.Ref != nil:
		return example(s.Ref, n, depth+1)
	case len(choices) > 0:
		return example(choices[n%len(choices)], n, depth+1)
	}
	return exampleOf(kindsOf(s, depth), s, n, depth)
}

func exampleOf(kinds []string, s *jsonschema.Schema, n, depth int) any {
	switch kinds[n%len(kinds)] {
	case "object":
		object := map[string]any{}
		for name, property := range s.Properties {
			if n != 1 || slices.Contains(s.Required, name) {
				object[name] = example(property, n, depth+1)
			}
		}
		if others, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && n != 1 {
			object["name"] = example(others, n, depth+1)
		}
		return object
	case "array":
		return exampleList(s, n, depth)
	case "string":
		return exampleText(s, n)
	case "integer":
		return exampleNumber(s, []float64{1, 0, -1, math.MaxInt32, -1 << 53}[n%maxExamples])
	case "number":
		return exampleNumber(s, []float64{12.5, 0, -1, math.MaxInt32, 1e-9}[n%maxExamples])
	case "boolean":
		return n%2 == 0
	}
	return nil
}

// kindsOf returns the types that a schema takes, null last. Without types they follow from its keywords.
func kindsOf(s *jsonschema.Schema, depth int) []string {
	switch {
	case s.Types != nil && !s.Types.IsEmpty():
		kinds := s.Types.ToStrings()
		slices.Reverse(kinds)
		return kinds
	case depth == 0 || len(s.Properties) > 0:
		return []string{"object"}
	case s.Items2020 != nil:
		return []string{"array"}
	}
	return []string{"string"}
}

func exampleList(s *jsonschema.Schema, n, depth int) []any {
	list := make([]any, []int{1, 0, 2}[n%3])
	if s.MinItems != nil && len(list) < *s.MinItems {
		list = make([]any, min(*s.MinItems, maxExamples))
	}
	for i := range list {
		list[i] = example(s.Items2020, n+i, depth+1)
	}
	return list
}

func exampleNumber(s *jsonschema.Schema, number float64) any {
	within := new(big.Rat).SetFloat64(number)
	if s.Minimum != nil && within.Cmp(s.Minimum) < 0 {
		within = s.Minimum
	}
	if s.Maximum != nil && within.Cmp(s.Maximum) > 0 {
		within = s.Maximum
	}
	number, _ = within.Float64()
	return number
}

func exampleText(s *jsonschema.Schema, n int) string {
	texts := []string{"text", "", "12.50", "Zoë 漢字", strings.Repeat("long ", 50)}
	if s.Format != nil {
		if text := map[string]string{"date": "2024-02-29", "date-time": "2024-02-29T23:59:59Z", "time": "23:59:59Z",
			"email": "ann@example.com", "uuid": "00000000-0000-4000-8000-000000000000", "uri": "https://example.com/",
			"hostname": "example.com", "ipv4": "192.0.2.1"}[s.Format.Name]; text != "" {
			return text
		}
	}
	if s.Pattern != nil {
		texts = slices.DeleteFunc(append(texts, "0", "-1", "A-1", "2024-02-29", "a"), func(text string) bool {
			return !s.Pattern.MatchString(text)
		})
	}
	if len(texts) == 0 {
		return ""
	}
	letters := []rune(texts[n%len(texts)])
	for s.MinLength != nil && len(letters) < min(*s.MinLength, MaxBytes) {
		letters = append(letters, 'x')
	}
	if s.MaxLength != nil && len(letters) > *s.MaxLength {
		letters = letters[:*s.MaxLength]
	}
	return string(letters)
}
