package browsertest_test

import (
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

// gated is a run of two steps with a gate between them.
func gated(name string) startstore.LoadRequest {
	req := request(name, "statement")
	req.Steps[0].Name = "compose"
	send := req.Steps[0]
	send.Name, send.Needs, send.Barrier, send.Approval = "send", []int{0}, true, workqueue.ApproveAnyone
	req.Steps = append(req.Steps, send)
	return req
}

// withoutAddress is a service that refuses C3.
func withoutAddress() *bills {
	return &bills{codes: func(key string) (string, string) {
		if key == "C3" {
			return "no_address", "there is none"
		}
		return "", ""
	}}
}

// Who looks at a gate sees what would go on, some of it, and what is other than in the run before; what changes nothing
// stands first among the buttons, and the word that lets it begin is asked for once more.
func aGate(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := withoutAddress()
		s.listen(service)
		p := b.open(t, s.url)
		for i := range 2 {
			run := s.load(gated(fmt.Sprint("year ", i)), 10, plainItem)
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

// What was done again before a gate while somebody looks does not go on by their word: the page says what is other than
// they have seen, and asks again with that.
func aGateThatChanges(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := withoutAddress()
		s.listen(service)
		run := s.load(gated("year"), 10, plainItem)
		p := b.open(t, s.url)
		p.allow("409")
		p.visit("/runs/" + run.String())
		p.says("gate", "9 items go")
		p.click("gate-approve")
		p.says("gate-dialog", "9 items go")

		service.well.Store(true)
		s.post("/runs/"+run.String()+"/rerun", "application/json", `{"failed":true}`)
		s.until("the gate waits anew", `SELECT count(*) FROM run_step JOIN batchrun r ON r.id = run_id
			WHERE r.generation = 2 AND gate_since IS NOT NULL`)
		p.hear()
		p.click("confirm-yes")
		p.lacks("gate-dialog")
		p.heard("did not begin")
		p.says("gate-news", "items that go on: 9 → 10")
		p.says("gate-news", "compose: failed: 1 → 0")
		p.says("gate", "10 items go")
		p.accessible("a gate that changed")
		if n := s.number(`SELECT count(*) FROM audit_log WHERE action = 'approve'`); n != 0 {
			t.Errorf("%d approvals of what nobody has seen", n)
		}
		p.click("gate-approve")
		p.says("gate-dialog", "10 items go")
		p.says("gate-dialog", "9 → 10")
		p.click("confirm-yes")
		s.ended(run)
		p.lacks("gate")
	}
}

// Who comes too late with their word is told whose it was, in the dialog that stands and by the page.
func aGateThatSomebodyElsePassed(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{gate: make(chan struct{}, 1), codes: func(string) (string, string) { return "", "" }}
		service.gate <- struct{}{} // for compose; what is sent stays out
		s.listen(service)
		run := s.load(gated("year"), 10, plainItem)
		p := b.open(t, s.url)
		p.allow("409")
		p.visit("/runs/" + run.String())
		p.click("gate-approve")
		p.has("gate-dialog")
		s.post("/runs/"+run.String()+"/approve", "application/json", `{"step":"send"}`)
		p.click("confirm-yes")
		p.says("gate-dialog", "bob has approved")
		p.click("confirm-no")
		p.says("gate", "By bob")
		p.lacks("gate-approve")
	}
}
