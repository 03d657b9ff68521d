package browsertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// page is a tab in a browser context of its own. What goes wrong in it fails the test at its end.
type page struct {
	*testing.T
	b    *browser
	ctx  context.Context
	base string

	mu      sync.Mutex
	wrong   []string
	allowed []string
}

func (b *browser) open(t *testing.T, base string) *page {
	t.Helper()
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	p := &page{T: t, b: b, ctx: ctx, base: base}
	t.Cleanup(end)
	p.attach()
	return p
}

func (p *page) attach() {
	p.Helper()
	p.Cleanup(p.verdict)
	if err := chromedp.Listen(p.ctx, p.watch); err != nil {
		p.Fatalf("open a page: %v", err)
	}
	command(p, network.Enable, network.EnableParams{})
	command(p, log.Enable, cdp.Empty{})
	command(p, runtime.Enable, cdp.Empty{})
}

func (p *page) watch(event any) {
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		switch e.Type {
		case runtime.ConsoleAPICalledTypeError, runtime.ConsoleAPICalledTypeAssert, runtime.ConsoleAPICalledTypeWarning:
			p.note("console %s: %s", e.Type, arguments(e.Args))
		}
	case *runtime.EventExceptionThrown:
		p.note("exception: %s", e.ExceptionDetails.Text+" "+describe(e.ExceptionDetails.Exception))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Source == log.EntrySourceSecurity {
			p.note("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 {
			p.note("response %d of %s", e.Response.Status, e.Response.URL)
		}
	case *network.EventLoadingFailed:
		if !e.Canceled && e.ErrorText != "net::ERR_ABORTED" {
			p.note("request failed: %s %s", e.ErrorText, e.BlockedReason)
		}
	}
}

func arguments(args []*runtime.RemoteObject) string {
	var all []string
	for _, a := range args {
		all = append(all, describe(a))
	}
	return strings.Join(all, " ")
}

func describe(o *runtime.RemoteObject) string {
	if o == nil {
		return ""
	}
	return strings.TrimSpace(string(o.Value) + " " + o.Description)
}

// command sends a command of the protocol to the page.
func command[P, R any](p *page, c cdp.Command[P, R], params P) (result R) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, c, params)
	if err != nil {
		p.Fatalf("%s: %v", c.Method, err)
	}
	return result
}

func (p *page) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// allow says what the page may complain of: any complaint with one of the texts.
func (p *page) allow(texts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = append(p.allowed, texts...)
}

// complaints are what was noted and is not allowed, and that is forgotten by this.
func (p *page) complaints() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.wrong {
		if !slices.ContainsFunc(p.allowed, func(part string) bool { return strings.Contains(text, part) }) {
			all = append(all, text)
		}
	}
	p.wrong = nil
	return all
}

func (p *page) verdict() {
	p.Helper()
	for _, text := range p.complaints() {
		p.Error("the page complains: " + text)
	}
}

// do runs actions, all within patience.
func (p *page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatalf("%s: %v\n%s", what, err, p.state())
	}
}

// state describes the page for who reads why a test failed.
func (p *page) state() string {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx,
		chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 3000)`))
	if err != nil {
		return err.Error()
	}
	return text + "\n" + strings.Join(p.complaints(), "\n")
}

// visit goes to a path and waits until the page is there.
func (p *page) visit(path string) {
	p.Helper()
	p.do("visit "+path, chromedp.Navigate(p.base+path))
	p.settled()
}

// settled waits until the page has its heading, and nothing that is still to come.
func (p *page) settled() {
	p.Helper()
	p.until("the page is there", `document.querySelector("h1") !== null && document.fonts.status === "loaded" &&
		!document.querySelector(".skeleton, [aria-busy=true]") && document.readyState === "complete"`)
}

func (p *page) until(what, expression string) {
	p.Helper()
	for deadline := time.Now().Add(patience); ; {
		if eval[bool](p, `Boolean(`+expression+`)`) {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("timed out: %s: %s\n%s", what, expression, p.state())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// eval returns the value of an expression, or of what it promises.
func eval[V any](p *page, expression string) V {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[V](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%.300s: %v\n%s", expression, err, p.state())
	}
	return value
}

func (p *page) run(script string) {
	p.Helper()
	eval[bool](p, "("+script+", true)")
}

// at selects what tests know by a name.
func at(test string) string { return `[data-test="` + test + `"]` }

func (p *page) has(test string) {
	p.Helper()
	p.until(test+" is there", `document.querySelector('`+at(test)+`')?.checkVisibility()`)
}

func (p *page) lacks(test string) {
	p.Helper()
	p.until(test+" is gone", `!document.querySelector('`+at(test)+`')?.checkVisibility()`)
}

// forgets goes to another query of the page, about something else, while the server does not answer.
func (p *page) forgets(test, query string) {
	p.Helper()
	p.run(`(window.fetch = () => new Promise(() => {}), history.pushState(null, "", "` + query + `"),
		dispatchEvent(new PopStateEvent("popstate")))`)
	p.lacks(test)
}

func (p *page) says(test, text string) {
	p.Helper()
	p.until(test+" says "+text, fmt.Sprintf(`[...document.querySelectorAll('%s')].some((e) => e.innerText.includes(%q))`,
		at(test), text))
}

// hear has the page remember its notices from now on: they stand for seconds only.
func (p *page) hear() {
	p.Helper()
	p.run(`(window.__notices = [], new MutationObserver(() => document.querySelectorAll('` + at("toast") + `').
		forEach((e) => window.__notices.push(e.innerText))).observe(document.body, {childList: true, subtree: true}))`)
}

func (p *page) heard(text string) {
	p.Helper()
	p.until("it is said that it "+text, fmt.Sprintf(`window.__notices.some((notice) => notice.includes(%q))`, text))
}

// click clicks the first visible element of that name with the mouse.
func (p *page) click(test string) {
	p.Helper()
	p.clickOn(test, at(test))
}

// clickOn clicks the first visible element that a selector has, once it can be clicked and is stalled.
func (p *page) clickOn(what, selector string) {
	p.Helper()
	p.until(what+" can be clicked", `((e) => {
		const {x, y} = e?.getBoundingClientRect() ?? {}, was = window.__stood;
		window.__stood = x + " " + y;
		return e && was === window.__stood && e.ariaDisabled !== "true" && e.ariaBusy !== "true";
	})([...document.querySelectorAll('`+selector+`')].find((e) => e.checkVisibility()))`)
	p.do("click "+what, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// fill types a text into a field, in place of what is there.
func (p *page) fill(test, text string) {
	p.Helper()
	p.has(test)
	p.run(`((e) => { e.focus(); e.select?.(); })(document.querySelector('` + at(test) + `'))`)
	p.press(text)
}

func (p *page) press(keys ...string) {
	p.Helper()
	for _, key := range keys {
		p.do("press "+key, chromedp.KeyEvent(key))
	}
}

func (p *page) asPhone() {
	p.Helper()
	p.do("be a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch))
}

// inTheme has the browser prefer one.
func (p *page) inTheme(theme string) {
	p.Helper()
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// watchersSee checks the tests themselves: what a page does wrong is seen.
func watchersSee(s *stack, p *page) {
	p.visit("/runs")
	if found := p.complaints(); len(found) > 0 {
		s.Fatalf("before anything: %q", found)
	}
	for want, script := range map[string]string{
		"console error":    `console.error("ouch")`,
		"exception":        `setTimeout(() => { throw new Error("ouch") })`,
		"response 404":     `fetch("/api/v1/nothing")`,
		"request failed":   `fetch("http://127.0.0.1:1/").catch(() => {})`,
		"inline script":    `document.body.append(Object.assign(document.createElement("script"), {textContent: "1"}))`,
		"Content Security": `new Image().src = "http://127.0.0.1:1/x.png"`,
	} {
		p.run(script)
		seen := false
		for deadline := time.Now().Add(patience); !seen && time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
			seen = slices.ContainsFunc(p.complaints(), func(text string) bool {
				return strings.Contains(text, want) || strings.Contains(text, "Content Security Policy")
			})
		}
		if !seen {
			s.Errorf("%s: no one saw it", script)
		}
	}
	p.allow("") // all that is still on its way
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

func (p *page) wheel(x, y, by float64) {
	p.Helper()
	px, py := p.box("map").at(x, y)
	command(p, input.DispatchMouseEvent, input.DispatchMouseEventParams{
		Type: input.DispatchMouseEventTypeMouseWheel, X: px, Y: py,
		DeltaX: 1e-9, DeltaY: by, // a delta of 0 would be left out, and both must be there

	})
}
