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
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// DefaultRoleClaim is the usual claim for groups.
const DefaultRoleClaim = "groups"

const (
	// providerTime limits each answer of the provider.
	providerTime = 10 * time.Second
	// providerPause is the delay before retrying discovery.
	providerPause = time.Second
)

// OIDCConfig configures the provider and the roles of its users.
type OIDCConfig struct {
	Issuer       string // its URL; discovery finds the rest
	ClientID     string
	ClientSecret string   // empty: a public client; PKCE is always used
	RedirectURL  string   // the provider's redirect target
	Scopes       []string // in addition to openid

	UserClaim   string          // the actor in the audit log; empty: a verified email, else the subject
	RoleClaim   string          // a text or a list; dots select nested members. Empty: DefaultRoleClaim
	Roles       map[string]Role // by value of that claim; in one namespace as NAMESPACE:ROLE
	DefaultRole Role            // without such a value; None: login refused
}

// OIDC logs users in by an OpenID Connect provider. It discovers the provider at the first login, so an unavailable
// provider affects nothing else.
type OIDC struct {
	config OIDCConfig
	client *http.Client

	finding  sync.Mutex
	provider *oidc.Provider // nil: not discovered yet
	failed   error          // the latest discovery error
	tried    time.Time

	sealer sealer
	used   usedStates
}

// NewOIDC validates the settings without contacting the provider.
func NewOIDC(config OIDCConfig) (*OIDC, error) {
	issuer, err := url.Parse(config.Issuer)
	if err != nil || issuer.Host == "" || issuer.Scheme != "https" && (issuer.Scheme != "http" ||
		issuer.Hostname() != "localhost" && !net.ParseIP(issuer.Hostname()).IsLoopback()) {
		return nil, fmt.Errorf("--oidc-issuer %q must be an https URL: anyone who changes its answers can log in as any user",
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
	return &OIDC{config: config, client: &http.Client{Timeout: providerTime}, sealer: sealer,
		used: usedStates{at: map[[sha256.Size]byte]time.Time{}}}, err
}

// ProviderError is returned for an invalid or missing answer of the provider.
type ProviderError struct{ Err error }

func (e *ProviderError) Error() string {
	return "the identity provider does not answer as it should"
}

func (e *ProviderError) Unwrap() error { return e.Err }

// DeniedError is returned for a refused login.
type DeniedError struct {
	Why  string
	Role bool // the user is known, but has no role
}

func (e *DeniedError) Error() string { return "the login is refused: " + e.Why }

// LoginURL returns where a browser goes to log in.
func (o *OIDC) LoginURL(ctx context.Context, a *Attempt) (string, error) {
	provider, err := o.find(ctx)
	if err != nil {
		return "", err
	}
	return o.oauth(provider).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)), nil
}

func (o *OIDC) find(ctx context.Context) (*oidc.Provider, error) {
	o.finding.Lock()
	defer o.finding.Unlock()
	switch {
	case o.provider != nil:
		return o.provider, nil
	case o.failed != nil && time.Since(o.tried) < providerPause: // waiters for that attempt get its error
		return nil, &ProviderError{o.failed}
	}
	// The provider keeps the context for its keys, so it must outlive the request; the client's timeout limits each
	// answer.
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

// Identity is a user as confirmed by the provider, with the role here.
type Identity struct {
	Name    string
	Role    Role
	Grants  map[string]string // further roles, by namespace
	Subject string
	Renewal []byte // sealed refresh token for asking again; nil: not possible
}

// Finish completes an unsealed attempt with the provider's code. A state is accepted once, recorded when the login
// has succeeded.
func (o *OIDC) Finish(ctx context.Context, a *Attempt, code string) (Identity, error) {
	again := &DeniedError{Why: "it has been used before; log in again"}
	switch {
	case o.used.has(a.State):
		return Identity{}, again
	case code == "":
		return Identity{}, &DeniedError{Why: "the identity provider sent no code"}
	}
	provider, err := o.find(ctx)
	if err != nil {
		return Identity{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := o.oauth(provider).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return Identity{}, exchangeError(err, "the identity provider does not take the code")
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
		return Identity{}, &DeniedError{Why: "the token of the identity provider is not for this login"}
	}
	who, err := o.identity(checked.Subject, checked.Claims)
	if err != nil {
		return Identity{}, err
	}
	if !o.used.use(a.State) {
		return Identity{}, again
	}
	if token.RefreshToken != "" && o.config.ClientSecret != "" { // else it could not be unsealed after a restart
		who.Renewal = o.sealer.seal(sealRenewal, []byte(token.RefreshToken))
	}
	return who, nil
}

// check verifies a token's signature, issuer, audience and times, that it has a subject, and that it was issued to
// this client if it names one.
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

func (o *OIDC) verified(ctx context.Context, provider *oidc.Provider, raw string) (*oidc.IDToken, error) {
	checked, err := o.check(ctx, provider, raw)
	if err != nil {
		return nil, &DeniedError{Why: "the token of the identity provider is not good: " + Redact(err.Error())}
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

// AttemptTime limits a login at the provider.
const AttemptTime = 10 * time.Minute

// maxAttempt limits the length of a sealed attempt, which is a cookie.
const maxAttempt = 4096

// maxNext limits the target page, as JSON: browsers keep no cookie above 4096 bytes.
const maxNext = 1024

// Attempt is a login in progress, kept sealed by the browser. It can end only in its own browser, within AttemptTime.
type Attempt struct {
	State, Nonce, Verifier string

	Next  string // the page to go to afterwards; may be empty
	Until time.Time
}

// NewAttempt returns a new attempt. A next page that is too long is dropped.
func NewAttempt(next string) Attempt {
	if written, err := json.Marshal(next); err != nil || len(written) > maxNext {
		next = ""
	}
	return Attempt{State: newCookie(), Nonce: newCookie(), Verifier: oauth2.GenerateVerifier(), Next: next,
		Until: time.Now().Add(AttemptTime)}
}

// Seal returns an attempt sealed for the browser.
func (o *OIDC) Seal(a *Attempt) (string, error) {
	text, err := json.Marshal(a)
	return base64.RawURLEncoding.EncodeToString(o.sealer.seal(sealAttempt, text)), err
}

// Unseal returns the attempt that a browser brings back with the state repeated by the provider. It returns a
// DeniedError if the attempt began elsewhere or too long ago. A failure costs nothing and stores nothing.
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

// usedStates are the states of successful logins. Only users known to the provider add entries, which are dropped
// when too old to be unsealed.
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

// use marks a state as used and reports whether it was not. The provider also accepts each code once, which covers
// other nodes and a full map.
func (u *usedStates) use(state string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.at, func(_ [sha256.Size]byte, at time.Time) bool { return time.Since(at) > AttemptTime })
	hash := HashOf(state)
	if _, again := u.at[hash]; again {
		return false
	}
	makeRoom(u.at)
	u.at[hash] = time.Now()
	return true
}

// subjectPrefix separates names made of a subject from names of tokens.
const subjectPrefix = "oidc:"

func (c *OIDCConfig) identityOf(subject string, claims map[string]any) (Identity, error) {
	name, err := c.nameOf(subject, claims)
	if err != nil {
		return Identity{}, err
	}
	if err := CheckName(name); err != nil {
		return Identity{}, &DeniedError{Why: "the name that the identity provider gives cannot be used: " + err.Error()}
	}
	if strings.HasPrefix(strings.ToLower(name), certPrefix) {
		return Identity{}, &DeniedError{Why: "names that begin with " + certPrefix + " are those of certificates"}
	}
	role, grants := c.DefaultRole, map[string]string{}
	for _, value := range texts(claim(claims, c.RoleClaim)) {
		mapped := c.Roles[value]
		if namespace, in, ok := strings.Cut(string(mapped), ":"); ok {
			if Role(in).Allows(cmp.Or(Role(grants[namespace]), None)) {
				grants[namespace] = in
			}
		} else if mapped != "" && mapped.Allows(role) {
			role = mapped
		}
	}
	if role == None && len(grants) == 0 {
		return Identity{}, &DeniedError{Role: true, Why: fmt.Sprintf("%s has no role here: none of the values of the claim "+
			"%s is one of --oidc-roles; ask an admin of this server", name, c.RoleClaim)}
	}
	return Identity{Name: name, Role: role, Grants: grants, Subject: subject}, nil
}

// nameOf returns the user's name for the audit log. An email counts only if the provider verified it: users could
// choose another's.
func (c *OIDCConfig) nameOf(subject string, claims map[string]any) (string, error) {
	if c.UserClaim != "" {
		name, ok := claim(claims, c.UserClaim).(string)
		if !ok {
			return "", &DeniedError{Why: "the identity provider does not say the claim " + c.UserClaim +
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

// claim finds a claim by name, or by a dotted path into nested members.
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
