package gather

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

var (
	errNoText  = errors.New("want text; put it in quotes if it looks like something else")
	errNoTruth = errors.New("want true or false")
)

func (r *reader) text(into *string) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.StringNode)
		if !ok {
			return r.wrongKind(v, errNoText)
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
	return func(v value) (err error) {
		if _, ok := v.node.(*ast.IntegerNode); !ok {
			return r.wrongKind(v, errNoNumber)
		}
		if *into, err = wholeNumber(v.node.GetToken().Value); err != nil {
			return r.wrongKind(v, err)
		}
		return nil
	}
}

func (r *reader) adaptive(into **Adaptive) func(value) error {
	return func(v value) error {
		text, plain := v.node.(*ast.StringNode)
		if plain && text.Value == auto {
			*into = &Adaptive{Auto: true}
			return nil
		}
		*into = &Adaptive{}
		if _, ok := v.node.(*ast.IntegerNode); !ok || (*into).UnmarshalText([]byte(v.node.GetToken().Value)) != nil {
			return r.wrongKind(v, errNoAdaptive)
		}
		return nil
	}
}

var errNoRate = errors.New("want items a second as a number like 1000 or 0.5")

func (r *reader) rate(into *float64) func(value) error {
	return func(v value) (err error) {
		switch v.node.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			*into, err = readRate(v.node.GetToken().Value)
		default:
			err = errNoRate
		}
		if err != nil {
			return r.wrongKind(v, err)
		}
		return nil
	}
}

func (r *reader) truth(into *bool) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.BoolNode)
		if !ok {
			return r.wrongKind(v, errNoTruth)
		}
		*into = node.Value
		return nil
	}
}

func (r *reader) bytes(into *int) func(value) error {
	return func(v value) error {
		text, ok := scalarText(v.node)
		if !ok || (*Bytes)(into).UnmarshalText([]byte(text)) != nil {
			return r.wrongKind(v, errNoSize)
		}
		return nil
	}
}

func (r *reader) failures(into *string) func(value) error {
	return func(v value) (err error) {
		text, ok := scalarText(v.node)
		if ok {
			*into, err = ParseMaxFailed(text)
		}
		if !ok || err != nil {
			return r.wrongKind(v, errFailures)
		}
		return nil
	}
}

// scalarText returns the text of a number or a string.
func scalarText(node ast.Node) (text string, ok bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (r *reader) duration(into *time.Duration) func(value) error {
	return func(v value) error {
		node, ok := v.node.(*ast.StringNode)
		if !ok || (*Duration)(into).UnmarshalText([]byte(node.Value)) != nil {
			return r.wrongKind(v, errNoDuration)
		}
		return nil
	}
}

func (r *reader) wrongKind(v value, want error) error {
	return r.fail(v.at, "%s: %v; this is %s", v.path, want, kind(v.node))
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
