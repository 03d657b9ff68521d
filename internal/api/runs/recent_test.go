package runs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestWhatIsRecentIsMadeOnce(t *testing.T) {
	t.Parallel()
	var r recent[string, int]
	var builds atomic.Int32
	begun, go1 := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	slow := func() (int, error) {
		if builds.Add(1) == 1 {
			close(begun)
			<-go1
			return 0, errors.New("it broke")
		}
		return 7, nil
	}
	all.Go(func() {
		_, err := r.get(t.Context(), "a", time.Minute, slow)
		testenv.Fails(t, err, "its own failure was not told")
	})
	<-begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.get(gone, "a", time.Minute, slow)
	testenv.Is(t, err, context.Canceled, "who gave up")
	for range 10 {
		all.Go(func() {
			if v, err := r.get(t.Context(), "a", time.Minute, slow); v != 7 || err != nil {
				t.Errorf("got %d, %v", v, err)
			}
		})
	}
	close(go1)
	all.Wait()
	testenv.Same(t, builds.Load(), 2, "times it was made")
}

func TestWhatPanickedIsMadeAgain(t *testing.T) {
	t.Parallel()
	var r recent[string, int]
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = r.get(t.Context(), "a", time.Minute, func() (int, error) { panic("it broke") })
	}()
	if v, err := r.get(t.Context(), "a", time.Minute, func() (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
}
