package api_test

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

// identified makes the bench one where people log in at a provider, and programs by token.
func (b *bench) identified(p *provider, config access.OIDCConfig) *lockedBench {
	b.Helper()
	many := access.ThrottleConfig{Burst: 1000, TotalBurst: 1000}
	return b.identifiedWith(p, config, access.Config{Throttle: many})
}

func (b *bench) identifiedWith(p *provider, config access.OIDCConfig, how access.Config) *lockedBench {
	b.Helper()
	config.Issuer, config.ClientID, config.ClientSecret = p.URL, "tranche", "s3cret"
	config.RedirectURL = "https://tranche.example.com" + kernel.OIDCCallback
	login, err := access.NewOIDC(config)
	if err != nil {
		b.Fatal(err)
	}
	b.oidc = login
	return b.lockedWith(api.Config{OIDC: login}, how)
}

// cookieOf finds a cookie that an answer sets to something, by how its name begins.
func cookieOf(h *head, name string) []string {
	for _, c := range h.Cookies() {
		if strings.HasPrefix(c.Name, name) && c.Value != "" {
			return []string{"Cookie", c.Name + "=" + c.Value}
		}
	}
	return nil
}

// begin leads to the provider's page, and returns where somebody who says yes there is sent back to, and the cookie.
func (b *bench) begin(p *provider, next string) (back string, cookie []string) {
	b.Helper()
	return b.beginIn(nil, p, next)
}

// beginIn is begin in a browser that has logins under way already, whose cookies it keeps as browsers do.
func (b *bench) beginIn(has *[]*http.Cookie, p *provider, next string) (back string, cookie []string) {
	b.Helper()
	page := b.send(http.MethodGet, kernel.OIDCLogin+"?next="+url.QueryEscape(next), "", sentBy(has)...)
	keep(has, page)
	to := page.Header.Get("Location")
	cookie = cookieOf(page, "tranche_login")
	if page.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, p.URL+"/authorize?") || cookie == nil {
		b.Fatalf("a login begins with %d, %s, %v", page.StatusCode, to, page.Cookies())
	}
	code, state := p.agree(to)
	return kernel.OIDCCallback + "?" + url.Values{"code": {code}, "state": {state}}.Encode(), cookie
}

// sentBy are the cookies that a browser sends.
func sentBy(has *[]*http.Cookie) []string {
	var texts []string
	if has != nil {
		for _, c := range *has {
			texts = append(texts, c.Name+"="+c.Value)
		}
	}
	return []string{"Cookie", strings.Join(texts, "; ")}
}

// keep does to the cookies of a browser what an answer says.
func keep(has *[]*http.Cookie, answer *head) {
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

// logInBy logs somebody in whom the provider vouches for.
func (b *bench) logInBy(p *provider) []string {
	b.Helper()
	back, cookie := b.begin(p, "/")
	answer := b.send(http.MethodGet, back, "", cookie...)
	browser := cookieOf(answer, "tranche_session")
	if browser == nil {
		b.Fatalf("the login is answered %d", answer.StatusCode)
	}
	return browser
}

// renew has the leader's duty done once.
func (b *bench) renew() {
	b.Helper()
	renewer, err := access.NewRenewer(b.oidc, identity.New(b.store), nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := renewer.Run(b.Context(), workqueue.Lease{}); err != nil {
		b.Logf("renewing: %v", err)
	}
}

func (b *bench) exec(sql string) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), sql); err != nil {
		b.Fatal(err)
	}
}
