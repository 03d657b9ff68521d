package itemschema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Fault is one thing in which an item does not fit.
type Fault struct {
	Field   string // like address.city or lines.0.amount; empty: the item as a whole
	Problem string
}

func (f Fault) String() string {
	if f.Field == "" {
		return f.Problem
	}
	return fmt.Sprintf("%s: %s", f.Field, f.Problem)
}

// Bounds of what is said of one item.
const (
	maxFaults  = 20
	maxField   = 100 // bytes
	maxProblem = 200
)

// faultsOf lists what an error is made of, by field.
func faultsOf(err *jsonschema.ValidationError) []Fault {
	var all []Fault
	collect(err, &all)
	slices.SortFunc(all, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Problem, b.Problem))
	})
	all = slices.Compact(all)
	return all[:min(len(all), maxFaults)]
}

func collect(err *jsonschema.ValidationError, all *[]Fault) {
	add := func(name, problem string) {
		path := err.InstanceLocation
		if name != "" {
			path = append(slices.Clone(path), name)
		}
		*all = append(*all, Fault{short(strings.Join(path, "."), maxField), short(problem, maxProblem)})
	}
	switch is := err.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range is.Missing {
			add(name, "it is missing")
		}
	case *kind.AdditionalProperties:
		for _, name := range is.Properties {
			add(name, "the schema has no such field")
		}
	case *kind.AnyOf, *kind.OneOf, *kind.Not: // what each of the branches has against it helps nobody
		add("", "it fits none of what the schema allows: "+err.ErrorKind.LocalizedString(english()))
	case *kind.FalseSchema:
		add("", "the schema allows nothing here")
	default:
		if len(err.Causes) == 0 {
			add("", err.ErrorKind.LocalizedString(english()))
		}
		for _, cause := range err.Causes {
			collect(cause, all)
		}
	}
}

func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
