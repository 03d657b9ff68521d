package browsertest_test

import (
	"fmt"
	"testing"
)

// A run beside the one before it: what was mended, which results are others, and in what they differ.
func twoRunsCompared(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{codes: threeBad}
		s.listen(service)
		before := s.load(request("October", "statement"), 50, plainItem)
		s.ended(before)
		service.well.Store(true)
		now := s.load(request("November", "statement"), 51, func(i int) (string, string) {
			key, payload := plainItem(i)
			if i == 5 {
				payload = fmt.Sprintf(`{"name": "Renamed %d"}`, i)
			}
			return key, payload
		})
		s.ended(now)
		p := b.open(t, s.url)
		p.visit("/runs/" + now.String())
		p.click("more")
		p.click("menu-compare")
		p.has("comparison-page")
		p.says("change-newly_fixed", "2")
		p.says("change-changed", "1")
		p.says("change-only_here", "1")
		p.says("list-newly_fixed", "C42")
		p.click("show-difference")
		p.until("the difference", `document.querySelector('`+at("list-changed")+` del') && document.querySelector('`+
			at("list-changed")+` ins').innerText.includes("Renamed 5")`)
		p.says("comparison-steps", "statement")
	}
}
