package template

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Variables are those that a template may use.
type Variables struct {
	Many  bool     // the request is for a chunk: keys and items instead of those of one item
	Item  bool     // there are payloads
	Parts []string // there are parts of these steps
	Alone bool     // it is about an operation by itself: there is no run, and there are no secrets
	Any   bool     // what there is was checked before: payloads and parts of any step may be there
}

// variable is a name in a template, taken apart.
type variable struct {
	name string   // as it stands there
	root string   // key, ordinal, item, parts, params, run, step, generation, secret, keys, items
	of   string   // the step of a part, the name of a parameter or secret
	path []string // in a payload or part
}

// place is where a variable stands.
type place int

const (
	inPath  place = iota
	inQuery       // in the query of a URL, as in ?a={key}
	inNamed       // named and left out when it is missing, as in {?year}
	inText
)

// parse takes a name apart, and checks that there is such a variable.
func (v Variables) parse(name string, at place) (variable, error) {
	root, rest, dotted := strings.Cut(name, ".")
	out := variable{name: name, root: root}
	known := v.plain(root, at)
	switch {
	case known && dotted:
		return out, fmt.Errorf("{%s}: what stands before the dot has no fields", name)
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

// fielded reads what stands behind the dot of a variable, and reports whether there is such a one.
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
	case "key", "ordinal", "keys", "items": // but not here
		return false
	}
	out.root, out.of = "params", out.name
	return at == inNamed && !dotted
}

// plain reports whether a name is that of a variable without fields.
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

// known lists the variables that may stand at a place.
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

// decoded is a name as it stands between the braces of a URL template, without what the RFC wants escaped.
func decoded(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}
