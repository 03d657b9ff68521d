package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

// AttemptTime is how long somebody may take to log in at the provider.
const AttemptTime = 10 * time.Minute

// maxAttempt bounds the text of an attempt: it is a cookie.
const maxAttempt = 4096

// maxNext bounds the page to go on to, as it is written there: browsers keep no cookie of more than 4096 bytes.
const maxNext = 1024

// Attempt is a login under way. The browser keeps it, sealed: it ends at the one in which it began, in time.
type Attempt struct {
	State, Nonce, Verifier string

	Next  string // the page to go on to; empty: none
	Until time.Time
}

// NewAttempt returns a fresh attempt. A next page whose name is too long is forgotten.
func NewAttempt(next string) Attempt {
	if written, err := json.Marshal(next); err != nil || len(written) > maxNext {
		next = ""
	}
	return Attempt{State: newCookie(), Nonce: newCookie(), Verifier: oauth2.GenerateVerifier(), Next: next,
		Until: time.Now().Add(AttemptTime)}
}

// Seal is what the browser keeps of an attempt.
func (o *OIDC) Seal(a *Attempt) (string, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(o.sealer.seal(sealAttempt, text)), nil
}

// Unseal returns the attempt that a browser kept and came back with from the provider, which repeats its state. It is
// refused with a DeniedError when it did not begin here, has not begun in this browser, or is too old. That costs
// nothing, and leaves nothing behind.
func (o *OIDC) Unseal(kept, state string) (Attempt, error) {
	denied := &DeniedError{Why: "it did not begin in this browser, or too long ago; log in again"}
	if len(kept) > maxAttempt {
		return Attempt{}, denied
	}
	sealed, err := base64.RawURLEncoding.DecodeString(kept)
	if err != nil {
		return Attempt{}, denied
	}
	text, ok := o.sealer.open(sealAttempt, sealed)
	var a Attempt
	if !ok || json.Unmarshal(text, &a) != nil || time.Now().After(a.Until) || a.State == "" ||
		subtle.ConstantTimeCompare([]byte(a.State), []byte(state)) != 1 {
		return Attempt{}, denied
	}
	return a, nil
}

// usedStates are those of logins that succeeded. Only who is known to the provider makes it remember anything, and it
// forgets what is too old to be unsealed.
type usedStates struct {
	mu sync.Mutex
	at map[[sha256.Size]byte]time.Time
}

func (u *usedStates) has(state string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, has := u.at[HashOf(state)]
	return has
}

// use reports whether a state has not been used, and notes that it is now. The provider takes each code once too, which
// holds on other nodes, and when there is no room to remember.
func (u *usedStates) use(state string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for old, at := range u.at {
		if time.Since(at) > AttemptTime {
			delete(u.at, old)
		}
	}
	hash := HashOf(state)
	if _, again := u.at[hash]; again {
		return false
	}
	for old := range u.at {
		if len(u.at) < maxTrusted {
			break
		}
		delete(u.at, old)
	}
	u.at[hash] = time.Now()
	return true
}
