package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// DefaultRoleClaim is where providers of identities tell what groups someone is in.
const DefaultRoleClaim = "groups"

const (
	// providerTime bounds each answer of the provider.
	providerTime = 10 * time.Second
	// providerPause is how soon one that was not found is looked for again.
	providerPause = time.Second
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

// OIDC logs people in by a provider of identities. What it knows of the provider it asks for when someone logs in: one
// that is unavailable keeps nothing else from working.
type OIDC struct {
	config OIDCConfig
	client *http.Client

	finding  sync.Mutex
	provider *oidc.Provider // nil: not found yet
	failed   error          // of the last try to find it
	tried    time.Time

	sealer sealer
	used   usedStates
}

// NewOIDC checks the settings. It does not ask the provider for anything.
func NewOIDC(config OIDCConfig) (*OIDC, error) {
	issuer, err := url.Parse(config.Issuer)
	if err != nil || issuer.Host == "" || issuer.Scheme != "https" && (issuer.Scheme != "http" || !isLocal(issuer)) {
		return nil, fmt.Errorf("--oidc-issuer %q must be an https URL: whoever changes its answers can log in as any user",
			config.Issuer)
	}
	if config.ClientID == "" {
		return nil, errors.New("--oidc-client-id is needed with --oidc-issuer: what the provider calls this server")
	}
	config.DefaultRole = cmp.Or(config.DefaultRole, None)
	if len(config.Roles) == 0 && config.DefaultRole == None {
		return nil, errors.New("no one could log in by --oidc-issuer: say by --oidc-roles which values of " +
			"--oidc-role-claim have which role, like staff=viewer,ops=operator, or give --oidc-default-role")
	}
	config.RoleClaim = cmp.Or(config.RoleClaim, DefaultRoleClaim)
	sealer, err := newSealer(config.ClientSecret)
	if err != nil {
		return nil, err
	}
	return &OIDC{config: config, client: &http.Client{Timeout: providerTime}, sealer: sealer,
		used: usedStates{at: map[[sha256.Size]byte]time.Time{}}}, nil
}

func isLocal(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
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
func (o *OIDC) LoginURL(ctx context.Context, a *Attempt) (string, error) {
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

// Identity is who the provider says someone is, and what they may do here.
type Identity struct {
	Name    string
	Role    Role
	Subject string
	Renewal []byte // what the provider is asked by whether it still says so, sealed; nil: it cannot be asked
}

// Finish ends an attempt that was unsealed, by the code that the provider sent the browser back with. A state counts
// once, and is remembered when the login has succeeded.
func (o *OIDC) Finish(ctx context.Context, a *Attempt, code string) (Identity, error) {
	again := &DeniedError{Why: "it has been used before; log in again"}
	switch {
	case o.used.has(a.State):
		return Identity{}, again
	case code == "":
		return Identity{}, &DeniedError{Why: "the provider of identities sent no code"}
	}
	provider, err := o.find(ctx)
	if err != nil {
		return Identity{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := o.oauth(provider).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return Identity{}, exchangeError(err, "the provider of identities does not take the code")
	}
	raw, said := token.Extra("id_token").(string)
	if !said {
		return Identity{}, &ProviderError{errors.New("it sent no id_token")}
	}
	checked, err := o.verified(ctx, provider, raw)
	if err != nil {
		return Identity{}, err
	}
	if subtle.ConstantTimeCompare([]byte(checked.Nonce), []byte(a.Nonce)) != 1 {
		return Identity{}, &DeniedError{Why: "the token of the provider of identities is not for this login"}
	}
	who, err := o.identity(checked.Subject, checked.Claims)
	if err != nil {
		return Identity{}, err
	}
	if !o.used.use(a.State) {
		return Identity{}, again
	}
	if token.RefreshToken != "" && o.config.ClientSecret != "" { // without one, no one could unseal it after a restart
		who.Renewal = o.sealer.seal(sealRenewal, []byte(token.RefreshToken))
	}
	return who, nil
}

// check checks a token: signature, issuer, audience and times, that it is about someone, and that it was made for this
// client, where it says for whom.
func (o *OIDC) check(ctx context.Context, provider *oidc.Provider, raw string) (*oidc.IDToken, error) {
	checked, err := provider.Verifier(&oidc.Config{ClientID: o.config.ClientID}).Verify(ctx, raw)
	if err != nil {
		return nil, err
	}
	var claims struct {
		Party string `json:"azp"`
	}
	if err := checked.Claims(&claims); err != nil {
		return nil, err
	}
	switch {
	case checked.Subject == "":
		return nil, errors.New("it has no subject (sub)")
	case claims.Party != o.config.ClientID && (claims.Party != "" || len(checked.Audience) > 1):
		return nil, errors.New("it was made for another client (azp)")
	}
	return checked, nil
}

// verified is a token that has been checked. One that is not good is a login refused.
func (o *OIDC) verified(ctx context.Context, provider *oidc.Provider, raw string) (*oidc.IDToken, error) {
	checked, err := o.check(ctx, provider, raw)
	if err != nil {
		return nil, &DeniedError{Why: "the token of the provider of identities is not good: " + Redact(err.Error())}
	}
	return checked, nil
}

func (o *OIDC) identity(subject string, read func(claims any) error) (Identity, error) {
	var claims map[string]any
	if err := read(&claims); err != nil {
		return Identity{}, &ProviderError{err}
	}
	return o.config.identityOf(subject, claims)
}

// AttemptTime is how long someone may take to log in at the provider.
const AttemptTime = 10 * time.Minute

// maxAttempt bounds the text of an attempt: it is a cookie.
const maxAttempt = 4096

// maxNext bounds the page to go on to, as it is written there: browsers keep no cookie of more than 4096 bytes.
const maxNext = 1024

// Attempt is a login in progress. The browser keeps it, sealed: it ends at the one in which it began, in time.
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

// subjectPrefix keeps the names of people whom only a number tells apart from those of tokens.
const subjectPrefix = "oidc:"

// identityOf reads who someone is, and what they may do, from the claims that the provider makes.
func (c *OIDCConfig) identityOf(subject string, claims map[string]any) (Identity, error) {
	name, err := c.nameOf(subject, claims)
	if err != nil {
		return Identity{}, err
	}
	if err := CheckName(name); err != nil {
		return Identity{}, &DeniedError{Why: "the name that the provider of identities gives cannot be used: " + err.Error()}
	}
	role := c.DefaultRole
	for _, value := range texts(claim(claims, c.RoleClaim)) {
		if mapped, ok := c.Roles[value]; ok && mapped.Allows(role) {
			role = mapped
		}
	}
	if role == None {
		return Identity{}, &DeniedError{Role: true, Why: fmt.Sprintf("%s has no role here: none of the values of the claim "+
			"%s is one of --oidc-roles; ask an admin of this server", name, c.RoleClaim)}
	}
	return Identity{Name: name, Role: role, Subject: subject}, nil
}

// nameOf is what the audit log calls someone. An email counts when the provider has verified it: others could choose
// that of someone else.
func (c *OIDCConfig) nameOf(subject string, claims map[string]any) (string, error) {
	if c.UserClaim != "" {
		name, ok := claim(claims, c.UserClaim).(string)
		if !ok {
			return "", &DeniedError{Why: "the provider of identities does not say the claim " + c.UserClaim +
				", which --oidc-user-claim names"}
		}
		return name, nil
	}
	email, _ := claims["email"].(string)
	if verified, _ := claims["email_verified"].(bool); verified && email != "" {
		return email, nil
	}
	return subjectPrefix + subject, nil
}

// claim finds a claim by its name, or by names with dots between: a member of a member.
func claim(claims map[string]any, path string) any {
	if value, ok := claims[path]; ok { // names may be URLs, with dots
		return value
	}
	first, rest, more := strings.Cut(path, ".")
	inner, ok := claims[first].(map[string]any)
	if !more || !ok {
		return nil
	}
	return claim(inner, rest)
}

// texts is a claim that is a text, or a list of them.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
	}
	return all
}
