package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Values are what is filled in.
type Values struct {
	Run, Step           string
	Generation, Ordinal int
	Key                 string
	Item                []byte          // JSON; nil: none
	Parts               map[string]Part // those that there are
	Params              map[string]string
	Keys                []string
	Items               [][]byte // JSON
	Secret              func(name string) (string, error)
	Nulls               bool // a null in a payload or part is a value where it stands by itself

	item  any // decoded, once it is needed
	parts map[string]any
}

// Part is what an earlier step has made of an item.
type Part struct {
	Data        []byte
	ContentType string // empty: JSON
}

// Error is a template that cannot be filled in.
type Error struct {
	Variable string // empty: it is not about one
	Problem  string
}

func (e *Error) Error() string {
	if e.Variable == "" {
		return e.Problem
	}
	return "{" + e.Variable + "}: " + e.Problem
}

func (v variable) fails(format string, args ...any) error {
	return &Error{v.name, fmt.Sprintf(format, args...)}
}

// value returns what JSON can express: the value of a variable, or there = false when there is none. A parameter that
// the run does not have is always an error: it would be missing for all items.
func (v variable) value(in *Values) (value any, there bool, err error) {
	switch v.root {
	case "run":
		return in.Run, true, nil
	case "step":
		return in.Step, true, nil
	case "generation":
		return json.Number(strconv.Itoa(in.Generation)), true, nil
	case "key":
		return in.Key, true, nil
	case "ordinal":
		return json.Number(strconv.Itoa(in.Ordinal)), true, nil
	case "keys":
		return in.Keys, true, nil
	case "items":
		return raws(in.Items), true, nil
	case "params":
		value, there := in.Params[v.of]
		if !there {
			return nil, false, v.fails("the run has no parameter %q", v.of)
		}
		return value, true, nil
	case "secret":
		value, err := in.Secret(v.of)
		return value, true, err
	case "item":
		return v.ofItem(in)
	default:
		return v.ofPart(in)
	}
}

func raws(items [][]byte) []json.RawMessage {
	out := make([]json.RawMessage, len(items))
	for i, item := range items {
		out[i] = item
	}
	return out
}

func (v variable) ofItem(in *Values) (any, bool, error) {
	if in.Item == nil {
		return nil, false, nil
	}
	if len(v.path) == 0 {
		return json.RawMessage(in.Item), true, nil
	}
	if in.item == nil {
		if err := decode(in.Item, &in.item); err != nil {
			return nil, false, v.fails("the payload is no JSON that can be read")
		}
	}
	value, there := descend(in.item, v.path)
	return value, there, nil
}

func (v variable) ofPart(in *Values) (any, bool, error) {
	part, there := in.Parts[v.of]
	switch {
	case !there:
		return nil, false, nil
	case part.ContentType != "":
		return nil, false, v.fails("the part of %s is %.60q; only JSON can be filled in", v.of, part.ContentType)
	case len(v.path) == 0:
		return json.RawMessage(part.Data), true, nil
	}
	if in.parts == nil {
		in.parts = map[string]any{}
	}
	if in.parts[v.of] == nil {
		var value any
		if err := decode(part.Data, &value); err != nil {
			return nil, false, v.fails("the part of %s is no JSON that can be read", v.of)
		}
		in.parts[v.of] = value
	}
	value, there := descend(in.parts[v.of], v.path)
	return value, there, nil
}

// decode keeps numbers as they are written.
func decode(data []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

// descend follows a path of field names and places in lists. A null is no value.
func descend(value any, path []string) (any, bool) {
	for _, name := range path {
		switch in := value.(type) {
		case map[string]any:
			value = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(in) {
				return nil, false
			}
			value = in[i]
		default:
			return nil, false
		}
	}
	return value, value != nil
}

// null reports whether there is a null where the variable looks.
func (v variable) null(in *Values) bool {
	from := in.item
	if v.root == "parts" {
		from = in.parts[v.of]
	}
	if len(v.path) == 0 {
		return false
	}
	last := len(v.path) - 1
	if last > 0 {
		from, _ = descend(from, v.path[:last])
	}
	object, ok := from.(map[string]any)
	value, there := object[v.path[last]]
	return ok && there && value == nil
}

// scalar writes a value as a text, or reports that it is none.
func scalar(value any) (text string, ok bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}
