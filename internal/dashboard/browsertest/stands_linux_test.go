package browsertest_test

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// Why a run stands is open, and before all else, on its page, to which any piece of its id leads. A large screen is
// used.
func aRunThatStands(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		run := s.load(request("idle", "nobody"), 5000, plainItem).String()
		p := b.open(t, s.url)
		p.visit("/runs/" + run[14:23])
		p.says("why", "obody listens on endpoint nobody")
		p.until("it stands before the map", `!!(document.querySelector('`+at("why")+`').compareDocumentPosition(
			document.querySelector('`+at("map")+`')) & Node.DOCUMENT_POSITION_FOLLOWING)`)

		p.do("be large", chromedp.EmulateViewport(3840, 2160))
		p.until("the map has the width and the height of the screen", `(({width, height}) => width > 2600 && height > 1000)(
			document.querySelector('`+at("map")+`').getBoundingClientRect())`)
		p.fits("a large screen", 3840)
	}
}
