package browsertest_test

import (
	"testing"

	"github.com/tranchehq/tranche/workqueue"
)

// Who comes to a run that its guard holds reads why; the first button leads to what failed, and going on has to be
// confirmed.
func aGuardThatHolds(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: func(string) (string, string) { return "bad_payload", "balance is a number, want a text" }})
		req := request("year-end", "statement")
		req.Guard = workqueue.GuardRule{Failures: 20, Within: 40}
		req.Steps[0].Chunk, req.Steps[0].InFlight = 40, 1
		run := s.load(req, 1000, plainItem)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String())
		p.says("hold", "its first outcomes plainly failed")
		p.says("hold", "bad_payload")
		p.until("what changes nothing is the first button, and to go on the last one before the menu",
			`(([first, ...all]) => first.dataset.test === "errors" && all.at(-2).dataset.test === "resume")(
				[...document.querySelectorAll(".page-actions .btn")])`)
		p.accessible("a run that its guard holds")
		p.click("resume")
		p.says("guard-dialog", "more items are tried next")
		p.until("to leave it is chosen", `document.activeElement.dataset.test === "confirm-no"`)
		p.click("confirm-no")
		p.lacks("guard-dialog")
		p.says("hold", "its first outcomes plainly failed")
		p.click("errors")
		p.says("groups", "bad_payload")
		p.visit("/runs/" + run.String())
		p.click("resume")
		p.click("confirm-yes")
		s.ended(run)
	}
}
