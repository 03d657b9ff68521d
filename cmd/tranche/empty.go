package main

import (
	"fmt"
	"reflect"

	"github.com/alecthomas/kong"
)

// refuseEmpty refuses an argument or flag that was given as an empty text: more likely than not it was to come from a
// variable that is not set. A run without a name, or a key that protects from starting twice, must not get lost so.
func refuseEmpty(line *kong.Context) error {
	for _, at := range line.Path {
		var given *kong.Value
		switch {
		case at.Resolved: // from a file
		case at.Positional != nil:
			given = at.Positional
		case at.Flag != nil && at.Flag.Name != "reason":
			given = at.Flag.Value
		}
		if given != nil && isEmptyText(given.Target) {
			return &usageError{fmt.Sprintf("%s is empty; say what is meant; see: %s --help", given.ShortSummary(),
				line.Selected().FullPath())}
		}
	}
	return nil
}

func isEmptyText(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	return v.Kind() == reflect.String && v.Len() == 0
}
