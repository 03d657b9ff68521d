package workqueue_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (b *bench) loadInvalid(req start.LoadRequest, next func(*start.LoadItem) error) start.Loaded {
	b.Helper()
	req.Session = b.Session
	loaded := testenv.Must(start.New(b.Store).Load(b.Context(), req, next))(b)
	return loaded
}

// A run of several batches of which nothing fits has ended with its seal.
func TestRunOfInvalidItemsOnlyCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	next := storetest.Keys(storetest.Names(storetest.Several)...)
	loaded := b.loadInvalid(storetest.Request(), func(item *start.LoadItem) error {
		err := next(item)
		item.Invalid = "x"
		return err
	})
	b.WantState(loaded.Run, "completed", 1)
	b.WantCounts(loaded.Run, 0, storetest.Several)
	b.WantCompletions(loaded.Run, 1)
	if len(loaded.Completions) != 1 {
		t.Errorf("completions %+v", loaded.Completions)
	}
	b.Check()
}

func TestTooManyInvalidItemsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	i := 0
	req := storetest.Request()
	req.Session = b.Session
	_, err := start.New(b.Store).Load(t.Context(), req, func(item *start.LoadItem) error {
		item.Key, item.Payload, item.Invalid = fmt.Sprint("C", i), []byte(`{}`), "y"
		i++
		return nil
	})
	var many *start.TooManyInvalidError
	if !errors.As(err, &many) || b.Number(`SELECT count(*) FROM batchrun`) != 0 {
		t.Errorf("got %v", err)
	}
}

// What is invalid says nothing about how the sample of a canary does: no one was asked about it.
func TestInvalidItemsAreNoCanary(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, c := range map[string]struct {
		sample int
		want   control.CanaryVerdict
		hold   string
	}{
		"some of the sample": {30, control.CanaryPassed, ""},
		"all of it": {1, control.CanaryWaiting,
			"canary by tranche: no one was asked about any item of its canary"},
	} {
		req := storetest.Chunked(10)
		req.Canary, req.CanaryAutoApprove = c.sample, true
		run := b.loadInvalid(req, func() func(*start.LoadItem) error {
			next, i := storetest.Keys(storetest.Names(90)...), 0
			return func(item *start.LoadItem) error {
				err := next(item)
				if err == nil && (c.sample == 1 && i < 89 || i%3 == 0) {
					item.Invalid = "balance: it is missing"
				}
				i++
				return err
			}
		}()).Run
		for _, s := range b.Claim(run, storetest.Plenty) {
			b.Record(storetest.Whole(s))
		}
		b.wantCanary(run, c.want)
		b.wantHold(run, c.hold)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	b.Check()
}
