package workqueue

import (
	"fmt"
	"strings"
)

// Outcome is where an item stands as its owner sees it.
type Outcome string

// The outcomes. An item is done when every step is done with it, failed when one step is, and missing otherwise.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeMissing Outcome = "missing"
)

// StepChoiceError is returned for an export that names no step of the run, where one has to be named.
type StepChoiceError struct {
	Step  string   // that was named; "": none
	Steps []string // that there are, or that have results
}

func (e *StepChoiceError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("the results of the run are those of several steps (%s); name one of its steps",
			strings.Join(e.Steps, ", "))
	}
	return fmt.Sprintf("the run has no step %.80q; it has %s", e.Step, strings.Join(e.Steps, ", "))
}

// SlotError is an error in the place of a result.
type SlotError struct {
	Code    string // a short token, for grouping
	Message string
	Retry   bool // the same request may succeed later
}
