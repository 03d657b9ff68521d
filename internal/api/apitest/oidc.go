package apitest

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// Identified makes the bench one where people log in at a provider, and programs by token.
func (b *Bench) Identified(p *Provider, config access.OIDCConfig) *LockedBench {
	b.Helper()
	many := access.ThrottleConfig{Burst: 1000, TotalBurst: 1000}
	return b.IdentifiedWith(p, config, access.Config{Throttle: many})
}

// IdentifiedWith is Identified for an access of one's own.
func (b *Bench) IdentifiedWith(p *Provider, config access.OIDCConfig, how access.Config) *LockedBench {
	b.Helper()
	config.Issuer, config.ClientID, config.ClientSecret = p.URL, "tranche", "s3cret"
	config.RedirectURL = "https://tranche.example.com" + kernel.OIDCCallback
	login, err := access.NewOIDC(config)
	if err != nil {
		b.Fatal(err)
	}
	b.Oidc = login
	return b.LockedWith(api.Config{OIDC: login}, how)
}

// CookieOf finds a cookie that an answer sets to something, by how its name begins.
func CookieOf(h *Head, name string) []string {
	for _, c := range h.Cookies() {
		if strings.HasPrefix(c.Name, name) && c.Value != "" {
			return []string{"Cookie", c.Name + "=" + c.Value}
		}
	}
	return nil
}

// Begin leads to the provider's page, and returns where somebody who says yes there is sent back to, and the cookie.
func (b *Bench) Begin(p *Provider, next string) (back string, cookie []string) {
	b.Helper()
	return b.BeginIn(nil, p, next)
}

// BeginIn is begin in a browser that has logins under way already, whose cookies it keeps as browsers do.
func (b *Bench) BeginIn(has *[]*http.Cookie, p *Provider, next string) (back string, cookie []string) {
	b.Helper()
	page := b.Send(http.MethodGet, kernel.OIDCLogin+"?next="+url.QueryEscape(next), "", SentBy(has)...)
	Keep(has, page)
	to := page.Header.Get("Location")
	cookie = CookieOf(page, "tranche_login")
	if page.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, p.URL+"/authorize?") || cookie == nil {
		b.Fatalf("a login begins with %d, %s, %v", page.StatusCode, to, page.Cookies())
	}
	code, state := p.agree(to)
	return kernel.OIDCCallback + "?" + url.Values{"code": {code}, "state": {state}}.Encode(), cookie
}

// SentBy are the cookies that a browser sends.
func SentBy(has *[]*http.Cookie) []string {
	var texts []string
	if has != nil {
		for _, c := range *has {
			texts = append(texts, c.Name+"="+c.Value)
		}
	}
	return []string{"Cookie", strings.Join(texts, "; ")}
}

// Keep does to the cookies of a browser what an answer says.
func Keep(has *[]*http.Cookie, answer *Head) {
	if has == nil {
		return
	}
	for _, c := range answer.Cookies() {
		*has = slices.DeleteFunc(*has, func(old *http.Cookie) bool { return old.Name == c.Name })
		if c.MaxAge >= 0 {
			*has = append(*has, c)
		}
	}
}

// LogInBy logs somebody in whom the provider vouches for.
func (b *Bench) LogInBy(p *Provider) []string {
	b.Helper()
	back, cookie := b.Begin(p, "/")
	answer := b.Send(http.MethodGet, back, "", cookie...)
	browser := CookieOf(answer, "tranche_session")
	if browser == nil {
		b.Fatalf("the login is answered %d", answer.StatusCode)
	}
	return browser
}

// Renew has the leader's duty done once.
func (b *Bench) Renew() {
	b.Helper()
	renewer, err := access.NewRenewer(b.Oidc, identity.New(b.Store), nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := renewer.Run(b.Context(), workqueue.Lease{}); err != nil {
		b.Logf("renewing: %v", err)
	}
}

// Exec carries out a statement.
func (b *Bench) Exec(sql string) {
	b.Helper()
	if _, err := b.Pool.Exec(b.Context(), sql); err != nil {
		b.Fatal(err)
	}
}
