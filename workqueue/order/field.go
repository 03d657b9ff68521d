package order

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// field returns the text of a field of a JSON object. Of duplicate names the last counts, as in most JSON readers.
func field(payload []byte, path []string) (string, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(payload), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true))
	value, err := find(d, path)
	if _, ours := errors.AsType[*problem](err); err == nil || ours {
		return value, err
	}
	if errors.Is(err, io.EOF) {
		return "", &problem{"the payload is empty"}
	}
	return "", &problem{"the payload is not JSON: " + err.Error()}
}

// problem is an error of an item, not of its JSON syntax.
type problem struct{ text string }

func (p *problem) Error() string { return p.text }

func find(d *jsontext.Decoder, path []string) (value string, err error) {
	if kind := d.PeekKind(); kind != '{' {
		if err := d.SkipValue(); err != nil {
			return "", err
		}
		return "", &problem{fmt.Sprintf("there is %s where an object with field %.60q should be", nameOf(kind), path[0])}
	}
	if _, err := d.ReadToken(); err != nil {
		return "", err
	}
	missing := error(&problem{fmt.Sprintf("there is no field %.60q", path[0])})
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		if name.String() != path[0] {
			if err := d.SkipValue(); err != nil {
				return "", err
			}
			continue
		}
		missing = nil
		if len(path) > 1 {
			value, err = find(d, path[1:])
		} else {
			value, err = scalar(d, path[0])
		}
		if _, ours := errors.AsType[*problem](err); ours {
			missing = err
		} else if err != nil {
			return "", err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return "", err
	}
	return value, missing
}

func scalar(d *jsontext.Decoder, name string) (string, error) {
	switch kind := d.PeekKind(); kind {
	case '"', '0', 't', 'f':
		token, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		if text := token.String(); text != "" {
			return text, nil
		}
		return "", &problem{fmt.Sprintf("field %.60q is empty", name)}
	default:
		if err := d.SkipValue(); err != nil {
			return "", err
		}
		return "", &problem{fmt.Sprintf("field %.60q is %s; text, a number, true or false can be put in order by", name,
			nameOf(kind))}
	}
}

func nameOf(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 'n':
		return "null"
	case '"':
		return "text"
	case '0':
		return "a number"
	default:
		return "true or false"
	}
}
