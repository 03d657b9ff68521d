package main

import (
	"fmt"
	"reflect"
	"unicode/utf8"

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

// refuseBytes refuses words that are not UTF-8: on their way to the server they would become others.
func refuseBytes(args []string) error {
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return &usageError{fmt.Sprintf("%q is not UTF-8; what is not text can come in a file only", short(arg, 100))}
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
