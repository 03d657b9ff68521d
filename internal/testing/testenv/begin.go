package testenv

import "testing"

// Begin calls f in a goroutine. end waits for its result; an error ends the test.
func Begin[T any](t testing.TB, f func() (T, error)) (end func() T) {
	t.Helper()
	var v T
	var err error
	over := make(chan struct{})
	go func() {
		defer close(over)
		v, err = f()
	}()
	return func() T {
		t.Helper()
		<-over
		NoError(t, err)
		return v
	}
}
