package testenv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/embedded"
)

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, embedded.ErrNoBinaries):
		t.Fatalf("%v\nor let the makefile install it: make deps", err)
	default:
		t.Fatal(err)
	}
}

// Must returns a function that takes the test and returns the result of a call, or ends the test with its error:
//
//	text := testenv.Must(os.ReadFile(path))(t)
func Must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return result
	}
}

// Same reports what differs from what it should be; what and args say which thing it is.
func Same[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %+v, want %+v", fmt.Sprintf(what, args...), got, want)
	}
}

// MustSame is Same, and ends the test.
func MustSame[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %+v, want %+v", fmt.Sprintf(what, args...), got, want)
	}
}

// Fails reports an error that is missing; what and args say what went through.
func Fails(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf(what, args...)
	}
}

// Says reports an error that is missing or lacks a part; what and args say of which thing it is.
func Says(t testing.TB, err error, part, what string, args ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got %v, want an error with %q", fmt.Sprintf(what, args...), err, part)
	}
}

// Is reports an error that is not the one it should be.
func Is(t testing.TB, err, want error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", fmt.Sprintf(what, args...), err, want)
	}
}

// Has reports a text that lacks a part.
func Has(t testing.TB, text, part, what string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: no %q in\n%s", fmt.Sprintf(what, args...), part, text)
	}
}

// As returns an error as one of a type, or ends the test; what and args say of which thing it is.
func As[E error](t testing.TB, err error, what string, args ...any) E {
	t.Helper()
	found, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("%s: got %v, want a %T", fmt.Sprintf(what, args...), err, found)
	}
	return found
}

func SameList[S ~[]E, E comparable](t testing.TB, got, want S, what string, args ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %+v, want %+v", fmt.Sprintf(what, args...), got, want)
	}
}
