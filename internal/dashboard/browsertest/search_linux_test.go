package browsertest_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Search from anywhere finds runs, pages and items; several runs are acted on at once; a tab says how its run goes.
func findAndChoose(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		first := s.load(request("alpha", "nobody"), 100, plainItem)
		s.load(request("beta", "nobody"), 100, plainItem)
		s.load(request("gamma", "nobody"), 100, plainItem)
		p := b.open(t, s.url)
		p.visit("/health")
		search := func(text, found string) {
			p.Helper()
			p.do("Ctrl K", chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
			p.fill("search-text", text)
			p.until("it is found",
				`document.querySelector('[role=option][aria-selected=true]')?.innerText.includes("`+found+`")`)
			p.press(kb.Enter)
			p.lacks("search")
		}
		search("alph", "alpha")
		p.until("the run", `location.pathname === "/runs/`+first.String()+`"`)
		p.until("its tab says how it goes", `document.title === "0 % · alpha"`)
		search("C42", "C42")
		p.has("item-page")
		search("dead let", "Dead letters")
		p.has("letters-page")

		p.visit("/runs")
		p.run(`[...document.querySelectorAll('` + at("choose") + `')].slice(0, 2).forEach((e) => e.click())`)
		p.says("bulk", "2 runs")
		p.click("bulk-pause")
		p.until("both are paused", `[...document.querySelectorAll('#main [data-row]')].filter((e) =>
			e.innerText.includes("paused")).length === 2`)
		p.lacks("bulk")
	}
}
