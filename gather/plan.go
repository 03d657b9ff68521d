package gather

import (
	"cmp"
	"slices"
	"time"
)

// What a step uses when its plan does not say.
const (
	DefaultChunk        = 500
	DefaultInFlight     = 64
	DefaultMaxAttempts  = 3
	DefaultTimeout      = 12 * time.Minute // a little more than a service gives its handler by default
	DefaultRetryBackoff = time.Second
)

// Plan is what a run does with each of its items.
type Plan struct {
	Name  string // 1 to 64 of A-Z a-z 0-9 . _ -
	Steps []Step
}

// Step is one piece of work per item: a list request to an endpoint.
type Step struct {
	Name         string        // 1 to 64 of A-Z a-z 0-9 _ -, unique in the plan
	Endpoint     string        // the list endpoint that does the work
	Needs        []string      // the steps that must be done for an item before this one starts
	Chunk        int           // items in a request, at most; 1 to 8192
	InFlight     int           // requests out at once, at most; 1 to 10000
	MaxAttempts  int           // how often an item that fails is tried, in all; 1 to 100
	Timeout      time.Duration // from handing a request to a service to giving up on its reply; 1ms to 24h
	RetryBackoff time.Duration // the wait before the second attempt, which later ones stretch; 0 to 24h
}

// Single returns the plan of one step that sends every item to one endpoint, with the defaults. The plan and its step
// are named after the endpoint. Validate says whether that is a name.
func Single(endpoint string) *Plan {
	step := defaultStep()
	step.Name, step.Endpoint = endpoint, endpoint
	return &Plan{Name: endpoint, Steps: []Step{step}}
}

func defaultStep() Step {
	return Step{
		Chunk:        DefaultChunk,
		InFlight:     DefaultInFlight,
		MaxAttempts:  DefaultMaxAttempts,
		Timeout:      DefaultTimeout,
		RetryBackoff: DefaultRetryBackoff,
	}
}

// WithDefaults returns a copy in which every setting that is zero has its default, and every step without a name that
// of its endpoint. It is for plans made in Go; in YAML a zero that stands there is meant, and RetryBackoff may be one.
func (p *Plan) WithDefaults() *Plan {
	out := p.clone()
	for i := range out.Steps {
		s := &out.Steps[i]
		d := defaultStep()
		s.Name = cmp.Or(s.Name, s.Endpoint)
		s.Chunk = cmp.Or(s.Chunk, d.Chunk)
		s.InFlight = cmp.Or(s.InFlight, d.InFlight)
		s.MaxAttempts = cmp.Or(s.MaxAttempts, d.MaxAttempts)
		s.Timeout = cmp.Or(s.Timeout, d.Timeout)
		s.RetryBackoff = cmp.Or(s.RetryBackoff, d.RetryBackoff)
	}
	return out
}

func (p *Plan) clone() *Plan {
	out := &Plan{Name: p.Name, Steps: slices.Clone(p.Steps)}
	for i := range out.Steps {
		out.Steps[i].Needs = slices.Clone(out.Steps[i].Needs)
	}
	return out
}
