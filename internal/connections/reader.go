package connections

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/tranchehq/tranche/workqueue"
)

// reader turns YAML into connections. It stops at the first error.
type reader struct {
	file      string
	directory string // beside which files stand that are named
}

// value is a node, and the field that it is the value of.
type value struct {
	node ast.Node
	path string
	line int
}

// field is one field of a mapping: its name, and what reads its value.
type field struct {
	name string
	read func(v value) error
}

func (r *reader) fail(v value, format string, args ...any) error {
	return &Error{File: r.file, Line: v.line, Field: v.path, Problem: fmt.Sprintf(format, args...)}
}

// document returns the one mapping that the text consists of, or ok = false when there is nothing in it.
func (r *reader) document(text []byte) (root value, ok bool, err error) {
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		problem := value{}
		if broken, ok := errors.AsType[yaml.Error](err); ok && broken.GetToken() != nil {
			problem.line = broken.GetToken().Position.Line
		}
		return value{}, false, r.fail(problem, "this is not YAML; look for a wrong indent, a tab or a missing quote")
	}
	for _, doc := range file.Docs {
		if _, comment := doc.Body.(*ast.CommentGroupNode); doc.Body == nil || comment {
			continue
		}
		if ok {
			return value{}, false, r.fail(lineOf(doc.Body, value{}), "a second document; there is to be one")
		}
		root, ok = lineOf(doc.Body, value{}), true
	}
	return root, ok, nil
}

// lineOf makes the value of a node, which stands where its parent does when it has no place of its own.
func lineOf(node ast.Node, parent value) value {
	v := value{node: node, path: parent.path, line: parent.line}
	if token := node.GetToken(); token != nil && token.Position != nil && token.Value != "" {
		v.line = token.Position.Line
	}
	return v
}

// mapping reads a group of fields with fixed names.
func (r *reader) mapping(v value, fields []field) error {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return r.entries(v, "fields: "+strings.Join(names, ", "), func(name string, v value) error {
		i := slices.Index(names, name)
		if i < 0 {
			return r.fail(v, "there is no such field; there are %s", strings.Join(names, ", "))
		}
		return fields[i].read(v)
	})
}

// plainName is what may be quoted of a key: what is meant as a value may stand there by mistake.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.:\[\]-]{1,64}$`)

// entries reads a group of fields, each name once.
func (r *reader) entries(v value, want string, read func(name string, v value) error) error {
	group, ok := v.node.(ast.MapNode)
	if !ok {
		return r.fail(v, "want %s; this is %s", want, kind(v.node))
	}
	seen := map[string]bool{}
	for entries := group.MapRange(); entries.Next(); {
		key := entries.Key().GetToken()
		at := value{path: v.path, line: key.Position.Line}
		if !plainName.MatchString(key.Value) {
			return r.fail(at, "want %s; what stands here is no such name", want)
		}
		if at.path = key.Value; v.path != "" {
			at.path = v.path + "." + key.Value
		}
		if seen[key.Value] {
			return r.fail(at, "it stands twice")
		}
		seen[key.Value] = true
		if alias(entries.Value()) {
			return r.fail(at, "anchors, aliases and tags are not part of this file; write the value out")
		}
		if err := read(key.Value, value{node: entries.Value(), path: at.path, line: at.line}); err != nil {
			return err
		}
	}
	return nil
}

func alias(node ast.Node) bool {
	switch node.(type) {
	case *ast.AliasNode, *ast.AnchorNode, *ast.TagNode, *ast.MergeKeyNode:
		return true
	}
	return false
}

func (r *reader) list(v value, want string, read func(v value) error) error {
	list, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return r.fail(v, "want a list of %s; this is %s", want, kind(v.node))
	}
	for i, node := range list.Values {
		entry := lineOf(node, v)
		entry.path = fmt.Sprintf("%s[%d]", v.path, i)
		if err := read(entry); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) text(into *string, want string) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.StringNode)
		if !ok || node.Value == "" {
			return r.fail(v, "want %s; this is %s, unless it stands in quotes", want, kind(v.node))
		}
		*into = node.Value
		return nil
	}
}

func (r *reader) texts(into *[]string, want string) func(value) error {
	return func(v value) error {
		return r.list(v, want, func(v value) error {
			var s string
			err := r.text(&s, want)(v)
			*into = append(*into, s)
			return err
		})
	}
}

func (r *reader) truth(into *bool) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.BoolNode)
		if !ok {
			return r.fail(v, "want true or false; this is %s", kind(v.node))
		}
		*into = node.Value
		return nil
	}
}

func (r *reader) number(into *int, largest int) func(value) error {
	return func(v value) error {
		var n workqueue.Bytes
		if _, ok := v.node.(*ast.IntegerNode); ok && n.UnmarshalText([]byte(v.node.GetToken().Value)) != nil {
			n = 0
		}
		if n < 1 || int(n) > largest {
			return r.fail(v, "want a whole number within 1 to %d", largest)
		}
		*into = int(n)
		return nil
	}
}

func (r *reader) size(into *int, smallest, largest int) func(value) error {
	return func(v value) error {
		var n workqueue.Bytes
		var text string
		switch node := v.node.(type) {
		case *ast.StringNode:
			text = node.Value
		case *ast.IntegerNode:
			text = node.GetToken().Value
		}
		if err := n.UnmarshalText([]byte(text)); err != nil || int(n) < smallest || int(n) > largest {
			return r.fail(v, "want a size like 512KiB or 16MiB, within %v to %v", workqueue.Bytes(smallest),
				workqueue.Bytes(largest))
		}
		*into = int(n)
		return nil
	}
}

func (r *reader) duration(into *time.Duration, shortest, longest time.Duration) func(value) error {
	return func(v value) error {
		d := time.Duration(math.MinInt64)
		if node, ok := v.node.(*ast.StringNode); ok {
			if parsed, err := time.ParseDuration(node.Value); err == nil {
				d = parsed
			}
		}
		if d < shortest || d > longest {
			return r.fail(v, "want a duration like 90s or 2m, within %v to %v", shortest, longest)
		}
		*into = d
		return nil
	}
}

// kind says what a node is, and nothing of what it contains.
func kind(node ast.Node) string {
	switch node.(type) {
	case *ast.NullNode:
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
	return "something else"
}
