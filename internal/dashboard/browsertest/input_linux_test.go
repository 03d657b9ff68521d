package browsertest_test

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// polling looks again and again until patience ends.
type polling struct {
	*testing.T
	what     string
	deadline time.Time
	begun    bool
}

func poll(t *testing.T, what string) *polling {
	t.Helper()
	return &polling{T: t, what: what, deadline: time.Now().Add(patience)}
}

// again waits a moment, and fails the test when it has been long enough.
func (p *polling) again() bool {
	p.Helper()
	if p.begun {
		<-time.After(10 * time.Millisecond)
	}
	p.begun = true
	if time.Now().After(p.deadline) {
		p.Fatalf("waited in vain: %s", p.what)
	}
	return true
}

// box is where an element is on the screen.
type box struct{ X, Y, W, H float64 }

func (b box) at(x, y float64) (px, py float64) { return b.X + b.W*x, b.Y + b.H*y }

func (p *page) box(test string) box {
	p.Helper()
	p.has(test)
	return eval[box](p, `(() => { const e = document.querySelector('`+at(test)+`');
		e.scrollIntoView({block: "nearest"});
		const r = e.getBoundingClientRect();
		return {X: r.x, Y: r.y, W: r.width, H: r.height}; })()`)
}

// drag moves the mouse over the map with its button pressed; places are parts of its width and height.
func (p *page) drag(fromX, fromY, toX, toY float64) {
	p.Helper()
	b := p.box("map")
	const moves = 12
	x, y := b.at(fromX, fromY)
	p.do("press", chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	for i := 1; i <= moves; i++ {
		part := float64(i) / moves
		x, y = b.at(fromX+(toX-fromX)*part, fromY+(toY-fromY)*part)
		p.do("move", chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y, chromedp.ButtonLeft))
	}
	p.do("release", chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, x, y, chromedp.ButtonLeft,
		chromedp.ClickCount(1)))
}

// wheel turns the mouse's wheel over the map.
func (p *page) wheel(x, y, by float64) {
	p.Helper()
	px, py := p.box("map").at(x, y)
	command(p, input.DispatchMouseEvent, input.DispatchMouseEventParams{
		Type: input.DispatchMouseEventTypeMouseWheel, X: px, Y: py,
		DeltaX: 1e-9, DeltaY: by, // a delta of 0 would be left out, and both must be there

	})
}
