package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// Keep runs f until stop is called, or the test ends. tell is t.Errorf, or t.Logf if f may return errors.
func Keep(t testing.TB, tell func(format string, args ...any), what string, f func(context.Context) error,
) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f(ctx); err != nil {
			tell("%s ended with %v", what, err)
		}
	})
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// Pauses between polls of [Until], which grow to leave the processor to the work.
const (
	firstPause = 3 * time.Millisecond
	lastPause  = 24 * time.Millisecond
)

func Until(t testing.TB, limit time.Duration, what string, met func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for pause := firstPause; !met(); pause = min(2*pause, lastPause) {
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatal("timed out waiting until " + what)
		}
	}
}

func Number(t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (n int) {
	t.Helper()
	NoError(t, db.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// Get requests a URL and returns the status and the text of the answer.
func Get(t testing.TB, url string) (code int, text string) {
	t.Helper()
	return Do(t, Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t))
}

func Do(t testing.TB, req *http.Request) (code int, text string) {
	t.Helper()
	answer, err := http.DefaultClient.Do(req)
	NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode, string(Must(io.ReadAll(answer.Body))(t))
}

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
