package storetest

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// The steps of collecting.
const (
	Accounts workqueue.Step = iota
	Transactions
	Branches
	Statement
	Posting
)

// StepNames are the steps of [Collecting].
func StepNames() []string {
	return []string{"accounts", "transactions", "branches", "statement", "letter"}
}

// Collecting is a run of three steps that fetch, the last of which is optional, one that sees all three parts, and one
// that sees what that has made.
func Collecting() start.LoadRequest {
	req := start.LoadRequest{Plan: "statements", CreatedBy: "test"}
	for i, name := range StepNames() {
		st := workqueue.StepSpec{Name: name, Endpoint: name, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100,
			MaxAttempts: 1, Timeout: time.Minute}, Optional: name == "branches"}
		switch workqueue.Step(i) {
		case Statement:
			st.Needs, st.Inputs = []int{0, 1, 2}, []int{0, 1, 2}
		case Posting:
			st.Needs, st.Inputs = []int{3}, []int{3}
		}
		req.Steps = append(req.Steps, st)
	}
	return req
}
