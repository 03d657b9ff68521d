package strictyaml

import (
	"encoding/json"

	"github.com/goccy/go-yaml/ast"
)

// JSON reads a value of any kind, as JSON has them.
func JSON(into *json.RawMessage) func(Value) error {
	return func(v Value) error {
		tree, err := v.tree()
		if err != nil {
			return err
		}
		*into, err = json.Marshal(tree)
		return err
	}
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
