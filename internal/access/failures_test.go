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
	"github.com/tranchehq/tranche/workqueue"
)

// forgetful is a store that knows no token, and keeps what is written about failures.
type forgetful struct {
	access.Store

	looked int

	mu    sync.Mutex // rows are written by timers
	rows  []workqueue.FailedLogin
	times []time.Time
}

func (f *forgetful) TokenCredential(context.Context, [32]byte) (workqueue.Credential, error) {
	f.looked++
	return workqueue.Credential{}, workqueue.ErrNoCredential
}

func (f *forgetful) NoteFailedLogins(_ context.Context, all []workqueue.FailedLogin) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows, f.times = append(f.rows, all...), append(f.times, time.Now())
	return nil
}

// PROOF: who may do what, 18.
// However many addresses fail to log in, the audit log gets a few rows a minute, in which
// each failure is counted; the first is there at once.
func TestFailuresAreSummedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{}
		gate, err := access.New(store, access.Config{})
		if err != nil {
			t.Fatal(err)
		}
		const addresses, minutes = 2000, 3
		for range minutes {
			for i := range addresses {
				address := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(0xc6000000+i))))
				if _, err := gate.Token(t.Context(), address, access.NewSecret()); err == nil {
					t.Fatal("a token that nobody knows is good")
				}
			}
			synctest.Wait()
			store.mu.Lock()
			told := len(store.rows) > 0
			store.mu.Unlock()
			if !told {
				t.Error("the first failure is not told at once")
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

// PROOF: who may do what, 19.
// An address that asks with tokens made up is soon refused without a look at the database;
// others are not, nor is one from there that was good before.
func TestTokensThatAreMadeUpAreThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{}
		gate, err := access.New(store, access.Config{})
		if err != nil {
			t.Fatal(err)
		}
		here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		for range 10_000 {
			_, _ = gate.Token(t.Context(), here, access.NewSecret()) // what it says is below
		}
		if store.looked != access.DefaultUnknownBurst {
			t.Errorf("10,000 tokens were looked up %d times; want %d", store.looked, access.DefaultUnknownBurst)
		}
		_, err = gate.Token(t.Context(), here, access.NewSecret())
		if throttled, ok := errors.AsType[*access.ThrottledError](err); !ok || throttled.Seconds() < 1 {
			t.Errorf("one more got %v", err)
		}
		_, _ = gate.Token(t.Context(), there, access.NewSecret()) // as above
		time.Sleep(3 * time.Second)                               //nolint:forbidigo // the bubble's own time
		_, _ = gate.Token(t.Context(), here, access.NewSecret())  // as above
		if store.looked != access.DefaultUnknownBurst+2 {
			t.Errorf("another address, or a second later: %d look-ups", store.looked)
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the failures are written
		synctest.Wait()
	})
}
