package testenv

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

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
