package access_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// forgetful is a store that knows no token, and keeps what is written about failures.
type forgetful struct {
	access.Store

	slow              time.Duration // of a lookup
	looked, now, most int           // lookups, those in progress, and the most of them concurrently

	away  int        // so many writes fail
	mu    sync.Mutex // rows are written by timers
	rows  []identity.Counted
	times []time.Time
}

func (f *forgetful) TokenCredential(context.Context, [32]byte) (identity.Credential, error) {
	f.mu.Lock()
	f.looked, f.now = f.looked+1, f.now+1
	f.most = max(f.most, f.now)
	f.mu.Unlock()
	if f.slow > 0 {
		<-time.After(f.slow)
	}
	f.mu.Lock()
	f.now--
	f.mu.Unlock()
	return identity.Credential{}, identity.ErrNoCredential
}

func (f *forgetful) NoteCounted(_ context.Context, all []identity.Counted) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away > 0 {
		f.away--
		return errors.New("the database is unavailable")
	}
	f.rows, f.times = append(f.rows, all...), append(f.times, time.Now())
	return nil
}

// PROOF: who may do what, 18.
// However many addresses fail to log in, the audit log gets a few rows a minute, in which
// each failure is counted; the first is there immediately.
func TestFailuresAreSummedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{}
		gate := testenv.Must(access.New(store, access.Config{}))(t)
		const addresses, minutes = 2000, 3
		for range minutes {
			for i := range addresses {
				address := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(0xc6000000+i))))
				_, err := gate.Token(t.Context(), address, access.NewSecret())
				testenv.Fails(t, err, "a token that no one knows is good")
			}
			synctest.Wait()
			store.mu.Lock()
			told := len(store.rows) > 0
			store.mu.Unlock()
			if !told {
				t.Error("the first failure is not reported immediately")
			}
			time.Sleep(time.Minute) //nolint:forbidigo // the bubble's own time
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // as above
		synctest.Wait()
		var sum int64
		for _, row := range store.rows {
			sum += row.Count
		}
		if sum != addresses*minutes || len(store.rows) > 20*(minutes+2) || len(store.times) > minutes+2 {
			t.Errorf("%d failures in %d rows, at %d times; want %d in a few", sum, len(store.rows), len(store.times),
				addresses*minutes)
		}
	})
}

// PROOF: who may do what, 18.
// Tries that are not looked into, because there were too many, are counted as well, in a row for each way and minute.
func TestThrottledTriesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{}
		gate := testenv.Must(access.New(store, access.Config{}))(t)
		here := netip.MustParseAddr("192.0.2.1")
		failed := map[string]int64{}
		note := func(way string, err error) {
			if err != nil {
				failed[way]++
			}
		}
		for range 1000 {
			note("token", gate.TryLogIn(here))
			note("provider", gate.TryProvider(here))
			note("provider", gate.TryWayBack(here))
			_, err := gate.Token(t.Context(), here, "made up")
			note("token", err)
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the bubble's own time
		synctest.Wait()
		for _, row := range store.rows {
			failed[row.By] -= row.Count
		}
		if failed["token"] != 0 || failed["provider"] != 0 || len(store.rows) > 4 {
			t.Errorf("%d rows leave out %v of the tries that failed: %+v", len(store.rows), failed, store.rows)
		}
	})
}

// Failures that could not be written are written the next time, and those of the last minute at the end.
func TestFailuresOutliveADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{away: 2}
		gate := testenv.Must(access.New(store, access.Config{}))(t)
		for range 3 {
			_, err := gate.Token(t.Context(), netip.MustParseAddr("192.0.2.1"), access.NewSecret())
			testenv.Fails(t, err, "a token that no one knows is good")
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's own time
		}
		time.Sleep(3 * time.Minute) //nolint:forbidigo // as above
		synctest.Wait()
		if len(store.rows) != 1 || store.rows[0].Count != 3 || store.rows[0].Address != "192.0.2.1" {
			t.Errorf("3 failures are reported as %+v", store.rows)
		}
		for range 2 { // the first is written immediately
			_, err := gate.Token(t.Context(), netip.MustParseAddr("192.0.2.1"), access.NewSecret())
			testenv.Fails(t, err, "a token that no one knows is good")
			synctest.Wait()
		}
		testenv.Same(t, len(store.rows), 2, "rows before the end")
		gate.Close()
		testenv.Same(t, len(store.rows), 3, "rows after the end")
	})
}

// PROOF: who may do what, 19.
// An address that asks with tokens made up is soon refused: without a look at the database when many of them come at
// once, or when they cannot be tokens. Others are not.
func TestTokensThatAreMadeUpAreThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{slow: 100 * time.Millisecond}
		gate := testenv.Must(access.New(store, access.Config{}))(t)
		here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		for range 10_000 {
			_, _ = gate.Token(t.Context(), here, "made up") // what it says is below
		}
		var all sync.WaitGroup
		for range 10_000 {
			all.Go(func() {
				_, err := gate.Token(t.Context(), here, access.NewSecret())
				if throttled, ok := errors.AsType[*access.ThrottledError](err); !ok || throttled.Seconds() < 1 {
					t.Errorf("one more got %v", err)
				}
			})
		}
		all.Wait()
		if store.looked > 11 || store.most > 1 { // those that had their turn within a second
			t.Errorf("10,000 tokens were looked up %d times, %d of them concurrently", store.looked, store.most)
		}
		before := store.looked
		_, err := gate.Token(t.Context(), there, access.NewSecret())
		if _, ok := errors.AsType[*access.RefusedError](err); !ok || store.looked != before+1 {
			t.Errorf("another address got %v after %d lookups", err, store.looked-before)
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the failures are written
		synctest.Wait()
	})
}

// knowing is a store that knows one token, and keeps the sessions of a login.
type knowing struct {
	forgetful

	token, session [32]byte
	asked          int // lookups of sessions
}

func (k *knowing) TokenCredential(ctx context.Context, hash [32]byte) (identity.Credential, error) {
	if hash == k.token {
		return active(hash), nil
	}
	return k.forgetful.TokenCredential(ctx, hash)
}

func (k *knowing) SessionCredential(_ context.Context, hash [32]byte, _ time.Duration) (identity.Credential, error) {
	k.asked++
	if hash == k.session {
		return active(hash), nil
	}
	return identity.Credential{}, identity.ErrNoCredential
}

func (k *knowing) BeginWebSession(_ context.Context, n identity.NewWebSession) (identity.Credential, error) {
	k.session = n.Hash
	return active(n.Hash), nil
}

func active(hash [32]byte) identity.Credential {
	return identity.Credential{Hash: hash[:], User: "ann", Role: string(access.Viewer), State: identity.TokenActive}
}

// A neighbor who asks with secrets made up locks no one out: neither who has just logged in, nor who comes with a good
// secret for the first time.
func TestWhoIsGoodGetsInBesideANeighborWhoIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		secret, here := access.NewSecret(), netip.MustParseAddr("192.0.2.1")
		store := &knowing{token: access.HashOf(secret)}
		first := testenv.Must(access.New(store, access.Config{}))(t)
		second := testenv.Must(access.New(store, access.Config{}))(t)
		guess := func() {
			for range 2 * access.DefaultUnknownBurst {
				for _, gate := range []*access.Gate{first, second} {
					_, _ = gate.Token(t.Context(), here, access.NewSecret()) // it is refused
				}
			}
		}
		guess()
		_, err := second.Token(t.Context(), here, secret)
		testenv.Same(t, err, nil, "a good token, for the first time")
		for what, logIn := range map[string]func() (string, access.Principal, error){
			"by a token": func() (string, access.Principal, error) { return first.LogIn(t.Context(), here, secret) },
			"by a provider": func() (string, access.Principal, error) {
				return first.LogInAs(t.Context(), access.Identity{Name: "ann", Role: access.Viewer})
			},
		} {
			cookie, _, err := logIn()
			testenv.NoError(t, err)
			before := store.asked
			if _, err := first.Session(t.Context(), here, cookie); err != nil || store.asked > before {
				t.Errorf("after a login %s: %v after %d lookups", what, err, store.asked-before)
			}
			_, err = second.Session(t.Context(), here, cookie)
			testenv.Same(t, err, nil, "after a login %s, at another node", what)
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the failures are written
		synctest.Wait()
	})
}

// PROOF: who may do what, 19.
// Tokens that no one knows count from their beginning: an address that sends all of them together has no more of them
// looked up than one that sends them one at a time, except those that take turns.
func TestMadeUpTokensCountFromTheirBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{slow: time.Millisecond}
		gate := testenv.Must(access.New(store, access.Config{}))(t)
		const many, turns = 1000, 64
		var all sync.WaitGroup
		for range many {
			all.Go(func() { _, _ = gate.Token(t.Context(), netip.MustParseAddr("192.0.2.1"), access.NewSecret()) })
		}
		all.Wait()
		if most := access.DefaultUnknownBurst + turns; store.looked < access.DefaultUnknownBurst || store.looked > most {
			t.Errorf("%d of %d are looked up; want %d, and at most %d that take turns", store.looked, many,
				access.DefaultUnknownBurst, turns)
		}
	})
}
