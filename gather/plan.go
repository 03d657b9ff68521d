package gather

import (
	"cmp"
	"slices"
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
	Name       string // 1 to 64 of A-Z a-z 0-9 . _ -
	Priority   int    // runs with a greater number go first
	MaxFailed  string // failures at which the run pauses: more than "500", or than "1%" of the items; "": never
	Guard      string // first failures of a step that hold the run, like "200/400", or "off"; "": workqueue.DefaultGuard
	Canary     int    // items of a spread sample that goes first, up to 1,000,000; 0: none
	CanaryAuto bool   // a sample within MaxFailed releases the others; else somebody has to
	Steps      []Step

	Order     order.Rule // items of the same value are worked on one after the other; zero: all side by side
	OnFailure string     // FailureStop, or "": what follows an item that failed is worked on all the same

	Items Items // what they must look like
}

// Step is one piece of work per item. Exactly one of Endpoint, Request, HTTP, SQL and Local says how it is done.
type Step struct {
	Name     string   // 1 to 64 of A-Z a-z 0-9 _ -, unique in the plan
	Endpoint string   // the list endpoint that does the work, asked over JetStream
	Needs    []string // the steps that must be done for an item before this one starts
	workqueue.StepSettings

	Request  string   // the list endpoint that does the work, asked over core NATS: nothing is persisted
	HTTP     *HTTP    // an external service that does the work
	SQL      *SQL     // a query that does the work
	Local    string   // the function that does the work, in a program that embeds a node
	Inputs   []string // what it sees: "item", and steps of Needs; nil: the item and all of Needs
	Optional bool     // steps that need it go on without its part
	Barrier  bool     // it begins when its needs have ended for all items
	Approval string   // and, with a barrier, when somebody has approved it: ApproveAnyone or ApproveOther; "": by itself
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

// defaultChunk is the size of a chunk that nobody has set: what takes its items one by one gets fewer.
func (s *Step) defaultChunk() int {
	switch {
	case s.HTTP != nil && !s.HTTP.Many:
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
