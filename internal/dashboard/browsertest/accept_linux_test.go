package browsertest_test

import (
	"fmt"
	"testing"
)

// An operator accepts a group of errors and then all, sees it at an item and at the run, and withdraws one.
func failuresAreAccepted(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		run := s.load(request("October", "statement"), 100, func(i int) (key, payload string) {
			return fmt.Sprint("C", i), `{"name":"Ann"}`
		})
		s.ended(run)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String() + "/errors")
		p.has("group")
		p.click("accept-group") // the first has two items
		p.fill("reason", "they are to be written to")
		p.click("dry-run")
		p.says("tried", "2 items would be accepted; then 2 of the 3")
		p.click("accept-go")
		p.lacks("accept-dialog")
		p.says("accepted", "accepted")
		p.says("errors-page", "2 of them accepted")
		p.click("accept-failed")
		p.says("accept-dialog", "1 item of October")
		p.fill("reason", "blocked for good")
		p.click("accept-go")
		p.lacks("accept-dialog")
		p.says("errors-page", "3 of them accepted")

		p.visit("/runs/" + run.String())
		p.says("numbers", "3 accepted")
		p.visit("/runs/" + run.String() + "/item?key=C42")
		p.says("acceptance", "they are to be written to")
		p.click("accept-part")
		p.click("accept-go")
		p.lacks("acceptance")
		if n := s.number(`SELECT accepted FROM batchrun`); n != 2 {
			t.Errorf("%d items are accepted; want 2", n)
		}
	}
}
