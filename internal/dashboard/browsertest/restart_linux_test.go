package browsertest_test

import "testing"

// A page outlives its server: it says that it is cut off, comes back by itself, and then shows what happened meanwhile.
func serverRestarts(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{codes: threeBad, gate: make(chan struct{}, 1000)}
		s.listen(service)
		req := request("long", "statement")
		req.Steps[0].Chunk = 10
		run := s.load(req, 100, plainItem)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String())
		p.until("it is live", `document.querySelector('`+at("live")+`')?.dataset.state === "live"`)
		p.run(`window.__before = true`)
		for range 3 {
			service.gate <- struct{}{}
		}
		p.until("a part is done", `/\b(2[789]|30)\b/.test(document.querySelector('`+at("legend-5")+`')?.innerText)`)

		// What fails meanwhile is what cannot be reached, and nothing else.
		p.allow("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE",
			"response 503", "status of 503")
		s.stop()
		p.until("it says so", `document.querySelector('`+at("live")+`')?.dataset.state !== "live"`)
		close(service.gate)
		s.ended(run)
		s.serve()
		p.until("it is live again", `document.querySelector('`+at("live")+`')?.dataset.state === "live"`)
		p.until("it has caught up", `document.querySelector('h1 [data-state]')?.dataset.state === "completed" &&
		document.querySelector('`+at("legend-5")+`')?.innerText.includes("97") &&
		document.querySelector('`+at("legend-6")+`')?.innerText.includes("3")`)
		if !eval[bool](p, `window.__before === true`) {
			t.Error("the page was loaded anew")
		}
	}
}

// Pages that are left hold no connection: however many there were, the next one is loaded. On the way back they are
// live.
func pagesAreLeft(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		run := s.load(request("idle", "nobody"), 10, plainItem)
		p := b.open(t, s.url)
		for range 4 {
			p.visit("/runs")
			p.visit("/runs/" + run.String())
		}
		p.run(`history.back()`)
		p.until("the list", `location.pathname === "/runs"`)
		p.settled()
		p.until("it is live", `document.querySelector('`+at("connection")+`')?.dataset.state === "live"`)
	}
}
