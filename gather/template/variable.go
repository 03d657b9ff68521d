// Package template fills in the URLs, headers and bodies of HTTP requests.
//
// A URL is an RFC 6570 template, such as http://127.0.0.1:8081/branches/{item.branch}{?year}. Texts and strings in a
// JSON body have variables in braces; {{ and }} are literal braces. A string of a body that is just one variable
// becomes its value of any type.
//
//	key, ordinal          of the item
//	item, item.FIELD      its payload, or a field at any depth: item.address.zip
//	parts.STEP.FIELD      an earlier step's result
//	params.NAME           a run parameter; just NAME in {?…}, {&…} and {;…} of a URL
//	run, step, generation
//	secret.NAME           a secret of the operator's, in headers and bodies only
//	keys, items           of the whole chunk, in requests for a chunk
//
// Inserted values stay values. In a URL they are escaped and cannot change host, path or query, nor make a segment
// that climbs; unescaped expansions are rejected. In a body they are JSON. Callers must check headers. A variable
// without a value is an error, except in {?…}, {&…} and {;…}, which omit it; an unset parameter is always an error.
//
// RFC 6570 libraries do not report where a variable is, on which these checks depend, and support neither texts nor
// bodies. Templates are safe for concurrent use.
package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Variables are what a template may use.
type Variables struct {
	Many  bool     // the request is for a chunk: keys and items instead of one item's
	Item  bool     // there are payloads
	Parts []string // steps with parts
	Alone bool     // for a single operation: no run and no secrets
	Any   bool     // already checked: payloads and any step's parts may exist
}

type variable struct {
	name string   // as written
	root string   // key, ordinal, item, parts, params, run, step, generation, secret, keys, items
	of   string   // step of a part, name of a parameter or secret
	path []string // in a payload or part
}

type place int

const (
	inPath  place = iota
	inQuery       // in a URL's query, as in ?a={key}
	inNamed       // named and omitted if missing, as in {?year}
	inText
)

func (v Variables) parse(name string, at place) (variable, error) {
	root, rest, dotted := strings.Cut(name, ".")
	out := variable{name: name, root: root}
	known := v.plain(root, at)
	switch {
	case known && dotted:
		return out, fmt.Errorf("{%s}: the part before the dot has no fields", name)
	case known:
		return out, nil
	case root == "secret" && rest != "" && at != inText:
		return out, fmt.Errorf("{%s}: a secret does not belong in a URL, which ends up in logs; put it in a header", name)
	}
	if !v.fielded(&out, rest, dotted, at) {
		return out, fmt.Errorf("there is no {%s} here; there are %s", name, v.known(at))
	}
	return out, nil
}

func (v Variables) fielded(out *variable, rest string, dotted bool, at place) (known bool) {
	switch out.root {
	case "params", "secret":
		out.of = rest
		return rest != "" && (!v.Alone || out.root == "params")
	case "item":
		out.path = fields(rest)
		return (v.Item || v.Any) && !v.Many && (rest != "" || !dotted && at == inText)
	case "parts":
		return v.parsePart(out, rest, at)
	case "key", "ordinal", "keys", "items": // not here
		return false
	}
	out.root, out.of = "params", out.name
	return at == inNamed && !dotted
}

func (v Variables) plain(name string, at place) bool {
	switch name {
	case "run", "step", "generation":
		return !v.Alone
	case "key":
		return !v.Many
	case "ordinal":
		return !v.Many && !v.Alone
	case "keys":
		return v.Many
	case "items":
		return v.Many && at == inText && (v.Item || v.Any)
	}
	return false
}

func (v Variables) parsePart(out *variable, rest string, at place) (known bool) {
	step, path, dotted := strings.Cut(rest, ".")
	out.of, out.path = step, fields(path)
	return (slices.Contains(v.Parts, step) || v.Any && step != "") && !v.Many && (dotted || at == inText)
}

func fields(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}

func (v Variables) known(at place) string {
	var names []string
	if v.Many {
		names = append(names, "keys")
		if at == inText && v.Item {
			names = append(names, "items")
		}
	} else {
		if names = append(names, "key"); !v.Alone {
			names = append(names, "ordinal")
		}
		if v.Item {
			names = append(names, "item.FIELD")
		}
		for _, step := range v.Parts {
			names = append(names, "parts."+step+".FIELD")
		}
	}
	if names = append(names, "params.NAME"); v.Alone {
		return strings.Join(names, ", ")
	}
	if at == inText {
		names = append(names, "secret.NAME")
	}
	return strings.Join(append(names, "run", "step", "generation"), ", ")
}

// decoded unescapes a name in a URL template.
func decoded(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}

// Values are the values to insert.
type Values struct {
	Run, Step           string
	Generation, Ordinal int
	Key                 string
	Item                []byte          // JSON; nil without a payload
	Parts               map[string]Part // existing ones only
	Params              map[string]string
	Keys                []string
	Items               [][]byte // JSON
	Secret              func(name string) (string, error)
	Nulls               bool // a null in a payload or part counts as a value when it is alone

	item  any // decoded on first use
	parts map[string]any
}

// Part is an earlier step's result for an item.
type Part struct {
	Data        []byte
	ContentType string // empty for JSON
}

// Error means that a template cannot be expanded.
type Error struct {
	Variable string // empty if not about one
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

// value returns a variable's value as JSON types; there is false without one. An unset parameter is always an error.
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
		items := make([]json.RawMessage, len(in.Items))
		for i, item := range in.Items {
			items[i] = item
		}
		return items, true, nil
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

func (v variable) ofItem(in *Values) (any, bool, error) {
	if in.Item == nil {
		return nil, false, nil
	}
	if len(v.path) == 0 {
		return json.RawMessage(in.Item), true, nil
	}
	if in.item == nil {
		if err := decode(in.Item, &in.item); err != nil {
			return nil, false, v.fails("the payload is not JSON that can be read")
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
			return nil, false, v.fails("the part of %s is not JSON that can be read", v.of)
		}
		in.parts[v.of] = value
	}
	value, there := descend(in.parts[v.of], v.path)
	return value, there, nil
}

// decode preserves how numbers are written.
func decode(data []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

// descend follows a path of field names and list indexes. A null is not a value.
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

// null reports whether the variable's path leads to a null.
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
