package browsertest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func goTo(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// All that the mouse does, keys do: they go about, open, choose and act, and reach every control.
func keyboard(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		done := s.load(request("old", "statement"), 100, plainItem)
		s.ended(done)
		s.load(request("new", "nobody"), 100, plainItem)
		p := b.open(t, s.url)
		p.visit("/runs")
		p.press("?")
		p.has("help-dialog")
		p.press(kb.Escape)
		p.lacks("help-dialog")
		places := map[string]string{"e": "endpoints", "n": "nodes", "h": "health", "d": "letters", "a": "audit",
			"s": "schedules",
			"c": "collectors", "k": "trackers", "p": "plans", "l": "alerts"}
		for key, page := range places {
			p.chord("g", key)
			p.has(page + "-page")
		}
		p.chord("g", "r")
		p.has("runs-page")
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

		// A re-run by keys alone.
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
		s.ended(done)

		for _, path := range []string{"/runs", "/runs/" + done.String(), "/start", "/endpoints", "/audit", "/health"} {
			p.visit(path)
			p.reachesAll(path)
		}
	}
}

// chordWithin is how soon after one another the page must hear the keys of a chord, which it takes for one for a little
// longer.
const chordWithin = 1400 * time.Millisecond

// chord presses two keys, anew when the machine was too slow for the page to take them for a chord.
func (p *page) chord(first, second string) {
	p.Helper()
	p.run(`window.__heard || [true, false].forEach((capture) => // before the page itself hears a key, and after
		addEventListener("keydown", () => window.__heard.push(performance.now()), {capture}))`)
	for slow := poll(p.T, "the keys of a chord come at once"); slow.again(); {
		p.run(`window.__heard = []`)
		p.press(first, second)
		if eval[float64](p, `window.__heard.at(-1) - window.__heard[0]`) < float64(chordWithin.Milliseconds()) {
			return
		}
	}
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
		// What a page had not loaded yet, or drew anew, came behind Tab's back.
		had = eval[int](p, count)
		p.tabAround()
		missed, now = p.missed(controls, count)
	}
	if len(missed) > 0 {
		p.Errorf("%s: Tab does not reach %d controls:\n%s", path, len(missed), strings.Join(missed, "\n"))
	}
	if dull := eval[[]string](p, `window.__dull`); len(dull) > 0 {
		p.Errorf("%s: nobody sees that these have the focus:\n%s", path, strings.Join(dull, "\n"))
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
