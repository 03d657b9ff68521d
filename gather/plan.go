// Package gather holds plans: which steps a run has, what each step needs, and how each is cut, paced and retried.
//
// A plan is a small graph of named steps. [Parse] reads one from YAML, [Single] makes the one-step plan of a single
// endpoint, and [Plan.Validate] checks either. [Overrides] are what one run lays over its plan. The JSON form is what a
// run keeps in the database, so its field names are stable, and a field that this version does not know is refused.
//
// A step says how its work is done (an endpoint, a request, http, sql, local), which steps it needs, what of them it
// sees, and whether what needs it goes on without it. Steps stand in any order; [Plan.Ordered] is the one they run in.
//
// Guarantees: a plan that Parse returned is valid and complete, with no default left to fill in. Errors name the field,
// and for YAML the line, the column and the source line. Hostile YAML (deep nesting, aliases, huge input) is refused
// before it is parsed.
//
// Not its job: files, the database, running anything. It decides nothing about single items.
//
// Concurrency: plans are plain values; a plan that no one changes can be shared.
package gather

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

// What a plan uses when it does not say, beside what steps use in general.
const (
	DefaultChunk       = 500
	DefaultChunkHTTP   = 50  // of a step that asks for one item with each request
	DefaultChunkLocal  = 100 // of a step of local code
	DefaultMaxAttempts = 3
	// `retry_backoff`.
	DefaultRetryBackoff = time.Second
)

// Plan is what a run does with each of its items.
type Plan struct {
	Name              string // 1 to 64 of A-Z a-z 0-9 . _ -
	Priority          int    // runs with a greater number go first
	MaxFailed         string // failures at which the run pauses: more than "500", or than "1%" of the items; "": never
	FailFast          string // first failures of a step that hold the run, like "200/400"; "": workqueue.DefaultFailFast
	Canary            int    // items of a spread sample that goes first, up to 1,000,000; 0: none
	CanaryAutoApprove bool   // a sample within MaxFailed releases the others; else someone has to
	DoneBy            string // when runs are to have ended, as workqueue.ParseDoneBy returns it; "": whenever
	Gentle            bool   // with no more in flight than that needs
	Steps             []Step

	Order     order.Rule // items of the same value are worked on one at a time; zero: all side by side
	OnFailure string     // FailureStop, or "": what follows an item that failed is worked on anyway

	Items Items // what they must look like
}

// Step is one piece of work per item. Exactly one of Endpoint, Direct, HTTP, SQL and Local says how it is done.
type Step struct {
	Name     string   // 1 to 64 of A-Z a-z 0-9 _ -, unique in the plan
	Endpoint string   // the list endpoint that does the work, asked over JetStream
	Needs    []string // the steps that must be done for an item before this one starts
	workqueue.StepSettings

	Direct   string   // the list endpoint that does the work, asked over core NATS: nothing is persisted
	HTTP     *HTTP    // an external service that does the work
	SQL      *SQL     // a query that does the work
	Local    string   // the function that does the work, in a program that embeds a node
	Inputs   []string // what it sees: "item", and steps of Needs; nil: the item and all of Needs
	Optional bool     // steps that need it go on without its part
	Barrier  bool     // it begins when its needs have ended for all items
	Approval string   // and, with a barrier, when someone has approved it: ApproveAnyone or ApproveOther; "": by itself
}

// Who may let a step with a barrier begin.
const (
	ApproveAnyone = workqueue.ApproveAnyone
	ApproveOther  = workqueue.ApproveOther
)

// Single returns the plan of one step that sends every item to one endpoint, with the defaults. The plan and its step
// are named after the endpoint. Validate says whether that is a name.
func Single(endpoint string) *Plan {
	step := defaultStep()
	step.Name, step.Endpoint = endpoint, endpoint
	return &Plan{Name: endpoint, Steps: []Step{step}}
}

func defaultStep() Step {
	return Step{StepSettings: workqueue.StepSettings{
		Chunk:        DefaultChunk,
		InFlight:     workqueue.AutoInFlight,
		InFlightAuto: true,
		MaxAttempts:  DefaultMaxAttempts,
		Timeout:      workqueue.DefaultTimeout,
		RetryBackoff: DefaultRetryBackoff,
		MaxBackoff:   workqueue.DefaultMaxBackoff,
	}}
}

// WithDefaults returns a copy in which every setting that is zero has its default, and every step without a name that
// of its endpoint or function. A step without InFlight finds its limit while running; one with a number keeps to it. It
// is for plans made in Go; in YAML a zero that stands there is meant, and RetryBackoff may be one.
func (p *Plan) WithDefaults() *Plan {
	out := p.clone()
	for i := range out.Steps {
		s := &out.Steps[i]
		d := defaultStep()
		s.Name = cmp.Or(s.Name, s.ownName())
		s.HTTP.withDefaults()
		s.SQL.withDefaults()
		if s.ChunkAuto {
			s.SetChunk(workqueue.Adaptive{Value: s.Chunk, Auto: true})
		}
		if s.InFlight == 0 {
			s.SetInFlight(workqueue.Adaptive{Auto: true})
		}
		s.Chunk = cmp.Or(s.Chunk, s.defaultChunk())
		s.MaxAttempts = cmp.Or(s.MaxAttempts, d.MaxAttempts)
		s.Timeout = cmp.Or(s.Timeout, d.Timeout)
		s.RetryBackoff = cmp.Or(s.RetryBackoff, d.RetryBackoff)
		s.MaxBackoff = cmp.Or(s.MaxBackoff, max(d.MaxBackoff, s.RetryBackoff))
	}
	return out
}

// defaultChunk is the size of a chunk that no one has set: what takes its items one by one gets fewer.
func (s *Step) defaultChunk() int {
	switch {
	case s.HTTP != nil && !s.HTTP.WholeChunk:
		return DefaultChunkHTTP
	case s.Local != "":
		return DefaultChunkLocal
	default:
		return DefaultChunk
	}
}

// ownName is the name of a step that has none: what does the work, when that is a name.
func (s *Step) ownName() string {
	switch s.Kind() {
	case KindHTTP, KindSQL:
		return ""
	default:
		return s.target()
	}
}

func (p *Plan) clone() *Plan {
	out := *p
	out.Order.Values = slices.Clone(p.Order.Values)
	out.Steps, out.Items = slices.Clone(p.Steps), p.Items.clone()
	for i := range out.Steps {
		s := &out.Steps[i]
		s.StepSettings, s.Needs, s.Inputs = s.Clone(), slices.Clone(s.Needs), slices.Clone(s.Inputs)
		s.HTTP, s.SQL = s.HTTP.clone(), s.SQL.clone()
	}
	return &out
}

// checkGraph checks that step names are unique, that needs name steps of the plan, each once, and that no step waits
// for itself, however far around.
func checkGraph(steps []Step) error {
	index := make(map[string]int, len(steps))
	for i := range steps {
		name := steps[i].Name
		if first, taken := index[name]; taken {
			return fieldError(stepField(i)+".name", "%q is also the name of %s", name, stepField(first))
		}
		index[name] = i
	}
	for i := range steps {
		for n, need := range steps[i].Needs {
			field := fmt.Sprintf("%s.needs[%d]", stepField(i), n)
			if _, known := index[need]; !known {
				return fieldError(field, "there is no step %q; there are %s", need, namesOf(steps))
			}
			if slices.Contains(steps[i].Needs[:n], need) {
				return fieldError(field, "%q stands twice", need)
			}
		}
	}
	if cycle := findCycle(steps, index); cycle != nil {
		return fieldError(stepField(index[cycle[0]])+".needs",
			"the steps wait for each other: %s; take one of these needs out", strings.Join(cycle, " → "))
	}
	return nil
}

func namesOf(steps []Step) string {
	names := make([]string, len(steps))
	for i := range steps {
		names[i] = steps[i].Name
	}
	return strings.Join(names, ", ")
}

// findCycle returns the names along one cycle of needs, the first of them again at the end, or nil.
func findCycle(steps []Step, index map[string]int) []string {
	finished := make([]bool, len(steps))
	var path []string
	var visit func(i int) []string
	visit = func(i int) []string {
		name := steps[i].Name
		if at := slices.Index(path, name); at >= 0 {
			return append(slices.Clone(path[at:]), name)
		}
		if finished[i] {
			return nil
		}
		path = append(path, name)
		for _, need := range steps[i].Needs {
			if cycle := visit(index[need]); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		finished[i] = true
		return nil
	}
	for i := range steps {
		if cycle := visit(i); cycle != nil {
			return cycle
		}
	}
	return nil
}

// FieldError is returned for a plan that breaks a rule.
type FieldError struct {
	Field   string // like steps[0].chunk
	Problem string // what is wrong, and what is allowed
}

func (e *FieldError) Error() string { return fmt.Sprintf("plan: %s: %s", e.Field, e.Problem) }

func fieldError(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Kind says how the work of a step is done: the name of the field that is set.
type Kind string

// The kinds of steps.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindDirect   Kind = "direct"   // a list request over core NATS
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query in another database
	KindLocal    Kind = "local"    // Go code in the program that embeds a node
)

// Kind returns how the step's work is done.
func (s *Step) Kind() Kind {
	switch {
	case s.Direct != "":
		return KindDirect
	case s.HTTP != nil:
		return KindHTTP
	case s.SQL != nil:
		return KindSQL
	case s.Local != "":
		return KindLocal
	default:
		return KindEndpoint
	}
}

// target is who does the work: the name of an endpoint, a host, a source or a function.
func (s *Step) target() string {
	switch s.Kind() {
	case KindDirect:
		return s.Direct
	case KindHTTP:
		return s.HTTP.host()
	case KindSQL:
		return s.SQL.source()
	case KindLocal:
		return s.Local
	default:
		return s.Endpoint
	}
}

// TargetKey is what paces the step: steps with the same key share budgets, rates and the breaker. For endpoints it is
// their name, and for others the kind and the target, as in http:branches.example.com.
func (s *Step) TargetKey() string {
	switch kind := s.Kind(); kind {
	case KindEndpoint, KindDirect:
		return s.target()
	default:
		return string(kind) + ":" + s.target()
	}
}

// SeesItem reports whether the step's requests carry the item's payload.
func (s *Step) SeesItem() bool { return s.Inputs == nil || slices.Contains(s.Inputs, InputItem) }

// InputItem is the name of the item's payload among the inputs of a step.
const InputItem = "item"

// InputParts are the steps whose parts the step's requests carry.
func (s *Step) InputParts() []string {
	if s.Inputs == nil {
		return s.Needs
	}
	return slices.DeleteFunc(slices.Clone(s.Inputs), func(name string) bool { return name == InputItem })
}
