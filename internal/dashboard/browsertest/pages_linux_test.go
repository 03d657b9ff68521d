package browsertest_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
)

// axe is what accessibility is checked with; see testdata/axe.
//
//go:embed testdata/axe/axe.min.js
var axe string

// Every page, full of hostile data: in both themes, on a screen and on a phone, for people who cannot see it.
func everyPage(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{locked: true})
		h := s.hostile()
		secret := s.token(access.Admin)
		batch := s.hostileServices(secret)
		paths := map[string]string{
			"runs": "/runs", "run": "/runs/" + h.run.String(), "errors": "/runs/" + h.run.String() + "/errors",
			"item": "/runs/" + h.run.String() + "/item?key=" + url.QueryEscape(h.key), "start": "/start", "plans": "/plans",
			"endpoints": "/endpoints", "endpoint": "/endpoint?name=statement", "nodes": "/nodes", "letters": "/dead-letters",
			"audit": "/audit", "health": "/health", "tokens": "/tokens", "api": "/api",
			"trackers": "/trackers", "tracker": "/trackers?id=" + batch, "collectors": "/collectors",
			"collector": "/collectors?name=hostile", "schedules": "/schedules", "schedule": "/schedules?name=hostile",
			"comparison": "/runs/" + h.run.String() + "/comparison?against=" + h.run.String(),
			"alerts":     "/alerts", "alert": "/alerts?name=hostile",
			"login": "/login?next=javascript:alert(1)",
		}
		for name, path := range paths {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := b.open(t, s.url)
				if name != "login" {
					p.logIn(secret)
				}
				p.inTheme("light")
				p.visit(path)
				p.whole(name)
				p.harmless(name)
				p.fits("a screen", 1440)
				p.accessible("light")
				p.inTheme("dark")
				p.until("it is dark", `(() => {
				const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
				return r + g + b < 200; })()`)
				p.accessible("dark")
				p.asPhone()
				p.visit(path)
				p.whole(name)
				p.fits("a phone", 390)
				p.harmless(name)
				p.accessible("dark, on a phone")
			})
		}
	}
}

// whole waits for what a page shows some seconds after the rest.
func (p *page) whole(name string) {
	p.Helper()
	if name == "runs" {
		p.says("stands", "Nobody listens on endpoint nobody")
	}
}

// logIn gives the browser a session without the login page.
func (p *page) logIn(secret string) {
	p.Helper()
	p.do("go to the login", goTo(p.base+"/login"))
	p.has("login-page")
	status := eval[int](p, fmt.Sprintf(`fetch("/api/v1/session", {method: "POST", body: JSON.stringify({token: %q}),
		headers: {"Content-Type": "application/json"}}).then((r) => r.status)`, secret))
	if status >= 300 {
		p.Fatalf("the login is answered with %d", status)
	}
}

// harmless checks that nothing hostile ran, and that it is there, as text.
func (p *page) harmless(name string) {
	p.Helper()
	if ran := eval[bool](p, `window.__ran !== undefined`); ran {
		p.Error("what the data says was run")
	}
	const foreign = "img, script, iframe, object, embed, base, [onerror], [onclick], [onload], [onmouseover]"
	found := eval[[]string](p, `[...document.querySelectorAll("`+foreign+`")]
		.filter((e) => !e.src?.startsWith(location.origin) && e.type !== "importmap" && !e.closest("svg"))
		.map((e) => e.outerHTML.slice(0, 200))`)
	if len(found) > 0 {
		p.Errorf("there are foreign elements: %s", strings.Join(found, "\n"))
	}
	if odd := eval[[]string](p, `[...document.querySelectorAll("a[href]")].map((a) => a.protocol)
		.filter((s) => s !== "http:" && s !== "blob:")`); len(odd) > 0 {
		p.Errorf("links lead to %v", odd)
	}
	if raw := eval[bool](p, `/[\u202a-\u202e\u2066-\u2069\u001b\u0007\u0000]/.test(document.body.innerText)`); raw {
		p.Error("control characters are shown as they are")
	}
	shows := []string{"runs", "run", "errors", "item", "letters", "audit", "tokens"}
	if slices.Contains(shows, name) && !eval[bool](p, `document.body.innerHTML.includes("&lt;img src=x")`) {
		p.Error("the hostile text is not there at all: the test shows nothing")
	}
}

// fits checks that nothing sticks out at the side.
func (p *page) fits(on string, width int) {
	p.Helper()
	found := eval[[]string](p, fmt.Sprintf(`(() => {
		const wide = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
		if (wide <= %d) return [];
		return ["it is " + wide + " wide", ...[...document.querySelectorAll("body *")].filter((e) =>
			e.getBoundingClientRect().right > %d + 1 &&
			!e.closest(".table-box, pre, .sr, [hidden]")).slice(0, 5).map((e) => e.outerHTML.slice(0, 150))];
	})()`, width, width))
	if len(found) > 0 {
		p.Errorf("it does not fit %s:\n%s", on, strings.Join(found, "\n"))
	}
}

// accessible has axe look for what keeps people out. It runs beside the page's scripts, not under their policy.
func (p *page) accessible(how string) {
	p.Helper()
	p.until("nothing moves", `document.getAnimations().every((a) => a.playState !== "running" ||
		a.effect?.getTiming().iterations === Infinity)`)
	if !eval[bool](p, `"axe" in window`) {
		eval[bool](p, axe+";true")
	}
	found := eval[[]struct {
		ID, Help string
		Nodes    []string
	}](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) => ({ID: v.id, Help: v.help,
		Nodes: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 200) + "\n    " +
			n.failureSummary.split("\n").slice(1, 3).join(" "))})))`)
	for _, v := range found {
		p.Errorf("axe (%s), %s: %s\n  %s", how, v.ID, v.Help, strings.Join(v.Nodes, "\n  "))
	}
}
