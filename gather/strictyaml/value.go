package strictyaml

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Value is a value in a document.
type Value struct {
	of   *Document
	node ast.Node
	path string
	at   *token.Position

	schema map[string]any // of a value that is described instead of read; see [Schema]
}

// Field is a field of a group and the reader of its value.
type Field struct {
	Name string
	Read func(Value) error
	Doc  string // what it is, for schemas
}

// Path returns the value's path, such as http.url or steps[0].name; empty for the whole document.
func (v Value) Path() string { return v.path }

// Given reports whether the value has a field of this name.
func (v Value) Given(name string) bool { return v.of.Given(v.under(name)) }

func (v Value) under(name string) string {
	if v.path == "" {
		return name
	}
	return v.path + "." + name
}

// Fail returns an error at the value's position.
func (v Value) Fail(format string, args ...any) error { return v.failAt(v.at, format, args...) }

func (v Value) failAt(at *token.Position, format string, args ...any) error {
	problem := fmt.Sprintf(format, args...)
	if v.path != "" {
		problem = v.path + ": " + problem
	}
	return v.of.fail(at, "%s", problem)
}

// Wrong returns an error that says what is wanted and what the value is.
func (v Value) Wrong(want string) error {
	v.say("description", want)
	return v.Fail("want %s; this is %s", want, v.Kind())
}

// Fields reads a group of known fields, each at most once.
func (v Value) Fields(fields ...Field) error {
	if v.schema != nil {
		v.describeFields(fields)
		return nil
	}
	names := make([]string, len(fields))
	byName := map[string]func(Value) error{}
	for i, f := range fields {
		names[i], byName[f.Name] = f.Name, f.Read
	}
	known := strings.Join(names, ", ")
	return v.entries("fields: "+known, func(key *token.Token, plain bool, field Value) error {
		read := byName[key.Value]
		switch {
		case v.of.secret && read == nil:
			return field.failAt(key.Position, "there is no such field; there are %s", known)
		case !plain || read == nil:
			meant := ""
			if near := Nearest(key.Value, names); len(near) > 0 {
				meant = ", did you mean " + strings.Join(near, " or ") + "?"
			}
			return v.of.fail(key.Position, "unknown field %.60q%s; there are %s", key.Value, meant, known)
		}
		return read(field)
	})
}

// maxNear bounds the names proposed for an unknown one.
const maxNear = 3

// Nearest returns known names with the words of name: an exact match, else those that contain or start with them,
// else those with the same last word, else the one with a typo. It returns none if there are too many.
func Nearest(name string, known []string) []string {
	given := wordsOf(name)
	if len(given) == 0 {
		return nil
	}
	var whole, ends []string
	for _, k := range known {
		words := wordsOf(k)
		missing := func(w string) bool { return !slices.Contains(words, w) }
		switch {
		case len(words) == 0:
		case slices.Equal(words, given):
			return []string{k}
		case !slices.ContainsFunc(given, missing), strings.HasPrefix(strings.Join(words, ""), strings.Join(given, "")):
			whole = append(whole, k)
		case words[len(words)-1] == given[len(given)-1]:
			ends = append(ends, k)
		}
	}
	if len(whole) == 0 {
		whole = ends
	}
	if near := row.Nearest(name, known); len(whole) == 0 && near != "" {
		return []string{near}
	}
	if len(whole) > maxNear {
		return nil
	}
	return whole
}

// wordsOf splits a name such as max_failed or --max-failed into words in the singular.
func wordsOf(name string) []string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' })
	for i, w := range words {
		words[i] = strings.TrimSuffix(w, "s")
	}
	return words
}

// Entries reads a group with free names.
func (v Value) Entries(want string, read func(name string, v Value) error) error {
	if v.schema != nil {
		v.describeEntries("object", "additionalProperties", func(entry Value) error { return read("", entry) })
		return nil
	}
	return v.entries(want, func(key *token.Token, plain bool, entry Value) error {
		if !plain {
			return v.failAt(key.Position, "the name %.60q must be in quotes", key.Value)
		}
		return read(key.Value, entry)
	})
}

// plainName matches keys that may be quoted from a secret text: a value may be there by mistake.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.:\[\]-]{1,64}$`)

func (v Value) entries(want string, read func(key *token.Token, plain bool, v Value) error) error {
	node, ok := v.node.(ast.MapNode)
	switch {
	case v.node == nil: // an empty text
		return nil
	case !ok:
		return v.Wrong(want)
	}
	seen := map[string]bool{}
	for entries := node.MapRange(); entries.Next(); {
		key := entries.Key().GetToken()
		_, plain := entries.Key().(*ast.StringNode)
		if v.of.secret && !plainName.MatchString(key.Value) {
			return v.failAt(key.Position, "want %s; this is not such a name", want)
		}
		if seen[key.Value] {
			return v.of.fail(key.Position, "%s appears twice", v.under(fmt.Sprintf("%.60s", key.Value)))
		}
		seen[key.Value] = true
		if err := read(key, plain, v.of.place(entries.Value(), v.under(key.Value), key)); err != nil {
			return err
		}
	}
	return nil
}

// List reads a list.
func (v Value) List(read func(Value) error) error {
	if v.schema != nil {
		v.describeEntries("array", "items", read)
		return nil
	}
	node, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return v.Wrong("a list, each entry after a dash")
	}
	for i, entry := range node.Values {
		if err := read(v.of.place(entry, fmt.Sprintf("%s[%d]", v.path, i), node.GetToken())); err != nil {
			return err
		}
	}
	return nil
}

// place records a value's position; a missing value has that of its key.
func (d *Document) place(node ast.Node, path string, key *token.Token) Value {
	at := key.Position
	if _, null := node.(*ast.NullNode); !null && node.GetToken() != nil {
		at = node.GetToken().Position
	}
	if mapping, ok := node.(ast.MapNode); ok {
		if entries := mapping.MapRange(); entries.Next() {
			at = entries.Key().GetToken().Position
		}
	}
	d.places[path] = at
	return Value{of: d, node: node, path: path, at: at}
}

// Plain returns the source text of a text, number or boolean.
func (v Value) Plain() (text string, ok bool) {
	v.say("type", []string{"string", "number", "boolean"})
	switch n := v.node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// Text returns the text of a single-line text.
func (v Value) Text() (text string, ok bool) {
	node, ok := v.node.(*ast.StringNode)
	if !ok {
		return "", false
	}
	return node.Value, true
}

// Block returns the text of a multi-line block.
func (v Value) Block() (text string, ok bool) {
	node, ok := v.node.(*ast.LiteralNode)
	if !ok {
		return "", false
	}
	return node.Value.Value, true
}

// Number returns the source text of a number.
func (v Value) Number() (digits string, ok bool) {
	v.say("type", "number")
	switch v.node.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return v.node.GetToken().Value, true
	}
	return "", false
}

// Kind describes a value in plain words.
func (v Value) Kind() string {
	if v.of.secret {
		return v.kind()
	}
	switch n := v.node.(type) {
	case *ast.StringNode:
		return fmt.Sprintf("the text %.40q", n.Value)
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value
	}
	return v.kind()
}

func (v Value) kind() string {
	switch v.node.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return "a text"
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a group of fields"
	}
	return strings.ToLower(v.node.Type().String())
}

const wantJSON = "what JSON can say: texts, numbers, true, false, null, lists and fields"

func (v Value) tree() (any, error) {
	switch node := v.node.(type) {
	case *ast.NullNode:
		return nil, nil
	case *ast.StringNode:
		return node.Value, nil
	case *ast.LiteralNode:
		return node.Value.Value, nil
	case *ast.BoolNode:
		return node.Value, nil
	case *ast.IntegerNode, *ast.FloatNode:
		number := json.Number(node.GetToken().Value)
		if !json.Valid([]byte(number)) {
			return nil, v.Wrong(wantJSON)
		}
		return number, nil
	case *ast.SequenceNode:
		list := []any{}
		err := v.List(func(v Value) error {
			entry, err := v.tree()
			list = append(list, entry)
			return err
		})
		return list, err
	case ast.MapNode:
		object := map[string]any{}
		err := v.Entries(wantJSON, func(name string, v Value) (err error) {
			object[name], err = v.tree()
			return err
		})
		return object, err
	}
	return nil, v.Wrong(wantJSON)
}
