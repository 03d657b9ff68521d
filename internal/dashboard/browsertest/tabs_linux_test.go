package browsertest_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

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
			if code := eval[int](p, `fetch("/api/v1/runs").then((r) => r.status)`); code != 200 {
				t.Errorf("a request is answered with %d", code)
			}
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
			p.until("it has ended", `document.querySelector('h1 [data-state]')?.dataset.state === "completed" &&
				document.querySelector('`+at("legend-6")+`')?.innerText.includes("3")`)
		}
	}
}

func (p *page) live(test string) {
	p.Helper()
	p.until("it is live", `document.querySelector('`+at(test)+`')?.dataset.state === "live"`)
}

// another opens one more tab of the same profile.
func (p *page) another(t *testing.T) *page {
	t.Helper()
	ctx, end := chromedp.NewContext(p.ctx)
	t.Cleanup(end)
	q := &page{T: t, ctx: ctx, base: p.base}
	q.attach()
	return q
}
