package strictyaml

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Text reads a text, which may not be empty.
func Text(into *string) func(Value) error {
	return func(v Value) error {
		switch node := v.node.(type) {
		case *ast.StringNode:
			*into = node.Value
		case *ast.LiteralNode:
			*into = node.Value.Value
		default:
			return v.Wrong("text; put it in quotes if it looks like something else")
		}
		if *into == "" {
			return v.Fail("want text; this is an empty one")
		}
		return nil
	}
}

// Texts reads a list of texts.
func Texts(into *[]string) func(Value) error {
	return func(v Value) error {
		return v.List(func(v Value) error {
			var s string
			err := Text(&s)(v)
			*into = append(*into, s)
			return err
		})
	}
}

// SomeTexts reads a list that has at least one text.
func SomeTexts(into *[]string) func(Value) error {
	return func(v Value) error {
		err := Texts(into)(v)
		if err == nil && len(*into) == 0 {
			err = v.Fail("the list is empty; put the texts there, or leave it out")
		}
		return err
	}
}

// OneOf reads one of some words.
func OneOf[T ~string](into *T, words ...T) func(Value) error {
	return func(v Value) error {
		text, _ := v.Plain()
		if i := slices.Index(words, T(text)); i >= 0 {
			*into = words[i]
			return nil
		}
		var known []string
		for _, word := range words {
			known = append(known, string(word))
		}
		return v.Wrong("one of " + strings.Join(known, ", "))
	}
}

// Number reads a whole number within bounds. It takes decimal digits only: YAML would also read 0x10, 010 and 1_000.
func Number(into *int, least, most int) func(Value) error {
	return func(v Value) error {
		want := fmt.Sprintf("a whole number within %d to %d", least, most)
		if _, ok := v.node.(*ast.IntegerNode); !ok {
			return v.Wrong(want)
		}
		text := v.node.GetToken().Value
		n, err := strconv.Atoi(text)
		if err != nil || strconv.Itoa(n) != text || n < least || n > most {
			return v.Wrong(want)
		}
		*into = n
		return nil
	}
}

// Truth reads true or false.
func Truth(into *bool) func(Value) error {
	return func(v Value) error {
		node, ok := v.node.(*ast.BoolNode)
		if !ok {
			return v.Wrong("true or false")
		}
		*into = node.Value
		return nil
	}
}

// Duration reads a time like 90s, 2m or 1h30m within bounds.
func Duration(into *time.Duration, least, most time.Duration) func(Value) error {
	return func(v Value) error {
		want := fmt.Sprintf("a time like 90s, 2m or 1h30m, within %s to %s", least, most)
		node, ok := v.node.(*ast.StringNode)
		if !ok {
			return v.Wrong(want)
		}
		d, err := time.ParseDuration(node.Value)
		if err != nil || d < least || d > most {
			return v.Wrong(want)
		}
		*into = d
		return nil
	}
}
