package browsertest_test

import (
	"fmt"
	"testing"
)

// An operator corrects the data of an item on its page: what is no JSON cannot be sent, numbers keep their digits, and
// what the item had stays known.
func dataIsCorrected(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		run := s.load(request("October", "statement"), 100, func(i int) (key, payload string) {
			return fmt.Sprint("C", i), `{"name":"Ann"}`
		})
		s.ended(run)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String() + "/item?key=C5")
		p.click("correct-item")
		p.fill("correct-payload", `{"name":"Bob"`)
		p.says("correct-dialog", "JSON is broken")
		p.fill("correct-payload", `{"name":"Bob","n":12345678901234567890}`)
		p.fill("reason", "it is Bob")
		p.click("dry-run")
		p.says("tried", "would be corrected, as generation 2")
		p.click("correct-go")
		p.has("correct-follow")
		s.ended(run)
		p.visit("/runs/" + run.String() + "/item?key=C5")
		p.says("payload", "12345678901234567890")
		p.says("earlier-payloads", "until generation 2")
		p.says("earlier-payloads", "it is Bob")
	}
}
