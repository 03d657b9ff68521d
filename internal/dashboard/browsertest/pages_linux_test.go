package browsertest_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// axe is what accessibility is checked with; see testdata/axe.
//
//go:embed testdata/axe/axe.min.js
var axe string

// dialogs are what is clicked, one after another, until a dialog of a page is there.
func dialogs() map[string][][]string {
	return map[string][][]string{
		"runs": {{"?"}, {"all-runs", "pause-all"}, {"run-menu", "cancel"}},
		"run":  {{"rerun"}, {"more", "menu-report"}}, "waiting": {{"more", "cancel"}},
		"errors": {{"rerun-failed"}, {"accept-failed"}}, "item": {{"reset-part"}, {"accept-part"}, {"correct-item"}},
		"letters": {{".letter-open"}, {"requeue-all"}, {"drop-all"}}, "messages": {{".letter-open"}},
		"health": {{"muted"}, {"act-all"}},
		"tokens": {{"new-token"}, {"revoke"}}, "tracker": {{"seal"}, {"delete"}}, "plan": {{"delete"}}, "alert": {{"delete"}},
		"collector": {{"delete"}, {"drop"}}, "schedule": {{"delete"}},
	}
}

// Every page with its dialogs, full of hostile data: in both themes, on screens of all sizes, for people who cannot see
// it.
func everyPage(b *browser, look func(p *page, name, path string)) func(*testing.T) {
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
			"alerts":     "/alerts", "alert": "/alerts?name=hostile", "plan": "/plans?name=hostile", "wall": "/wall",
			"new": "/plans?edit=new", "change": "/schedules?name=hostile&edit=1", "messages": "/dead-letters?tab=quarantine",
			"waiting": "/runs/" + h.waiting.String(), "nowhere": "/no/such/page", "login": "/login?next=javascript:alert(1)",
		}
		for name, path := range paths {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := b.open(t, s.url)
				if name != "login" {
					p.logIn(secret)
				}
				if name == "nowhere" {
					p.allow("404")
				}
				look(p, name, path)
			})
		}
	}
}

// onScreens looks at a page on a screen and on a phone.
func (p *page) onScreens(name, path string) {
	p.Helper()
	p.inTheme("light")
	p.visit(path)
	p.whole(name)
	p.harmless(name)
	p.fits("a screen", 1440)
	p.asPhone()
	p.visit(path)
	p.whole(name)
	p.fits("a phone", 390)
	p.harmless(name)
	p.inBothThemes("on a phone")
	p.opens("on a phone", dialogs()[name])
}

// onALargeScreen looks at a page in 4K.
func (p *page) onALargeScreen(name, path string) {
	p.Helper()
	p.visit(path)
	p.do("be large", chromedp.EmulateViewport(3840, 2160))
	p.whole(name)
	p.fits("4K", 3840)
	p.inBothThemes("4K")
	p.opens("4K", dialogs()[name])
}

// whole waits for what a page shows some seconds after the rest.
func (p *page) whole(name string) {
	p.Helper()
	if name == "runs" {
		p.says("blocker", "No service listens on endpoint nobody")
	}
}

// opens checks each dialog in both themes.
func (p *page) opens(on string, dialogs [][]string) {
	p.Helper()
	for _, clicks := range dialogs {
		for _, test := range clicks {
			switch {
			case test == "?":
				p.press(test)
			case test[0] == '.':
				p.clickOn(test, test)
			default:
				p.click(test)
			}
		}
		p.until("a dialog is there", `document.querySelector("dialog[open]:not(:has(.skeleton))")`)
		p.inBothThemes(fmt.Sprint(clicks, " ", on))
		p.press(kb.Escape)
		p.until("it is closed", `!document.querySelector("dialog[open]")`)
	}
}

// inBothThemes checks all in the light theme, and colors in the dark one.
func (p *page) inBothThemes(how string) {
	p.Helper()
	p.inTheme("light")
	p.accessible("light, " + how)
	p.inTheme("dark")
	p.until("it is dark", `(() => {
		const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
		return r + g + b < 200; })()`)
	p.accessible("dark, "+how, "color-contrast")
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

// accessible has axe look for what keeps people out, by all rules or some, in the dialog if there is one. It runs
// beside the page's scripts, not under their policy.
func (p *page) accessible(how string, rules ...string) {
	p.Helper()
	p.until("nothing moves", `document.getAnimations().every((a) => a.playState !== "running" ||
		a.effect?.getTiming().iterations === Infinity)`)
	if !eval[bool](p, `"axe" in window`) {
		eval[bool](p, axe+";true")
	}
	found := eval[[]struct {
		ID, Help string
		Nodes    []string
	}](p, fmt.Sprintf(`axe.run(document.querySelector("dialog[open]") ?? document, {resultTypes: ["violations"],
		...(%d && {runOnly: %s})}).then`, len(rules), testenv.Must(json.Marshal(rules))(p))+`((r) => r.violations.map(
		(v) => ({ID: v.id, Help: v.help,
		Nodes: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 200) + "\n    " +
			n.failureSummary.split("\n").slice(1, 3).join(" "))})))`)
	for _, v := range found {
		p.Errorf("axe (%s), %s: %s\n  %s", how, v.ID, v.Help, strings.Join(v.Nodes, "\n  "))
	}
}

func goTo(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// All that the mouse does, keys do: they go about, open, choose and act, and reach every control.
func keyboard(s *stack, p *page) {
	s.listen(&bills{codes: threeBad})
	done := s.load(request("old", "statement"), 100, plainItem)
	s.ended(done)
	s.load(request("new", "nobody"), 100, plainItem)
	p.visit("/runs")
	p.press("?")
	p.has("help-dialog")
	p.press(kb.Escape)
	p.lacks("help-dialog")
	places := map[string]string{"e": "endpoints", "n": "nodes", "h": "health", "d": "letters", "a": "audit",
		"s": "schedules", "w": "wall",
		"c": "collectors", "k": "trackers", "p": "plans", "l": "alerts"}
	for key, page := range places {
		p.chord("g", key)
		p.has(page + "-page")
	}
	p.chord("g", "r")
	p.has("runs-page")
	p.has("attention") // of the new one, which moves it
	p.until("both are listed", `document.querySelectorAll('#main [data-row]').length === 2`)

	// Down to the older run, into it, over its map to an item that failed, and back.
	p.press("j", "j", kb.Enter)
	p.until("the old run", `location.pathname === "/runs/`+done.String()+`"`)
	p.has("map")
	p.until("the map is drawn", `document.querySelector('`+at("legend-6")+`')?.innerText.includes("3")`)
	p.tabTo("map")
	p.press("n")
	p.says("spoken", "C7")
	p.press("n", kb.Enter)
	p.has("item-page")
	p.until("the item", `new URLSearchParams(location.search).get("key") === "C42"`)

	// A rerun by keys alone.
	p.visit("/runs/" + done.String() + "/errors")
	p.tabTo("rerun-failed")
	p.press(kb.Enter)
	p.has("rerun-dialog")
	p.press(kb.Escape)
	p.lacks("rerun-dialog")
	p.tabTo("rerun-failed")
	p.press(kb.Enter)
	p.has("rerun-dialog")
	p.tabTo("rerun-go")
	p.press(kb.Enter)
	p.has("rerun-follow")
	p.inBothThemes("a rerun")
	s.ended(done)

	for _, path := range []string{"/runs", "/runs/" + done.String(), "/start", "/endpoints", "/audit", "/health"} {
		p.visit(path)
		p.reachesAll(path)
	}
}

// chordWithin is how soon after one another the page must hear the keys of a chord, which it takes for one for a little
// longer.
const chordWithin = 1400 * time.Millisecond

// chord presses two keys, again when the machine was too slow for the page to take them for a chord.
func (p *page) chord(first, second string) {
	p.Helper()
	p.run(`window.__heard || [true, false].forEach((capture) => // before the page itself hears a key, and after
		addEventListener("keydown", () => window.__heard.push(performance.now()), {capture}))`)
	testenv.Until(p, patience, "the keys of a chord come together", func() bool {
		p.run(`window.__heard = []`)
		p.press(first, second)
		return eval[float64](p, `window.__heard.at(-1) - window.__heard[0]`) < float64(chordWithin.Milliseconds())
	})
}

const maxTabs = 250

// tabTo presses Tab until a control has the focus.
func (p *page) tabTo(test string) {
	p.Helper()
	p.has(test)
	for range maxTabs {
		p.press(kb.Tab)
		if eval[bool](p, `document.activeElement?.matches('`+at(test)+`') ?? false`) {
			return
		}
	}
	p.Fatalf("%s cannot be reached with Tab", test)
}

// reachesAll presses Tab until it begins again, and expects to have been at every control there is, and to see where.
func (p *page) reachesAll(path string) {
	p.Helper()
	const controls = "a[href], button, input, select, textarea, summary, [tabindex='0']"
	const count = `document.querySelectorAll("` + controls + `").length`
	p.run(`(window.__dull = [])`)
	var missed []string
	for round, had, now := 1, -1, 0; had != now || len(missed) > 0 && round <= rounds; round++ {
		// What a page had not loaded yet, or drew again, came behind Tab's back.
		had = eval[int](p, count)
		p.tabAround()
		missed, now = p.missed(controls, count)
	}
	if len(missed) > 0 {
		p.Errorf("%s: Tab does not reach %d controls:\n%s", path, len(missed), strings.Join(missed, "\n"))
	}
	if dull := eval[[]string](p, `window.__dull`); len(dull) > 0 {
		p.Errorf("%s: no one sees that these have the focus:\n%s", path, strings.Join(dull, "\n"))
	}
}

// missed are the controls that Tab has not been at, and how many there are by now.
func (p *page) missed(controls, count string) (all []string, now int) {
	p.Helper()
	found := eval[struct {
		Missed []string
		Now    int
	}](p, `({Now: `+count+`, Missed: [...document.querySelectorAll("`+controls+`")]
		.filter((e) => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({visibilityProperty: true})
			&& !e.closest("[inert]") && !window.__seen.has(e) && !(e.type === "radio" && !e.checked))
		.map((e) => e.outerHTML.slice(0, 160))})`)
	return found.Missed, found.Now
}

// tabAround presses Tab from the page's beginning until it begins again.
func (p *page) tabAround() {
	p.Helper()
	p.run(`(window.__seen = new Set(), document.activeElement?.blur())`)
	for range maxTabs {
		p.press(kb.Tab)
		if eval[bool](p, `(() => {
			const e = document.activeElement;
			if (!e || e === document.body || window.__seen.has(e)) return window.__seen.size > 0;
			window.__seen.add(e);
			const s = getComputedStyle(e);
			const ring = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== "none";
			if (!ring && !e.closest(":focus-within.field, .select, .search, label")) {
				window.__dull.push(e.outerHTML.slice(0, 120));
			}
			return false;
		})()`) {
			break
		}
	}
}

// Each role logs in, and may do on the pages what it may do at all, and nothing else; who has logged out, nothing.
func roles(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{locked: true})
		run := s.load(request("the run", "nobody"), 20, plainItem)
		path, last := "/runs/"+run.String(), ""
		for _, role := range access.Roles() {
			secret := s.token(role)
			last = secret
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
				p.offers("slices", role.Allows(access.Viewer))
				kept := eval[string](p, `JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])`)
				if strings.Contains(kept, secret) || strings.Contains(kept, "tranche_session") {
					t.Errorf("scripts can read the login: %s", kept)
				}
				p.mayChange(path, role.Allows(access.Operator))
				p.mayAdminister(role.Allows(access.Admin))

				p.click("logout")
				p.has("login-page")
				testenv.Same(t, p.asks("GET", "/api/v1/runs", ""), 401, "after the logout, the list of runs is answered with")
			})
		}
		t.Run("in namespaces", func(t *testing.T) {
			t.Parallel()
			paths, grants := map[string]string{}, map[string]string{"team-a": "admin", "team-b": "viewer"}
			for namespace, name := range map[string]string{"team-a": "our run", "team-b": "their run"} {
				testenv.NoError(t, identity.New(s.Store).SetNamespace(t.Context(), namespace, identity.Quotas{}, "test"))
				id := s.load(request(name, "nobody"), 20, plainItem)
				testenv.Must(s.Pool.Exec(t.Context(), `UPDATE batchrun SET namespace = $2 WHERE id = $1`, id, namespace))(t)
				paths[namespace] = "/runs/" + id.String()
			}
			p := b.open(t, s.url)
			p.logIn(s.granted(access.None, grants))
			p.inNamespaces(paths["team-a"], paths["team-b"])
			p.asks("POST", "/api/v1/session", `{"token": "`+last+`"}`) // as in another tab
			p.run(`document.dispatchEvent(new Event("visibilitychange"))`)
			p.until("it is the other's", `document.querySelector(".user-name").innerText.includes("the admin")`)
		})
	}
}

// offers checks that a button is there, or not.
func (p *page) offers(test string, may bool) {
	p.Helper()
	if may {
		p.has(test)
	} else {
		p.lacks(test)
	}
}

// mayChange checks a button of the page, and what stands behind it.
func (p *page) mayChange(path string, may bool) {
	p.Helper()
	p.allow("403")
	p.offers("pause", may)
	want := 403
	if may {
		want = 200
	}
	status := p.asks("POST", "/api/v1"+path+"/settings", `{"priority": 1}`)
	testenv.Same(p, status, want, "a change is answered with")
	p.visit("/runs")
	p.offers("start", may)
	if may {
		p.click("start")
		p.has("start-page")
	}
}

// inNamespaces checks what someone sees and may do who is an admin in one namespace and a viewer in another.
func (p *page) inNamespaces(ours, theirs string) {
	p.Helper()
	p.visit("/runs")
	p.says("runs", "our run")
	p.says("runs", "their run")
	p.offers("start", false) // where, is not said
	p.offers("nav-endpoints", false)
	p.run(`((e) => { e.value = "team-a"; e.dispatchEvent(new Event("change", {bubbles: true})); })` +
		`(document.querySelector('` + at("namespace") + `'))`)
	p.until("the address has it", `location.search === "?namespace=team-a"`)
	p.says("role", "admin")
	p.until("the other is gone", `!document.querySelector('`+at("runs")+`')?.innerText.includes("their run")`)
	p.offers("start", true)
	p.clickOn("our run", at("runs")+" "+at("run-link"))
	p.until("the run is in it", `location.pathname + location.search === "`+ours+`?namespace=team-a"`)
	p.offers("pause", true)
	p.visit(theirs)
	p.until("the run's own is selected", `location.search === "?namespace=team-b"`)
	p.says("run-page", "their run")
	p.offers("pause", false)
	p.visit("/tokens?namespace=team-b")
	p.offers("new-token", false)
	p.visit("/tokens?namespace=team-a")
	p.makeToken("for the team")
	p.says("tokens", "operator in team-a")
}

func (p *page) mayAdminister(may bool) {
	p.Helper()
	there := eval[bool](p, `document.querySelector('nav a[href="/tokens"]') !== null`)
	testenv.Same(p, there, may, "there is a way to the tokens")
	status := p.asks("GET", "/api/v1/tokens", "")
	if may != (status == 200) || !may && status != 403 {
		p.Errorf("the tokens are answered with %d", status)
	}
	if !may {
		return
	}
	p.visit("/tokens")
	p.makeToken("for a script")
}

func (p *page) makeToken(name string) {
	p.Helper()
	p.has("tokens-page")
	p.click("new-token")
	p.has("token-dialog")
	p.fill("token-name", name)
	p.click("create")
	p.has("token-made")
	p.inBothThemes("a new token")
	secret := eval[string](p, `((e) => e.value ?? e.innerText)(document.querySelector('`+at("secret")+`'))`)
	if !access.WellFormed(strings.TrimSpace(secret)) {
		p.Errorf("the secret is shown as %q", secret)
	}
	p.click("done")
	p.until("it is listed", `document.querySelector('`+at("tokens")+`')?.innerText.includes("`+name+`")`)
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

// A browser has six connections for a server, over HTTP/1.1. Ten windows share the streams that there may be: the one
// that was looked at last is live, the others say that they are not, and whatever a page asks for is answered.
func manyTabs(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		runs := b.open(t, s.url)
		runs.visit("/runs")
		runs.live("connection")
		var tabs []*page
		for i := range 9 {
			run := s.load(request(fmt.Sprint("idle-", i), "nobody"), 10, plainItem)
			p := runs.another(t)
			p.visit("/runs/" + run.String())
			tabs = append(tabs, p)
		}
		first, last := tabs[0], tabs[len(tabs)-1]
		last.live("live")
		last.until("it has its map",
			`[...document.querySelectorAll('[data-test^="legend-"]')].some((e) => /\b10\b/.test(e.innerText))`)
		first.until("it knows that it is not live", `document.querySelector('`+at("live")+`')?.dataset.state === "waiting"`)

		first.run(`dispatchEvent(new Event("focus"))`)
		first.live("live")
		for _, p := range tabs {
			testenv.Same(t, eval[int](p, `fetch("/api/v1/runs").then((r) => r.status)`), 200, "a request is answered with")
		}

		// Who is out of sight looks at nothing, and all others are live.
		for _, p := range tabs[:7] {
			p.run(`Object.defineProperty(document, "hidden", {get: () => window.__seen !== true, configurable: true})`)
			p.run(`document.dispatchEvent(new Event("visibilitychange"))`)
		}
		for _, p := range tabs[7:] {
			p.live("live")
		}
		runs.live("connection")
		first.run(`window.__seen = true`)
		first.run(`document.dispatchEvent(new Event("visibilitychange"))`)
		first.live("live")

		// Two of one run share its stream, and both see how it goes.
		run := s.load(request("shared", "statement"), 100, plainItem)
		for _, p := range tabs[7:] {
			p.visit("/runs/" + run.String())
		}
		for _, p := range tabs[7:] {
			p.until("it ended", `document.querySelector('h1 [data-state]')?.dataset.state === "completed" &&
				document.querySelector('`+at("legend-6")+`')?.innerText.includes("3")`)
		}
	}
}

func (p *page) live(test string) {
	p.Helper()
	p.until("it is live", `document.querySelector('`+at(test)+`')?.dataset.state === "live"`)
}

func (p *page) another(t *testing.T) *page {
	t.Helper()
	ctx, end := chromedp.NewContext(p.ctx)
	t.Cleanup(end)
	q := &page{T: t, b: p.b, ctx: ctx, base: p.base}
	q.attach()
	return q
}

// Behind a proxy the dashboard has a path of its own, the proxy holds back streams, and changes paths with slashes.
func behindAProxy(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		const base = "/tranche"
		s := newStack(t, stackConfig{base: base})
		to := testenv.Must(url.Parse(s.url))(t)
		proxy := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Host, r.Out.URL.RawPath = r.In.Host, ""
				r.Out.URL.Path = path.Clean(strings.TrimPrefix(r.In.URL.Path, base))
			},
			ModifyResponse: func(r *http.Response) error {
				if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
					<-r.Request.Context().Done()
				}
				return nil
			},
			ErrorLog: zap.NewStdLog(zap.NewNop()),
		})
		t.Cleanup(proxy.Close)
		service := &bills{gate: make(chan struct{}, 1), codes: func(key string) (string, string) {
			return map[bool]string{true: "bad"}[key == "a/b"], "no"
		}}
		s.listen(service)
		run := s.load(request("below", "statement"), 3, func(i int) (string, string) {
			return []string{"a/b", "..", "c"}[i], `{"name": "x"}`
		})
		p := b.open(t, proxy.URL+base)
		p.allow("502", "ERR_")
		p.visit("/runs")
		p.click("run-link")
		p.says("live", "Every 5 s")
		service.gate <- struct{}{}
		p.until("it is completed", `document.querySelector('h1 [data-state]')?.dataset.state === "completed"`)
		s.load(request("on the wall", "nobody"), 3, plainItem)
		p.visit("/wall")
		p.says("wall-runs", "on the wall")
		p.run(`history.back()`)
		p.until("the map shows it", `/\b1\b/.test(document.querySelector('`+at("legend-6")+`')?.innerText)`)
		testenv.Same(t, eval[int](p, `[...document.querySelectorAll("a[href]")].filter((a) =>
			!a.pathname.startsWith("`+base+`/")).length`), 0, "links lead out of the path")
		p.visit("/runs/" + run.String() + "/item?key=a%2Fb")
		p.says("part-error", "bad")
		p.visit("/runs/" + run.String() + "/item?key=..")
		testenv.Same(t, eval[int](p, `fetch(document.querySelector('`+at("download")+`').href).then((r) => r.status)`), 200,
			"the result of an item named .. is answered with")
	}
}

// Failed items of seven runs are one card: one run is taken, all are muted and brought back, and run again, by
// buttons.
func healthIsAnInbox(s *stack, p *page) {
	service := &bills{codes: threeBad}
	s.listen(service)
	for i := range 7 {
		s.ended(s.load(request(fmt.Sprint("Statements ", i), "statement"), 50, plainItem))
	}
	p.visit("/health")
	p.says("condition", "Failed items: 7 runs, ")
	p.says("turn", "operator")
	p.says("verdict", "7 warnings need attention")
	p.lines(5)
	p.ofFailed("show-all")
	p.lines(7)
	if open := eval[bool](p, `document.querySelector("details.terminal").open`); open {
		s.Error("the commands stand before the buttons")
	}

	p.ofFailed("line-more")
	p.click("take-one")
	p.says("mark", "acknowledged it")

	p.ofFailed("muted")
	p.fill("mute-reason", "they come from the old ledger")
	p.click("mute-go")
	p.says("verdict", "All is well")
	p.says("mute-list", "they come from the old ledger")
	p.lacks("condition")
	p.inTheme("dark")
	p.accessible("dark, muted")
	p.click("back")
	p.says("condition", "Failed items: 7 runs, ")
	p.lacks("mute-list")
	p.accessible("dark, many of a kind")
	p.asPhone()
	p.fits("a phone", 390)
	p.until("the navigation has made way", `document.getElementById("side").getBoundingClientRect().right <= 0`)

	service.well.Store(true)
	p.ofFailed("act-all")
	p.click("confirm-yes")
	p.lacks("condition")
	p.says("verdict", "All is well")
}

// ofFailed clicks on the card of failed items: on a slow machine health reports others, for a while.
func (p *page) ofFailed(test string) {
	p.Helper()
	p.clickOn(test, `[data-kind="failed_items"] `+at(test))
}

// lines waits until a card lists so many conditions.
func (p *page) lines(n int) {
	p.Helper()
	p.until(fmt.Sprint(n, " lines"), fmt.Sprintf(`document.querySelectorAll('%s').length === %d`, at("condition-line"), n))
}
