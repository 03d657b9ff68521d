package access_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
)

func TestRolesIncludeOneAnother(t *testing.T) {
	t.Parallel()
	order := append([]access.Role{access.None}, access.Roles()...)
	for i, has := range order {
		for j, needed := range order {
			if has.Allows(needed) != (i >= j) {
				t.Errorf("%s may do what needs %s: %v", has, needed, has.Allows(needed))
			}
		}
	}
	for _, odd := range []access.Role{"", "root", "Admin"} {
		if access.Admin.Allows(odd) || odd.Allows(access.Viewer) {
			t.Errorf("the role %q means something", odd)
		}
		if _, err := access.ParseRole(string(odd)); err == nil {
			t.Errorf("%q was read as a role", odd)
		}
	}
}

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
		if got := access.Redact(text); got != want {
			t.Errorf("%q became %q; want %q", text, got, want)
		}
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	slots := access.NewSlots(2, 3)
	var back []func()
	for _, user := range []string{"ann", "ann", "bob"} {
		giveBack, err := slots.Take(user)
		if err != nil {
			t.Fatal(err)
		}
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
	if _, err := slots.Take("eve"); err != nil {
		t.Error(err)
	}
	if _, err := slots.Take("eve"); !all(err) {
		t.Errorf("one too many got %v", err)
	}
}

func all(err error) bool {
	busy, ok := errors.AsType[*access.BusyError](err)
	return ok && busy.All
}
