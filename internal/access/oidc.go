package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// DefaultRoleClaim is where providers of identities tell what groups somebody is in.
const DefaultRoleClaim = "groups"

const (
	// providerTime bounds each answer of the provider.
	providerTime = 10 * time.Second
	// providerPause is how soon one that was not found is looked for again.
	providerPause = time.Second
	// AttemptTime is how long somebody may take to log in at the provider.
	AttemptTime = 10 * time.Minute
)

// OIDCConfig says who vouches for people, and which of them may do what.
type OIDCConfig struct {
	Issuer       string // its URL; the rest is found there
	ClientID     string
	ClientSecret string   // empty: a public client; PKCE is used in any case
	RedirectURL  string   // where the provider sends browsers back to
	Scopes       []string // beside openid

	UserClaim   string          // the actor in the audit log; empty: a verified email, else the subject
	RoleClaim   string          // a text or a list of them; with dots, a member of a member. Empty: DefaultRoleClaim
	Roles       map[string]Role // by the values of that claim
	DefaultRole Role            // of those with none of them; None: they may not log in
}

// OIDC logs people in by a provider of identities. What it knows of the provider it asks for when somebody logs in: one
// that is away keeps nothing else from working.
type OIDC struct {
	config OIDCConfig
	client *http.Client

	finding  sync.Mutex
	provider *oidc.Provider // nil: not found yet
	failed   error          // of the last try to find it
	tried    time.Time

	mu   sync.Mutex
	used map[[sha256.Size]byte]time.Time
}

// NewOIDC checks the settings. It does not ask the provider for anything.
func NewOIDC(config OIDCConfig) (*OIDC, error) {
	issuer, err := url.Parse(config.Issuer)
	if err != nil || issuer.Host == "" || issuer.Scheme != "https" && (issuer.Scheme != "http" || !isLocal(issuer)) {
		return nil, fmt.Errorf("--oidc-issuer %q must be an https URL: whoever can change its answers can log in as anybody",
			config.Issuer)
	}
	if config.ClientID == "" {
		return nil, errors.New("--oidc-client-id is needed with --oidc-issuer: what the provider calls this server")
	}
	config.DefaultRole = cmp.Or(config.DefaultRole, None)
	if len(config.Roles) == 0 && config.DefaultRole == None {
		return nil, errors.New("nobody could log in by --oidc-issuer: say by --oidc-roles which values of " +
			"--oidc-role-claim have which role, like staff=viewer,ops=operator, or give --oidc-default-role")
	}
	config.RoleClaim = cmp.Or(config.RoleClaim, DefaultRoleClaim)
	return &OIDC{config: config, client: &http.Client{Timeout: providerTime}, used: map[[sha256.Size]byte]time.Time{}}, nil
}

func isLocal(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// Attempt is a login under way. The browser keeps it: it ends at the one in which it began.
type Attempt struct {
	State, Nonce, Verifier string
}

// NewAttempt returns a fresh attempt.
func NewAttempt() Attempt {
	return Attempt{State: newCookie(), Nonce: newCookie(), Verifier: oauth2.GenerateVerifier()}
}

// ProviderError is returned when the provider does not answer as it should.
type ProviderError struct{ Err error }

func (e *ProviderError) Error() string {
	return "the provider of identities does not answer as it should"
}

func (e *ProviderError) Unwrap() error { return e.Err }

// DeniedError is returned for a login that is refused.
type DeniedError struct {
	Why  string
	Role bool // the person is known, and has no role
}

func (e *DeniedError) Error() string { return "the login is refused: " + e.Why }

// LoginURL is where a browser goes to log in.
func (o *OIDC) LoginURL(ctx context.Context, a Attempt) (string, error) {
	provider, err := o.find(ctx)
	if err != nil {
		return "", err
	}
	return o.oauth(provider).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)), nil
}

// find asks for what the provider can do, until it has said so once.
func (o *OIDC) find(ctx context.Context) (*oidc.Provider, error) {
	o.finding.Lock()
	defer o.finding.Unlock()
	switch {
	case o.provider != nil:
		return o.provider, nil
	case o.failed != nil && time.Since(o.tried) < providerPause: // whoever waited for that try gets its answer
		return nil, &ProviderError{o.failed}
	}
	// The provider keeps the context for its keys, so it must not be the request's; the client's time bounds each answer.
	provider, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), o.client), o.config.Issuer)
	o.tried, o.failed = time.Now(), err
	if err != nil {
		return nil, &ProviderError{err}
	}
	o.provider = provider
	return provider, nil
}

func (o *OIDC) oauth(p *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: o.config.ClientID, ClientSecret: o.config.ClientSecret, Endpoint: p.Endpoint(),
		RedirectURL: o.config.RedirectURL, Scopes: append([]string{oidc.ScopeOpenID}, o.config.Scopes...),
	}
}

// Identity is who the provider says somebody is, and what they may do here.
type Identity struct {
	Name string
	Role Role
}

// Finish ends an attempt by what the provider sent the browser back with. A state counts once.
func (o *OIDC) Finish(ctx context.Context, a Attempt, state, code string) (Identity, error) {
	if a.State == "" || subtle.ConstantTimeCompare([]byte(a.State), []byte(state)) != 1 {
		return Identity{}, &DeniedError{Why: "it did not begin in this browser, or too long ago; log in again"}
	}
	if !o.firstUse(a.State) {
		return Identity{}, &DeniedError{Why: "it has been used before; log in again"}
	}
	if code == "" {
		return Identity{}, &DeniedError{Why: "the provider of identities sent no code"}
	}
	provider, err := o.find(ctx)
	if err != nil {
		return Identity{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := o.oauth(provider).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.Response.StatusCode < http.StatusInternalServerError {
		return Identity{}, &DeniedError{Why: "the provider of identities does not take the code"}
	}
	if err != nil {
		return Identity{}, &ProviderError{err}
	}
	raw, said := token.Extra("id_token").(string)
	if !said {
		return Identity{}, &ProviderError{errors.New("it sent no id_token")}
	}
	return o.identity(ctx, provider, raw, a.Nonce)
}

// identity checks a token: signature, issuer, audience, times and nonce.
func (o *OIDC) identity(ctx context.Context, provider *oidc.Provider, raw, nonce string) (Identity, error) {
	checked, err := provider.Verifier(&oidc.Config{ClientID: o.config.ClientID}).Verify(ctx, raw)
	if err != nil {
		return Identity{}, &DeniedError{Why: "the token of the provider of identities is not good: " + Redact(err.Error())}
	}
	if subtle.ConstantTimeCompare([]byte(checked.Nonce), []byte(nonce)) != 1 {
		return Identity{}, &DeniedError{Why: "the token of the provider of identities is not for this login"}
	}
	var claims map[string]any
	if err := checked.Claims(&claims); err != nil {
		return Identity{}, &ProviderError{err}
	}
	return o.config.identityOf(checked.Subject, claims)
}

// firstUse reports whether a state has not been used, and notes that it is now. The provider takes each code once too,
// which holds on other nodes.
func (o *OIDC) firstUse(state string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for old, at := range o.used {
		if time.Since(at) > AttemptTime {
			delete(o.used, old)
		}
	}
	hash := HashOf(state)
	if _, again := o.used[hash]; again || len(o.used) >= maxTrusted {
		return false
	}
	o.used[hash] = time.Now()
	return true
}
