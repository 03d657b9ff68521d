package httpfetch

import (
	"encoding/json"
	"strconv"
	"strings"
)

// point returns what a JSON pointer means in a valid JSON text. The bytes are a piece of the text.
func point(text []byte, pointer string) (value []byte, found bool) {
	if pointer == "" {
		return text, true
	}
	for name := range strings.SplitSeq(pointer[1:], "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		if text, found = member(text, name); !found {
			return nil, false
		}
	}
	return text, true
}

// member returns a field of an object, or a place in a list.
func member(text []byte, name string) (value []byte, found bool) {
	if isObject(text) {
		var object map[string]json.RawMessage
		_ = json.Unmarshal(text, &object) // it is valid
		value, found = object[name]
		return value, found
	}
	var list []json.RawMessage
	if json.Unmarshal(text, &list) != nil {
		return nil, false
	}
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != name {
		return nil, false
	}
	return list[i], true
}

func isObject(text []byte) bool {
	return strings.HasPrefix(strings.TrimLeft(string(text[:min(len(text), 64)]), " \t\r\n"), "{")
}
