package gather

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// field is one field of a mapping: its name, and what reads its value.
type field struct {
	name string
	read func(v value) error
}

// value is a node on its way into a plan, and the field that it is the value of.
type value struct {
	node ast.Node
	path string
	at   *token.Position
}

func (r *reader) readPlan(root ast.Node, plan *Plan) error {
	v := value{node: root, path: "the plan", at: root.GetToken().Position}
	return r.mapping(v, "", []field{
		{"name", r.text(&plan.Name)},
		{"steps", func(v value) error { return r.steps(v, &plan.Steps) }},
	})
}

func (r *reader) steps(v value, steps *[]Step) error {
	return r.sequence(v, func(v value) error {
		step := defaultStep()
		err := r.mapping(v, v.path+".", []field{
			{"name", r.text(&step.Name)},
			{"endpoint", r.text(&step.Endpoint)},
			{"needs", r.texts(&step.Needs)},
			{"chunk", r.number(&step.Chunk)},
			{"in_flight", r.number(&step.InFlight)},
			{"max_attempts", r.number(&step.MaxAttempts)},
			{"timeout", r.duration(&step.Timeout)},
			{"retry_backoff", r.duration(&step.RetryBackoff)},
		})
		if _, named := r.places[v.path+".name"]; !named {
			step.Name = step.Endpoint
		}
		*steps = append(*steps, step)
		return err
	})
}

// mapping reads the fields of a mapping, whose paths begin with prefix.
func (r *reader) mapping(v value, prefix string, fields []field) error {
	node, ok := v.node.(ast.MapNode)
	if !ok {
		return r.wrongKind(v, "fields: "+fieldNames(fields))
	}
	seen := map[string]bool{}
	for entries := node.MapRange(); entries.Next(); {
		key := entries.Key().GetToken()
		read := lookUp(fields, key.Value)
		if _, plain := entries.Key().(*ast.StringNode); !plain || read == nil {
			return r.fail(key.Position, "unknown field %q; there are %s", key.Value, fieldNames(fields))
		}
		if seen[key.Value] {
			return r.fail(key.Position, "%s%s stands twice", prefix, key.Value)
		}
		seen[key.Value] = true
		if err := read(r.place(entries.Value(), prefix+key.Value, key)); err != nil {
			return err
		}
	}
	return nil
}

func lookUp(fields []field, name string) func(value) error {
	for _, f := range fields {
		if f.name == name {
			return f.read
		}
	}
	return nil
}

func fieldNames(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// place notes where a field's value stands; a value that is not there stands where its key does.
func (r *reader) place(node ast.Node, path string, key *token.Token) value {
	at := key.Position
	if _, null := node.(*ast.NullNode); !null && node.GetToken() != nil {
		at = node.GetToken().Position
	}
	if mapping, ok := node.(ast.MapNode); ok {
		if entries := mapping.MapRange(); entries.Next() {
			at = entries.Key().GetToken().Position
		}
	}
	r.places[path] = at
	return value{node: node, path: path, at: at}
}

func (r *reader) sequence(v value, read func(value) error) error {
	node, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return r.wrongKind(v, "a list, each entry after a dash")
	}
	for i, entry := range node.Values {
		if err := read(r.place(entry, fmt.Sprintf("%s[%d]", v.path, i), node.GetToken())); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) text(into *string) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.StringNode)
		if !ok {
			return r.wrongKind(v, "text; put it in quotes if it looks like something else")
		}
		*into = node.Value
		return nil
	}
}

func (r *reader) texts(into *[]string) func(value) error {
	return func(v value) error {
		return r.sequence(v, func(v value) error {
			var s string
			err := r.text(&s)(v)
			*into = append(*into, s)
			return err
		})
	}
}

// number takes decimal numbers only: YAML would also read 0x10, 010 and 1_000.
func (r *reader) number(into *int) func(value) error {
	const want = "a whole number like 500"
	return func(v value) error {
		if _, ok := v.node.(*ast.IntegerNode); !ok {
			return r.wrongKind(v, want)
		}
		text := v.node.GetToken().Value
		n, err := strconv.Atoi(text)
		if err != nil || strconv.Itoa(n) != text {
			return r.wrongKind(v, want)
		}
		*into = n
		return nil
	}
}

func (r *reader) duration(into *time.Duration) func(value) error {
	const want = "a duration like 90s, 2m or 1h30m"
	return func(v value) error {
		node, ok := v.node.(*ast.StringNode)
		if !ok {
			return r.wrongKind(v, want)
		}
		d, err := time.ParseDuration(node.Value)
		if err != nil {
			return r.wrongKind(v, want)
		}
		*into = d
		return nil
	}
}

func (r *reader) wrongKind(v value, want string) error {
	return r.fail(v.at, "%s: want %s; this is %s", v.path, want, kind(v.node))
}

// kind says what a node is, for those who do not speak YAML.
func kind(node ast.Node) string {
	switch n := node.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return fmt.Sprintf("the text %.40q", n.Value)
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a group of fields"
	}
	return strings.ToLower(node.Type().String())
}
