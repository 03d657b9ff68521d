package testenv

import "testing"

// NoError ends the test with an error, if there is one.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must is the result of a call. What it returns takes the test, which ends with the call's error if there is one, as in
//
//	text := testenv.Must(os.ReadFile(path))(t)
func Must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return result
	}
}
