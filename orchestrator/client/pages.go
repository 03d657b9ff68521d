package client

import (
	"iter"
	"reflect"
)

// all yields the entries of a list up to the first error. It fetches a page after the previous one was yielded.
func all[T any](page func() (entries []T, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			entries, more, err := page()
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, entry := range entries {
				if !yield(entry, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// goOn copies the start of the next page into the parameter, and reports whether there is a next page.
func goOn(next, from any) bool {
	begin, to := reflect.ValueOf(next), reflect.ValueOf(from).Elem()
	if begin.IsZero() {
		return false
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	to.Set(reflect.Indirect(begin).Convert(to.Type()))
	return true
}
