package access_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// strained is a store that knows every token, and says by and by whether they still stand.
type strained struct {
	access.Store // nothing else is asked of it

	answer func(ctx context.Context) error // nil: they do
}

func (*strained) TokenCredential(_ context.Context, hash [32]byte) (identity.Credential, error) {
	return identity.Credential{Hash: hash[:], User: "ann", Role: "viewer", State: identity.TokenActive}, nil
}

func (s *strained) StandingCredentials(ctx context.Context, hashes [][]byte, _ time.Duration) ([][]byte, error) {
	return hashes, s.answer(ctx)
}

func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// halted has the whole process are stalled for a while, and then finds the answer too late.
func halted(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(d) //nolint:forbidigo // the bubble's own time
		return context.DeadlineExceeded
	}
}

// admit begins a request, by someone who was found good some time ago.
func admit(t *testing.T, ago time.Duration, answer func(context.Context) error) context.Context {
	t.Helper()
	gate := testenv.Must(access.New(&strained{answer: answer}, access.Config{}))(t)
	who := testenv.Must(gate.Token(t.Context(), netip.Addr{}, access.NewSecret()))(t)
	time.Sleep(ago) //nolint:forbidigo // the bubble's own time
	ctx, done := gate.Admit(t.Context(), who)
	t.Cleanup(func() {
		done()
		time.Sleep(access.RevocationTime) //nolint:forbidigo // the bubble's own time: no question is left
	})
	return ctx
}

// Whatever goes wrong with the answers, and however long it took to admit a request, it continues for no longer than it
// may.
func TestNobodyGoesOnUncheckedForTooLong(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(context.Context) error{
		"silent":  silent,
		"refuses": func(context.Context) error { return errors.New("it is unavailable") },
	} {
		for ago := time.Duration(0); ago < access.RevocationTime; ago += 50 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				ctx := admit(t, ago, answer)
				<-ctx.Done()
				took := time.Since(begun)
				testenv.Is(t, access.Recheck(ctx), access.ErrUnchecked, "%s, admitted after %s: it ended with", name, ago)
				if took > access.RevocationTime || took < access.RevocationTime-time.Second {
					t.Errorf("%s, admitted after %s: it ended %s after it was found good", name, ago, took)
				}
			})
		}
	}
}

// Who is admitted late is asked for in time.
func TestALateRequestGoesOn(t *testing.T) {
	t.Parallel()
	for ago := time.Duration(0); ago < access.RevocationTime; ago += 50 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			ctx := admit(t, ago, func(context.Context) error { return nil })
			time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's own time
			synctest.Wait()
			testenv.Same(t, access.Recheck(ctx), nil, "admitted after %s: it ended with", ago)
		})
	}
}

// A request continues when the next answer is good, after one that did not come, or came while the process was stalled.
func TestOneAnswerThatDoesNotComeEndsNothing(t *testing.T) {
	t.Parallel()
	for name, once := range map[string]func(context.Context) error{
		"silent": silent, "halted": halted(2500 * time.Millisecond),
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			ctx := admit(t, 0, func(ctx context.Context) error {
				if asked++; asked%2 == 1 {
					return once(ctx)
				}
				return nil
			})
			time.Sleep(50 * time.Second) //nolint:forbidigo // the bubble's own time
			synctest.Wait()
			if err := access.Recheck(ctx); err != nil || asked < 10 {
				t.Errorf("%s: %v after %d questions", name, err, asked)
			}
		})
	}
}

// After a halt that is too long no one is asked any more.
func TestALongHaltEndsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		ctx := admit(t, 0, halted(10*time.Second))
		<-ctx.Done()
		if err := access.Recheck(ctx); !errors.Is(err, access.ErrUnchecked) || time.Since(begun) > 12*time.Second {
			t.Errorf("after %s it ended with %v", time.Since(begun), err)
		}
	})
}
