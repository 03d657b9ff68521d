package itemschema_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/gather/itemschema"
)

// borders are numbers that are, or nearly are, what others are, too: as they are written, and once they are rounded.
func borders() []string {
	return []string{`0`, `-0`, `-0.0`, `0.0`, `1`, `1.0`, `-1`, `1e0`, `10e-1`, `0.1`, `0.10`, `0.25`,
		`0.30000000000000004`,
		`0.3`, `999999999999999`, `999999999999999.0`, `1000000000000000`, `9007199254740992`, `9007199254740993`,
		`0.999999999999999`, `0.9999999999999999`, `0.99999999999999999`, `1.00000000000000001`,
		`123456789012345678901234567890`,
		`-123456789012345678901234567890`, `1e15`, `1E+2`, `100`, `5e-324`, `1e400`, `0.000000000000001`, `1e-15`}
}

// tooLong are numbers that the library is not asked about.
func tooLong() []string {
	return []string{strings.Repeat("9", 401), "0." + strings.Repeat("0", 400) + "1", `1e9999`}
}

type random struct{ *rand.Rand }

func (r random) of(all ...string) string { return all[r.IntN(len(all))] }

// schema is one with some of all keywords, mostly with those that are known without the library.
func (r random) schema(depth int) string {
	var all []string
	add := func(chance float64, keyword string, value func() string) {
		if r.Float64() < chance {
			all = append(all, fmt.Sprintf("%q:%s", keyword, value()))
		}
	}
	number := func() string { return r.of(borders()...) }
	add(0.5, "type", func() string {
		return r.of(`"string"`, `"number"`, `"integer"`, `"boolean"`, `"null"`, `"object"`, `"array"`, `["number","null"]`,
			`["string","null"]`, `["integer","string"]`, `["object","string"]`)
	})
	add(0.15, "enum", func() string {
		return r.of(`["a","b",null]`, `[1,true,"é"]`, `[0,-1.5,false]`, `["a\"b",{"a":1}]`, `[9007199254740993]`)
	})
	add(0.1, "minLength", func() string { return r.of("0", "1", "2", "1.0") })
	add(0.1, "maxLength", func() string { return r.of("0", "1", "3") })
	add(0.12, "pattern", func() string {
		return r.of(`"^[a-z]+$"`, `"é|b"`, `"^.$"`, `"[0-9]"`, `"^a"`, `"^a?[a-z]{1,2}$"`, `"^[^b]*(b)?$"`, `"^a(\\\\b|b)?$"`)
	})
	add(0.1, "format", func() string { return r.of(`"date"`, `"date-time"`, `"email"`, `"unheard"`) })
	add(0.2, "minimum", number)
	add(0.08, "exclusiveMinimum", number)
	add(0.2, "maximum", number)
	add(0.08, "exclusiveMaximum", number)
	add(0.04, "const", func() string { return r.of(`1`, `"a"`, `null`) })
	add(0.04, "multipleOf", func() string { return r.of(`0.1`, `2`) })
	add(0.04, "items", func() string { return `{"type":"number","maximum":1}` })
	add(0.04, "anyOf", func() string { return `[{"type":"null"},{"minLength":2},{"minimum":1}]` })
	if depth > 0 {
		add(0.8, "properties", func() string {
			return fmt.Sprintf(`{"a":%s,"b":%s,"é":%s}`, r.schema(depth-1), r.schema(depth-1), r.schema(0))
		})
		add(0.4, "required", func() string { return r.of(`["a"]`, `["a","b"]`, `["z"]`, `["b","é","z"]`) })
		add(0.3, "additionalProperties", func() string { return r.of("false", "true", r.schema(0)) })
		add(0.04, "maxProperties", func() string { return "2" })
	}
	return "{" + strings.Join(all, ",") + "}"
}

func (r random) value(depth int) string {
	switch r.IntN(8) {
	case 0, 1:
		return r.of(append(borders(), tooLong()...)...)
	case 2, 3, 4:
		return r.of(`""`, `"a"`, `"b"`, `"ab"`, `"\u0061"`, `"é"`, `"\u00e9"`, `"\ud83d\ude00"`, `"😀"`, `"\ud800"`, `"a\"b"`,
			`"\\"`, `"2024-02-29"`, `"2023-02-29"`, `"2024-12-31T23:59:60Z"`, `"a@example.org"`, `"1"`, `"a,b}"`, `"\n"`)
	case 5:
		return r.of("null", "true", "false", "[]", `[1]`, `[2,"]"]`, `[[],{"a":[]}]`)
	default:
		if depth == 0 {
			return "{}"
		}
		return r.object(depth - 1)
	}
}

// object has each name up to some times.
func (r random) object(depth int) string {
	var all []string
	for range r.IntN(6) {
		all = append(all, r.of(`"a"`, `"b"`, `"z"`, `"é"`, `"\u0061"`, `"\u00e9"`, `"y y"`)+":"+r.value(depth))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// What is no compact JSON is not known to fit, whatever it is: a space does not begin a boolean.
func TestWhatBeginsWithASpaceIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`{"type":"boolean"}`, `{"pattern":"^a"}`} {
		s, err := itemschema.Compile([]byte(`{"properties":{"a":` + schema + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range []string{` true`, ` "b"`, ` 1`, `x`} {
			if s.NewChecker().Quick([]byte(`{"a":` + value + `}`)) {
				t.Errorf("%s: %q is known to fit", schema, value)
			}
		}
	}
}

// What is known to fit without the library fits by the library, and the other way round, whatever stands on the borders
// of a schema. Numbers that are too long to be compared are taken where nothing compares them, which is where the
// library would take any number.
func TestCheckAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := random{rand.New(rand.NewPCG(seed, 0))}
	quick := 0
	for range 400 {
		text := r.schema(2)
		schema, err := itemschema.Compile([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		checker := schema.NewChecker()
		for range 100 {
			item := r.object(2)
			found, full := checker.Check([]byte(item)), schema.CheckInFull([]byte(item))
			switch {
			case (found == nil) == (full == nil):
			case found == nil && strings.Contains(full[0].Problem, "too many digits"):
				for _, other := range borders() {
					in := item
					for _, long := range tooLong() {
						in = strings.ReplaceAll(in, long, other)
					}
					if full := schema.CheckInFull([]byte(in)); full != nil {
						t.Fatalf("seed %d: %s: %s is taken; with %s in it the library says %v", seed, text, item, other, full)
					}
				}
			default:
				t.Fatalf("seed %d: %s: %s: quick says %v, the library %v", seed, text, item, found, full)
			}
			if checker.Quick([]byte(item)) {
				quick++
			}
		}
	}
	if quick < 2000 {
		t.Errorf("only %d of 40000 items are known to fit without the library: the schemas are too odd", quick)
	}
}
