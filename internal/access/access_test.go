package access_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	wqdatabase "github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// PROOF: who may do what, 4.
func TestSecrets(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		secret := access.NewSecret()
		if !access.WellFormed(secret) || seen[secret] || len(secret) != access.SecretChars {
			t.Fatalf("a secret that is none, or comes twice: %q", secret)
		}
		seen[secret] = true
		for _, broken := range []string{secret[:41], secret + "a", strings.ToUpper(secret), " " + secret, secret[:40] + "zz",
			"xx_" + secret[3:], strings.Replace(secret, secret[10:11], "1", 1)} {
			if broken != secret && access.WellFormed(broken) {
				t.Errorf("%q is taken for a secret, by %q", broken, secret)
			}
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	secret := access.NewSecret()
	for text, want := range map[string]string{
		"":                             "",
		"tr_ and tr_short are no more": "tr_ and tr_short are no more",
		secret:                         "tr_…",
		"a " + secret + " b " + secret: "a tr_… b tr_…",
		"cut " + secret[:20] + ".":     "cut tr_….",
	} {
		testenv.Same(t, access.Redact(text), want, "%q became", text)
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	slots := access.NewSlots(2, 3)
	var back []func()
	for _, user := range []string{"ann", "ann", "bob"} {
		giveBack := testenv.Must(slots.Take(user))(t)
		back = append(back, giveBack)
	}
	if _, err := slots.Take("eve"); !all(err) {
		t.Errorf("the fourth got %v", err)
	}
	back[2]()
	back[2]() // gives back what it has, and nothing else
	if _, err := slots.Take("ann"); err == nil || all(err) {
		t.Errorf("ann's third got %v", err)
	}
	testenv.Must(slots.Take("eve"))(t)
	if _, err := slots.Take("eve"); !all(err) {
		t.Errorf("one too many got %v", err)
	}
}

func all(err error) bool {
	busy, ok := errors.AsType[*access.BusyError](err)
	return ok && busy.All
}

func TestMain(m *testing.M) { testenv.Main(m) }

func keep(t *testing.T, store *wqdatabase.DB, name, secret string) {
	t.Helper()
	token := identity.NewToken{Name: name, Role: "viewer", Hash: access.HashOf(secret)}
	testenv.Must(identity.New(store).CreateToken(t.Context(), token, "the test"))(t)
}

// Who cannot be checked any more, because PostgreSQL has gone silent, is ended too: it may have been revoked.
func TestWhoCannotBeCheckedIsEnded(t *testing.T) {
	t.Parallel()
	through, proxy := testenv.Through(t, testenv.Database(t))
	store, release, err := wqdatabase.Open(t.Context(), through, wqdatabase.PoolConfig{MaxConns: 2})
	testenv.NoError(t, err)
	t.Cleanup(release)
	t.Cleanup(proxy.Heal)
	gate := testenv.Must(access.New(identity.New(store), access.Config{}))(t)
	secret := access.NewSecret()
	keep(t, store, "ann", secret)
	began := time.Now()
	who := testenv.Must(gate.Token(t.Context(), netip.Addr{}, secret))(t)
	ctx, done := gate.Admit(t.Context(), who)
	defer done()
	proxy.Stall(testenv.Up, testenv.Down)
	testenv.ReceiveBefore(ctx.Done(), testenv.NewWatch(t).After(access.RevocationTime))
	if err := access.Recheck(ctx); !errors.Is(err, access.ErrUnchecked) || time.Since(began) < 2*time.Second {
		t.Errorf("after %s it ended with %v", time.Since(began), err)
	}
	_, err = gate.Token(t.Context(), netip.Addr{}, secret)
	testenv.Fails(t, err, "the token is taken although no one can say whether it is good")
}

// A gate that ended one request watches the next, while the handler of the first is still there.
func TestTheNextRequestIsWatchedToo(t *testing.T) {
	t.Parallel()
	store := wqdatabase.New(testenv.Pool(t))
	gate := testenv.Must(access.New(identity.New(store), access.Config{}))(t)
	for _, name := range []string{"ann", "bob"} {
		watch := testenv.NewWatch(t)
		err := revoked(t, store, gate, name)
		// After a halt that is too long requests end unchecked: that shows nothing.
		for tries := 0; errors.Is(err, access.ErrUnchecked) && watch.Longest() > time.Second && tries < 20; tries++ {
			watch, err = testenv.NewWatch(t), revoked(t, store, gate, fmt.Sprint(name, tries))
		}
		testenv.Is(t, err, access.ErrRevoked, "the request of %s ended with", name)
	}
}

// revoked revokes a token of which a request is in progress, and returns what that ended with.
func revoked(t *testing.T, store *wqdatabase.DB, gate *access.Gate, name string) error {
	t.Helper()
	secret := access.NewSecret()
	keep(t, store, name, secret)
	who := testenv.Must(gate.Token(t.Context(), netip.Addr{}, secret))(t)
	ctx, done := gate.Admit(t.Context(), who)
	t.Cleanup(done) // only at the end of the test
	if p, ok := access.From(ctx); !ok || p.Name != name {
		t.Errorf("the context is one of %q", p.Name)
	}
	if err := access.Recheck(ctx); err != nil {
		return err
	}
	testenv.Must(identity.New(store).RevokeToken(t.Context(), name, "me"))(t)
	testenv.ReceiveBefore(ctx.Done(), testenv.NewWatch(t).After(access.RevocationTime))
	return access.Recheck(ctx)
}

// A token that is revoked between being found good and the login begins no session.
func TestARevokedTokenBeginsNoSession(t *testing.T) {
	t.Parallel()
	store := wqdatabase.New(testenv.Pool(t))
	gate := testenv.Must(access.New(identity.New(store), access.Config{}))(t)
	secret := access.NewSecret()
	keep(t, store, "ann", secret)
	testenv.Must(gate.Token(t.Context(), netip.Addr{}, secret))(t) // it is remembered as good from now on
	testenv.Must(identity.New(store).RevokeToken(t.Context(), "ann", "me"))(t)
	_, _, err := gate.LogIn(context.WithoutCancel(t.Context()), netip.Addr{}, secret)
	testenv.Same(t, testenv.As[*access.RefusedError](t, err, "the login").State, identity.TokenRevoked, "the token")
}
