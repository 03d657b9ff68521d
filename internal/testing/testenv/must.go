package testenv

import "testing"

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
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
