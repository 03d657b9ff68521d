package gather

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// http reads a step's settings of kind http.
func (r *reader) http(into **HTTP) func(value) error {
	return func(v value) error {
		h := defaultHTTP()
		err := r.mapping(v, v.path+".", []field{
			{"url", r.text(&h.URL)},
			{"method", r.text(&h.Method)},
			{"headers", r.headers(&h.Headers)},
			{"body", r.json(&h.Body)},
			{"accept", r.text(&h.Accept)},
			{"many", r.truth(&h.Many)},
			{"concurrency", r.number(&h.Concurrency)},
			{"timeout", r.duration((*time.Duration)(&h.Timeout))},
			{"max_bytes", r.bytes(&h.MaxBytes)},
			{"redirects", r.number(&h.Redirects)},
			{"response", func(v value) error {
				return r.mapping(v, v.path+".", []field{
					{"items", r.text(&h.Response.Items)},
					{"key", r.text(&h.Response.Key)},
					{"value", r.text(&h.Response.Value)},
				})
			}},
		})
		if !r.named(v, "method") {
			h.Method = h.defaultMethod()
		}
		*into = h
		return err
	}
}

// sql reads a step's settings of kind sql.
func (r *reader) sql(into **SQL) func(value) error {
	return func(v value) error {
		q := defaultSQL()
		*into = q
		return r.mapping(v, v.path+".", []field{
			{"source", r.text(&q.Source)},
			{"query", r.block(&q.Query)},
			{"key", r.text(&q.Key)},
			{"value", r.text(&q.Value)},
			{"content_type", r.text(&q.ContentType)},
			{"rows", r.text(&q.Rows)},
			{"timeout", r.duration((*time.Duration)(&q.Timeout))},
			{"max_rows", r.number(&q.MaxRows)},
			{"max_bytes", r.bytes(&q.MaxBytes)},
		})
	}
}

// block reads text, which may be a block of several lines.
func (r *reader) block(into *string) func(value) error {
	return func(v value) error {
		if node, ok := v.node.(*ast.LiteralNode); ok {
			*into = node.Value.Value
			return nil
		}
		return r.text(into)(v)
	}
}

var errNoHeaders = errors.New("want headers by their names, like Authorization: \"Bearer {secret.NAME}\"")

// headers reads texts by names of the plan's own.
func (r *reader) headers(into *map[string]string) func(value) error {
	return func(v value) error {
		*into = map[string]string{}
		return r.members(v, errNoHeaders, func(name string, v value) error {
			var text string
			err := r.text(&text)(v)
			(*into)[name] = text
			return err
		})
	}
}

// members reads the fields of a mapping whatever their names.
func (r *reader) members(v value, want error, read func(name string, v value) error) error {
	node, ok := v.node.(ast.MapNode)
	if !ok {
		return r.wrongKind(v, want)
	}
	seen := map[string]bool{}
	for entries := node.MapRange(); entries.Next(); {
		key := entries.Key().GetToken()
		if _, plain := entries.Key().(*ast.StringNode); !plain {
			return r.fail(key.Position, "%s: the name %.40q is to be text; put it in quotes", v.path, key.Value)
		}
		if seen[key.Value] {
			return r.fail(key.Position, "%s.%s stands twice", v.path, key.Value)
		}
		seen[key.Value] = true
		if err := read(key.Value, r.place(entries.Value(), v.path+"."+key.Value, key)); err != nil {
			return err
		}
	}
	return nil
}

// json reads a value of any kind, as JSON has them.
func (r *reader) json(into *JSON) func(value) error {
	return func(v value) error {
		tree, err := r.tree(v)
		if err != nil {
			return err
		}
		*into, err = json.Marshal(tree)
		return err
	}
}

var errNoJSON = errors.New("want what JSON can say: texts, numbers, true, false, null, lists and fields")

func (r *reader) tree(v value) (tree any, err error) {
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
			return nil, r.wrongKind(v, errNoJSON)
		}
		return number, nil
	case *ast.SequenceNode:
		list := []any{}
		err = r.sequence(v, func(v value) error {
			entry, err := r.tree(v)
			list = append(list, entry)
			return err
		})
		return list, err
	case ast.MapNode:
		object := map[string]any{}
		err = r.members(v, errNoJSON, func(name string, v value) error {
			object[name], err = r.tree(v)
			return err
		})
		return object, err
	}
	return nil, r.wrongKind(v, errNoJSON)
}
