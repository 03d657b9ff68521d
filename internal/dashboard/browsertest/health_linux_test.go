package browsertest_test

import (
	"fmt"
	"testing"
)

// Failed items of seven runs are one card: one run is taken, all are put aside and brought back, and run again, by
// buttons.
func healthIsAnInbox(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{codes: threeBad}
		s.listen(service)
		for i := range 7 {
			s.ended(s.load(request(fmt.Sprint("Statements ", i), "statement"), 50, plainItem))
		}
		p := b.open(t, s.url)
		p.visit("/health")
		p.says("condition", "Failed items: 7 runs, ")
		p.says("verdict", "7 things want to be seen to")
		p.lines(5)
		p.ofFailed("show-all")
		p.lines(7)
		if open := eval[bool](p, `document.querySelector("details.terminal").open`); open {
			t.Error("the commands stand before the buttons")
		}

		p.ofFailed("line-more")
		p.click("take-one")
		p.says("mark", "sees to it")

		p.ofFailed("aside")
		p.fill("aside-reason", "they come from the old ledger")
		p.click("aside-go")
		p.says("verdict", "All is well")
		p.says("aside-list", "they come from the old ledger")
		p.lacks("condition")
		p.inTheme("dark")
		p.accessible("dark, put aside")
		p.click("back")
		p.says("condition", "Failed items: 7 runs, ")
		p.lacks("aside-list")
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
}

// ofFailed clicks on the card of failed items: on a slow machine health tells of others, for a while.
func (p *page) ofFailed(test string) {
	p.Helper()
	p.clickOn(test, `[data-kind="failed_items"] `+at(test))
}

// lines waits until a card lists so many conditions.
func (p *page) lines(n int) {
	p.Helper()
	p.until(fmt.Sprint(n, " lines"), fmt.Sprintf(`document.querySelectorAll('%s').length === %d`, at("condition-line"), n))
}
