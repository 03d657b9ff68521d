// Package gather defines plans: the steps of a run, what each step needs, and how it is chunked, paced and retried.
//
// A plan is a small graph of named steps. [Parse] reads one from YAML, [Single] returns one for a single endpoint,
// and [Plan.Validate] checks any. [Overrides] are the settings of one run that override its plan. Runs store the JSON
// form, so its names are stable, and unknown fields are rejected.
//
// A step names its worker (endpoint, direct, http, sql, local), the steps it needs, its inputs, and whether it is
// optional. Steps may be listed in any order; [Plan.Ordered] returns the order in which they run.
//
// A plan returned by Parse is valid and complete, with all defaults set. Errors name the field and, for YAML, the
// line, column and source line. Deeply nested, aliased or huge YAML is rejected before parsing.
//
// The package uses no files and no database, and runs nothing. Plans are plain values, safe for concurrent reading.
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

// Defaults of plans, in addition to those of steps in general.
const (
	DefaultChunk       = 500
	DefaultChunkHTTP   = 50  // of a step with one request per item
	DefaultChunkLocal  = 100 // of a local step
	DefaultMaxAttempts = 3
	// DefaultRetryBackoff is the default of `retry_backoff`.
	DefaultRetryBackoff = time.Second
)

// Plan is what a run does with each item.
type Plan struct {
	Name              string `json:"name"`                          // 1 to 64 of A-Z a-z 0-9 . _ -
	Priority          int    `json:"priority,omitempty"`            // runs with a greater number go first
	DoneBy            string `json:"done_by,omitempty"`             // as workqueue.ParseDoneBy returns it; "": no time
	Gentle            bool   `json:"gentle,omitempty"`              // with no more in flight than that needs
	MaxFailed         string `json:"max_failed,omitempty"`          // failures that pause the run: "500", "1%"; "": never
	FailFast          string `json:"fail_fast,omitempty"`           // first failures of a step that do, like "200/400"
	Canary            int    `json:"canary,omitempty"`              // items of a spread sample that runs first; 0: none
	CanaryAutoApprove bool   `json:"canary_auto_approve,omitempty"` // if the sample is within MaxFailed

	Order     order.Rule `json:"-"`                    // items of equal value run one at a time; zero: in any order
	OnFailure string     `json:"on_failure,omitempty"` // FailureStop, or "": items after a failed one are processed
	Items     Items      `json:"-"`                    // schema and reading of items
	Steps     []Step     `json:"-"`
}

// Step is one unit of work per item. Exactly one of Endpoint, Direct, HTTP, SQL and Local is set.
type Step struct {
	Name                   string   `json:"name"`               // 1 to 64 of A-Z a-z 0-9 _ -, unique in the plan
	Endpoint               string   `json:"endpoint,omitempty"` // a list endpoint, over JetStream
	Needs                  []string `json:"needs,omitempty"`    // steps that an item must complete first
	workqueue.StepSettings `json:"-"`

	Direct   string   `json:"direct,omitempty"`    // a list endpoint, over core NATS: nothing is persisted
	HTTP     *HTTP    `json:"http,omitempty"`      // an external service
	SQL      *SQL     `json:"sql,omitempty"`       // a query
	Local    string   `json:"local,omitempty"`     // a function in a program that embeds a node
	Inputs   []string `json:"inputs,omitzero"`     // "item" and steps of Needs; nil: the item and all of Needs
	Optional bool     `json:"optional,omitempty"`  // steps that need it continue without its part
	Barrier  bool     `json:"-"`                   // it starts after its needs have ended for all items
	Approval string   `json:"approvers,omitempty"` // with a barrier: ApproveAnyone, ApproveOther; "": automatic
}

// Values of Step.Approval.
const (
	ApproveAnyone = workqueue.ApproveAnyone
	ApproveOther  = workqueue.ApproveOther
)

// Single returns a plan with defaults that sends each item to one endpoint. Plan and step have the endpoint's name,
// which Validate checks.
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

// WithDefaults returns a copy with defaults for all zero settings and missing step names. A step without InFlight
// adapts its limit; a number is fixed. Use it for plans made in Go: a zero in YAML is intended, for example for
// RetryBackoff.
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

// checkGraph checks that step names are unique, that needs exist and are not repeated, and that there is no cycle.
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
				return fieldError(field, "%q appears twice", need)
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

// findCycle returns the names along a cycle of needs, with the first repeated at the end, or nil.
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

// FieldError is returned for an invalid plan.
type FieldError struct {
	Field   string // such as steps[0].chunk
	Problem string // what is wrong and what is allowed
}

func (e *FieldError) Error() string { return fmt.Sprintf("plan: %s: %s", e.Field, e.Problem) }

func fieldError(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Kind is the kind of a step: the name of the field that is set.
type Kind string

// Kinds of steps.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindDirect   Kind = "direct"   // a list request over core NATS
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query of another database
	KindLocal    Kind = "local"    // Go code in a program that embeds a node
)

// worker is one of the fields that say who does a step's work.
type worker struct {
	kind     Kind
	given    bool
	target   func() string
	settings any // the kind's own, stored with the step; nil: none
}

// workers returns all kinds of workers. To add a kind, add a row.
func (s *Step) workers() []worker {
	named := func(name string) func() string { return func() string { return name } }
	return []worker{
		{KindEndpoint, s.Endpoint != "", named(s.Endpoint), nil}, {KindDirect, s.Direct != "", named(s.Direct), nil},
		{KindHTTP, s.HTTP != nil, s.HTTP.host, s.HTTP}, {KindSQL, s.SQL != nil, s.SQL.source, s.SQL},
		{KindLocal, s.Local != "", named(s.Local), nil},
	}
}

func (s *Step) worker() worker {
	all := s.workers()
	if i := slices.IndexFunc(all[1:], func(w worker) bool { return w.given }); i >= 0 {
		return all[1+i]
	}
	return all[0]
}

// Kind returns the step's kind.
func (s *Step) Kind() Kind { return s.worker().kind }

func (s *Step) target() string { return s.worker().target() }

// KindSettings returns the kind's own settings; nil: it has none.
func (s *Step) KindSettings() any { return s.worker().settings }

// TargetKey returns the key of the step's target: steps with the same key share budgets, rates and the breaker. It is
// the endpoint's name, else kind and target, such as http:branches.example.com.
func (s *Step) TargetKey() string {
	return workqueue.TargetKey(workqueue.Kind(s.Kind()), s.target())
}

// SeesItem reports whether the step's requests include the item's payload.
func (s *Step) SeesItem() bool { return s.Inputs == nil || slices.Contains(s.Inputs, InputItem) }

// InputItem names the item's payload in a step's inputs.
const InputItem = "item"

// InputParts returns the steps whose parts the step's requests include.
func (s *Step) InputParts() []string {
	if s.Inputs == nil {
		return s.Needs
	}
	return slices.DeleteFunc(slices.Clone(s.Inputs), func(name string) bool { return name == InputItem })
}
