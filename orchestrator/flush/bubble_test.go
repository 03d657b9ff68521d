package flush

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// keyring is a store with claimed keys, in a bubble.
type keyring struct {
	due     []collectorstore.DueCollector
	claimed collectorstore.ClaimedFlushes
	own     []uuid.UUID // flushes that have their keys
	asked   int         // how often it was asked whose keys are
	kept    map[uuid.UUID]time.Duration
	hangs   bool // nothing comes to an end by itself
	away    bool
}

func (k *keyring) wait(ctx context.Context) error {
	switch {
	case k.away:
		return errors.New("no connection")
	case k.hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (k *keyring) DueCollectors(ctx context.Context) ([]collectorstore.DueCollector, error) {
	return k.due, k.wait(ctx)
}

func (k *keyring) ClaimFlushes(context.Context, collectorstore.FlushRequest) (collectorstore.ClaimedFlushes, error) {
	k.hangs = true // from now on
	return k.claimed, nil
}

func (k *keyring) ReadFlushes(ctx context.Context, _ *collectorstore.ClaimedFlushes, _ int64,
) ([][]collectorstore.FlushOp, error) {
	return nil, k.wait(ctx)
}

func (k *keyring) RecordFlushes(context.Context, []collectorstore.FlushEnd) ([]collectorstore.FlushRecorded, error) {
	return nil, nil
}

func (k *keyring) ProlongFlushes(_ context.Context, flushes []uuid.UUID, limits []time.Duration) ([]uuid.UUID, error) {
	k.asked++
	if k.away {
		return nil, errors.New("no connection")
	}
	k.kept = map[uuid.UUID]time.Duration{}
	for i, id := range flushes {
		if slices.Contains(k.own, id) {
			k.kept[id] = limits[i]
		}
	}
	return slices.Clone(k.own), nil
}

// claimedKeys are keys in the hands of a flight.
func claimedKeys(n int) (*keyring, *flight) {
	k := &keyring{}
	for range n {
		f := collectorstore.KeyFlush{Collector: 1, ID: uuid.New()}
		k.claimed.Flushes = append(k.claimed.Flushes, f)
		k.own = append(k.own, f.ID)
	}
	return k, &flight{collector: 1, claimed: k.claimed}
}

// PostgreSQL that does not answer is not waited for without end: what looks for keys begins again, and what was claimed
// is given back when its operations are not read in time, and claimed in smaller numbers.
func TestReadsForFlushesComeToAnEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := claimedKeys(10)
		k.due = []collectorstore.DueCollector{{ID: 1}}
		f := newFlusher(&core.Core{Log: zaptest.NewLogger(t), NC: &nats.Conn{}}, k, nil,
			Config{Poll: time.Second, SessionTTL: time.Minute})
		begun := time.Now()
		testenv.Must(f.round(t.Context(), t.Context()))(t)
		for range k.claimed.Flushes {
			if end := <-f.ended; end.Operations() != 0 || time.Since(begun) != core.ReadTimeout {
				t.Errorf("%+v ended after %s", end, time.Since(begun))
			}
		}
		if f.working.Wait(); f.room(1) != 5 {
			t.Errorf("there is room for %d keys after 10 that were not read", f.room(1))
		}
		if _, err := f.round(t.Context(), t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(begun) != 2*core.ReadTimeout {
			t.Errorf("a look ended after %s: %v", time.Since(begun)-core.ReadTimeout, err)
		}
	})
}

// What was claimed just now is asked for. After a while the store is asked whose a key is, once for all of a claim, and
// keeps those of the claim.
func TestKeysAreLookedAtAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, w := claimedKeys(2)
		mine, others := k.own[0], k.own[1]
		k.own = k.own[:1]
		h := newHold(time.Now(), 10*time.Second)
		is := func(id uuid.UUID, want bool, asked int, fails bool) {
			t.Helper()
			has, err := h.has(t.Context(), k, w, id)
			if has != want || (err != nil) != fails || k.asked != asked {
				t.Errorf("it is the flush's: %t, %v, asked %d times; want %t, %d times", has, err, k.asked, want, asked)
			}
		}
		<-time.After(5*time.Second - 1)
		is(others, true, 0, false) // no one else can have it yet
		<-time.After(1)
		k.away = true
		is(mine, false, 1, true)
		k.away = false
		is(mine, true, 2, false)
		is(others, false, 2, false)
		testenv.Same(t, k.kept[mine], time.Duration(w.claimed.Spec.Timeout), "kept are %v", k.kept)
		<-time.After(5 * time.Second)
		k.own = nil // the session is over
		is(mine, false, 3, false)
	})
}

// A request is sent again only while its flush is waited for and has its key, and both are so for as long again: else
// the service might begin with it beside the next flush of the key. That has an end, it is not sent twice together, and
// when the store does not say whose its key is, it is asked again.
func TestOnlyFlushesThatKeepTheirKeysAreSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := claimedKeys(3)
		s := newSentFlushes(k, zaptest.NewLogger(t))
		begun := time.Now()
		var ended sync.Map // by token, when
		wait := func(token string, id uuid.UUID, limit time.Duration) func() {
			timed, stop := s.limit(t.Context(), token, id, limit)
			context.AfterFunc(timed, func() { ended.Store(token, time.Since(begun)) })
			return stop
		}
		const limit = time.Hour
		defer wait("live", k.own[0], limit)()
		defer wait("lost", uuid.New(), limit)()
		defer wait("over", k.own[1], time.Minute)()
		wait("answered", k.own[2], limit)()
		tokens := []string{"live", "over", "lost", "answered", "of someone else"}
		renewed := func(want ...string) {
			t.Helper()
			again, later := s.renew(tokens)
			if slices.Sort(later); len(again) != 0 && len(later) != 0 || !slices.Equal(append(again, later...), want) {
				t.Errorf("after %s %v are sent again, %v later; want %v", time.Since(begun), again, later, want)
			}
		}
		<-time.After(50 * time.Second)
		k.away = true
		renewed("live", "lost", "over")
		k.away = false
		renewed() // just tried
		<-time.After(limit / 2)
		synctest.Wait()
		renewed("live")
		if k.kept[k.own[0]] != limit || len(k.kept) != 1 {
			t.Errorf("kept for longer: %v", k.kept)
		}
		<-time.After(limit - time.Minute)
		if renewed("live"); k.kept[k.own[0]] >= limit/2+time.Minute {
			t.Errorf("kept for longer than twice its time: %v", k.kept)
		}
		<-time.After(limit)
		synctest.Wait()
		renewed()
		for token, want := range map[string]time.Duration{"live": 2 * limit, "lost": limit, "over": time.Minute} {
			if at, _ := ended.Load(token); at != want {
				t.Errorf("%s was waited for until %v; want %s", token, at, want)
			}
		}
	})
}
