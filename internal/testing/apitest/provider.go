package apitest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Provider is an identity provider with configurable claims.
type Provider struct {
	*testing.T
	*httptest.Server

	Key, Other *rsa.PrivateKey

	Mu     sync.Mutex
	away   bool
	codes  map[string]url.Values // query of the login page, by code
	last   url.Values            // of the last login
	Claims map[string]any        // in addition to the usual ones, or in their place
	sign   func(header, claims map[string]any) string

	Refreshes bool                  // it issues refresh tokens
	Renewals  map[string]url.Values // refresh tokens, each valid once
	Bare      bool                  // renewals have no id_token
}

// providerKeys are shared by all providers: generating them is slow.
var providerKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		keys[i], _ = rsa.GenerateKey(rand.Reader, 2048) // without a key, signing reports the error
	}
	return keys
})

func NewProvider(t *testing.T) *Provider {
	t.Helper()
	keys := providerKeys()
	p := &Provider{T: t, Key: keys[0], Other: keys[1], codes: map[string]url.Values{}, Renewals: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.say(w, http.StatusOK, map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize",
			"token_endpoint": p.URL + "/token", "userinfo_endpoint": p.URL + "/userinfo", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.say(w, http.StatusOK, map[string]any{"keys": []any{map[string]any{"kty": "RSA", "kid": "one", "use": "sig",
			"n": Encoded(p.Key.N.Bytes()), "e": Encoded(big.NewInt(int64(p.Key.E)).Bytes())}}})
	})
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", func(w http.ResponseWriter, _ *http.Request) {
		p.Mu.Lock()
		defer p.Mu.Unlock()
		claims := map[string]any{"sub": "4711"}
		maps.Copy(claims, p.Claims)
		p.say(w, http.StatusOK, claims)
	})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Mu.Lock()
		away := p.away
		p.Mu.Unlock()
		if away {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// SaysOf sets the claims from now on, and how they are signed; nil: the default.
func (p *Provider) SaysOf(claims map[string]any, sign func(header, claims map[string]any) string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Claims, p.sign = claims, sign
}

// GoAway makes the provider unavailable, or available again.
func (p *Provider) GoAway(away bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.away = away
}

func (p *Provider) say(w http.ResponseWriter, code int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	testenv.Same(p, json.NewEncoder(w).Encode(doc), nil, "write the answer")
}

// agree consents at the page of a login, and returns the code.
func (p *Provider) agree(page string) (code, state string) {
	p.Helper()
	asked := testenv.Must(url.Parse(page))(p)
	query := asked.Query()
	if query.Get("code_challenge_method") != "S256" || query.Get("code_challenge") == "" || query.Get("nonce") == "" ||
		len(query.Get("state")) < 32 || query.Get("response_type") != "code" {
		p.Errorf("the login asks for %v", query)
	}
	code = rand.Text()
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.codes[code] = query
	p.last = query
	return code, query.Get("state")
}

// AnotherCode returns the redirect of the last login with a new code.
func (p *Provider) AnotherCode(back string) string {
	p.Helper()
	at, text, _ := strings.Cut(back, "?")
	query := testenv.Must(url.ParseQuery(text))(p)
	p.Mu.Lock()
	defer p.Mu.Unlock()
	query.Set("code", rand.Text())
	p.codes[query.Get("code")] = p.last
	return at + "?" + query.Encode()
}

// token exchanges a code, once, for its own login.
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if r.FormValue("grant_type") == "refresh_token" {
		asked := p.Renewals[r.FormValue("refresh_token")]
		delete(p.Renewals, r.FormValue("refresh_token"))
		if asked == nil {
			p.say(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
			return
		}
		p.vouch(w, asked, !p.Bare)
		return
	}
	asked := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	verifier := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	user, secret, _ := r.BasicAuth()
	if asked == nil || Encoded(verifier[:]) != asked.Get("code_challenge") || user != "tranche" || secret != "s3cret" ||
		r.FormValue("redirect_uri") != asked.Get("redirect_uri") {
		p.say(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		return
	}
	p.vouch(w, asked, true)
}

// vouch answers a valid token request. The lock is held.
func (p *Provider) vouch(w http.ResponseWriter, asked url.Values, signed bool) {
	claims := map[string]any{"iss": p.URL, "aud": "tranche", "sub": "4711", "nonce": asked.Get("nonce"),
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, p.Claims)
	sign := p.sign
	if sign == nil {
		sign = func(header, claims map[string]any) string { return p.Signed(p.Key, header, claims) }
	}
	answer := map[string]any{"access_token": "x", "token_type": "Bearer"}
	if signed {
		answer["id_token"] = sign(map[string]any{"alg": "RS256", "kid": "one"}, claims)
	}
	if p.Refreshes {
		next := rand.Text()
		p.Renewals[next] = asked
		answer["refresh_token"] = next
	}
	p.say(w, http.StatusOK, answer)
}

func (p *Provider) Signed(key *rsa.PrivateKey, header, claims map[string]any) string {
	text := p.Unsigned(header, claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	testenv.Same(p, err, nil, "sign")
	return text + "." + Encoded(signature)
}

func (p *Provider) Unsigned(header, claims map[string]any) string {
	var parts [2]string
	for i, part := range []any{header, claims} {
		text, err := json.Marshal(part)
		testenv.Same(p, err, nil, "write a part")
		parts[i] = Encoded(text)
	}
	return parts[0] + "." + parts[1]
}

func Encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
