package browsertest_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
)

// Each role logs in, and may do on the pages what it may do at all, and nothing else; who has logged out, nothing.
func roles(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{locked: true})
		run := s.load(request("the run", "nobody"), 20, plainItem)
		path := "/runs/" + run.String()
		for _, role := range access.Roles() {
			secret := s.token(role)
			t.Run(string(role), func(t *testing.T) {
				t.Parallel()
				p := b.open(t, s.url)
				p.allow("401")
				p.do("go to the run", goTo(s.url+path))
				p.has("login-page")
				p.fill("token", "tr_notatoken")
				p.click("login")
				p.until("it is refused", `document.body.innerText.includes("not known")`)
				p.fill("token", secret)
				p.click("login")
				p.until("it is back where it wanted to go", `location.pathname === `+"`"+path+"`")
				p.settled()
				p.says("role", string(role))
				kept := eval[string](p, `JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])`)
				if strings.Contains(kept, secret) || strings.Contains(kept, "tranche_session") {
					t.Errorf("scripts can read the login: %s", kept)
				}
				p.mayChange(s, path, role.Allows(access.Operator))
				p.mayAdminister(role.Allows(access.Admin))

				p.click("logout")
				p.has("login-page")
				if status := p.asks("GET", "/api/v1/runs", ""); status != 401 {
					t.Errorf("after the logout, the list of runs is answered with %d", status)
				}
			})
		}
	}
}

// mayChange checks a button of the page, and what stands behind it.
func (p *page) mayChange(_ *stack, path string, may bool) {
	p.Helper()
	p.allow("403")
	why, off := p.refused("pause")
	if off == may || off && !strings.Contains(why, "operator") {
		p.Errorf("pausing is off: %v, as %q", off, why)
	}
	want := 403
	if may {
		want = 200
	}
	status := p.asks("POST", "/api/v1"+path+"/settings", `{"priority": 1}`)
	if status != want {
		p.Errorf("a change is answered with %d, want %d", status, want)
	}
	p.visit("/runs")
	if may {
		p.click("start")
		p.has("start-page")
	} else if why, off := p.refused("start"); !off || !strings.Contains(why, "operator") {
		p.Errorf("starting is off: %v, as %q", off, why)
	}
}

func (p *page) mayAdminister(may bool) {
	p.Helper()
	there := eval[bool](p, `document.querySelector('nav a[href="/tokens"]') !== null`)
	if there != may {
		p.Errorf("there is a way to the tokens: %v", there)
	}
	status := p.asks("GET", "/api/v1/tokens", "")
	if may != (status == 200) || !may && status != 403 {
		p.Errorf("the tokens are answered with %d", status)
	}
	if !may {
		return
	}
	p.visit("/tokens")
	p.has("tokens-page")
	p.click("new-token")
	p.has("token-dialog")
	p.fill("token-name", "for a script")
	p.click("create")
	p.has("token-made")
	secret := eval[string](p, `((e) => e.value ?? e.innerText)(document.querySelector('`+at("secret")+`'))`)
	if !access.WellFormed(strings.TrimSpace(secret)) {
		p.Errorf("the secret is shown as %q", secret)
	}
	p.click("done")
	p.until("it is listed", `document.querySelector('`+at("tokens")+`').innerText.includes("for a script")`)
}

// asks has the page's own scripts ask, with its cookie.
func (p *page) asks(method, path, body string) (status int) {
	p.Helper()
	script := `fetch("` + path + `", {method: "` + method + `"`
	if body != "" {
		script += `, headers: {"Content-Type": "application/json"}, body: ` + "`" + body + "`"
	}
	return eval[int](p, script+`}).then((r) => r.status)`)
}
