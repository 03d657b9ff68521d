package browsertest_test

import (
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
)

// Who looks at a gate sees what would go on, some of it, and what is other than in the run before; what changes nothing
// stands first among the buttons, and the word that lets it begin is asked for once more.
func aGate(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{codes: func(key string) (string, string) {
			if key == "C3" {
				return "no_address", "there is none"
			}
			return "", ""
		}}
		s.listen(service)
		req := request("compose", "statement")
		send := req.Steps[0]
		send.Name, send.Needs, send.Barrier, send.Approval = "send", []int{0}, true, workqueue.ApproveAnyone
		req.Steps = append(req.Steps, send)
		p := b.open(t, s.url)
		for i := range 2 {
			req.Name = fmt.Sprint("year ", i)
			run := s.load(req, 10, plainItem)
			p.visit("/runs/" + run.String())
			p.says("gate", "9 items go")
			p.says("gate-before", "1 failed")
			p.says("gate-sample", "C")
			if i == 1 {
				p.says("gate-changes", "still failing: 1")
				p.accessible("a gate")
			}
			p.until("what lets it begin is the last button",
				`document.querySelector('`+at("gate")+` .card-buttons').lastElementChild.dataset.test === "gate-approve"`)
			p.visit("/runs")
			p.says("waits-approval", "send")
			p.visit("/runs/" + run.String())
			p.click("gate-approve")
			p.has("gate-dialog")
			p.fill("gate-reason", "looks good")
			p.click("confirm-yes")
			s.ended(run)
			p.lacks("gate")
		}
		n := s.number(`SELECT count(*) FROM audit_log WHERE action = 'approve' AND detail->>'reason' = 'looks good'`)
		if n != 2 {
			t.Errorf("%d approvals say why", n)
		}
	}
}
