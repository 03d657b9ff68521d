package workqueue

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue/order"
)

// MaxSteps is how many steps a run has at the most.
const MaxSteps = 64

// StepSpec is a step as a run starts with it.
type StepSpec struct {
	Name     string
	Endpoint string
	StepSettings

	Kind     Kind            // empty: KindEndpoint
	Needs    []int           // steps that must be done for an item before, each with a smaller number
	Inputs   []int           // of those, the ones whose parts its requests carry
	NoItem   bool            // its requests do not carry the items' payloads
	Optional bool            // what needs it goes on without it
	Barrier  bool            // nothing of it begins before its needs have ended for all items
	Approval string          // with a barrier: nor before somebody approves, ApproveAnyone or ApproveOther
	Config   json.RawMessage // the kind's own settings; nil: none
}

// Who may let a step begin that waits for an approval.
const (
	ApproveAnyone = "anyone" // whoever may change runs
	ApproveOther  = "other"  // but not who started the run
)

// Validate checks what of the step, the i-th, concerns other steps.
func (st *StepSpec) Validate(i int) error {
	for n, need := range st.Needs {
		if need < 0 || need >= i {
			return fmt.Errorf("step %d (%s) needs step %d; it can need steps before it only", i, st.Name, need)
		}
		if slices.Contains(st.Needs[:n], need) {
			return fmt.Errorf("step %d (%s) needs step %d twice", i, st.Name, need)
		}
	}
	if st.Barrier && len(st.Needs) == 0 {
		return fmt.Errorf("step %d (%s) has a barrier, and needs no step that it could wait for", i, st.Name)
	}
	if st.Approval != "" && !st.Barrier {
		return fmt.Errorf("step %d (%s) waits for an approval, and has no barrier", i, st.Name)
	}
	for n, input := range st.Inputs {
		if !slices.Contains(st.Needs, input) || slices.Contains(st.Inputs[:n], input) {
			return fmt.Errorf("step %d (%s) sees the parts of step %d; want each of the steps that it needs once at the most",
				i, st.Name, input)
		}
	}
	return nil
}

// EffectiveKind is how the work of the step is done.
func (st *StepSpec) EffectiveKind() Kind {
	if st.Kind == "" {
		return KindEndpoint
	}
	return st.Kind
}

// Upper bounds of steps whose chunk or in-flight limit nodes find themselves, unless other ones were given; and of all.
const (
	AutoChunk    = bitfield.Size
	AutoInFlight = 1024
	MaxInFlight  = 10_000
)

// CodeComma stands between codes, which have no commas.
const CodeComma = ", "

// DefaultAutoChunk is the size of automatic chunks before anything was learned of their endpoint.
const DefaultAutoChunk = 500

// CodeInvalid is the error code of items that do not fit the schema of their run. Nobody is asked about them.
const CodeInvalid = "invalid"

// CodeStopped is the error code of items that nobody has tried, because one of the same lane failed before them.
const CodeStopped = "ORDER_STOPPED"

// RunOrder puts the items of a run in lanes: those of the same value are worked on one after the other in the order in
// which they came, and the next one begins when every step has come to its end with the one before. Lines do not wait
// for each other.
//
// The item of a lane that is worked on is its head; the others are held back in the planes, like those behind a canary.
// Whoever settles the head, over all steps, makes the next one ready in the same transaction. The row of a lane in
// work_lane is its lock.
type RunOrder struct {
	Rule order.Rule
	Stop bool // what follows an item that failed ends with CodeStopped, and is not tried
}
