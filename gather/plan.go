package gather

import (
	"cmp"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue/order"
)

// What a plan uses when it does not say. The limit of requests is found while running, up to DefaultInFlight.
const (
	DefaultChunk        = 500
	DefaultChunkHTTP    = 50              // of a step that asks for one item with each request
	DefaultChunkLocal   = 100             // of a step of local code
	DefaultChunkTime    = 5 * time.Second // of a chunk whose size is found
	DefaultInFlight     = 1024
	DefaultMaxAttempts  = 3
	DefaultTimeout      = 12 * time.Minute // a little more than a service gives its handler by default
	DefaultRetryBackoff = time.Second
	DefaultMaxBackoff   = 5 * time.Minute
)

// Plan is what a run does with each of its items.
type Plan struct {
	Name       string // 1 to 64 of A-Z a-z 0-9 . _ -
	Priority   int    // runs with a greater number go first
	MaxFailed  string // failures at which the run pauses: more than "500", or than "1%" of the items; "": never
	Canary     int    // items of a spread sample that goes first, up to 1,000,000; 0: none
	CanaryAuto bool   // a sample within MaxFailed releases the others; else somebody has to
	Steps      []Step

	Order     order.Rule // items of the same value are worked on one after the other; zero: all side by side
	OnFailure string     // FailureStop, or "": what follows an item that failed is worked on all the same
}

// Step is one piece of work per item. Exactly one of Endpoint, Request, HTTP, SQL and Local says how it is done.
type Step struct {
	Name         string        // 1 to 64 of A-Z a-z 0-9 _ -, unique in the plan
	Endpoint     string        // the list endpoint that does the work, asked over JetStream
	Needs        []string      // the steps that must be done for an item before this one starts
	Chunk        int           // items in a request, at most; 1 to 8192
	ChunkAuto    bool          // the size is found while running, up to Chunk
	ChunkBytes   int           // payload bytes in a request, at most; 1 KiB to 64 MiB; 0: what the node allows
	ChunkTime    time.Duration // what a request should take, with ChunkAuto; 10ms to 1h
	InFlight     int           // requests out at once, at most; 1 to 10000
	InFlightAuto bool          // the limit is found while running, up to InFlight
	Rate         float64       // items a second, at most; 0.001 to 10,000,000; 0: no limit
	MaxAttempts  int           // how often an item that fails is tried, in all; 1 to 100
	Timeout      time.Duration // from handing a request to a service to giving up on its reply; 1ms to 24h
	RetryBackoff time.Duration // the wait before the second attempt, doubled for each later one; 0 to 24h
	MaxBackoff   time.Duration // the longest such wait; RetryBackoff, and 1ms, to 24h
	RetryCodes   []string      // error codes that are tried again, although the service says no
	NeverRetry   []string      // error codes that are not, although the service says yes

	Request  string   // the list endpoint that does the work, asked over core NATS: nothing is persisted
	HTTP     *HTTP    // an external service that does the work
	SQL      *SQL     // a query that does the work
	Local    string   // the function that does the work, in a program that embeds a node
	Inputs   []string // what it sees: "item", and steps of Needs; nil: the item and all of Needs
	Optional bool     // steps that need it go on without its part
	Barrier  bool     // it begins when its needs have ended for all items
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
		InFlightAuto: true,
		MaxAttempts:  DefaultMaxAttempts,
		Timeout:      DefaultTimeout,
		RetryBackoff: DefaultRetryBackoff,
		MaxBackoff:   DefaultMaxBackoff,
	}
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
			s.setChunk(Adaptive{Value: s.Chunk, Auto: true})
		}
		if s.InFlight == 0 {
			s.setInFlight(Adaptive{Auto: true})
		}
		s.Chunk = cmp.Or(s.Chunk, s.defaultChunk())
		s.MaxAttempts = cmp.Or(s.MaxAttempts, d.MaxAttempts)
		s.Timeout = cmp.Or(s.Timeout, d.Timeout)
		s.RetryBackoff = cmp.Or(s.RetryBackoff, d.RetryBackoff)
		s.MaxBackoff = cmp.Or(s.MaxBackoff, longestBackoff(s.RetryBackoff))
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

// setChunk makes the size of chunks a fixed one, or one to be found with a time to aim at.
func (s *Step) setChunk(n Adaptive) {
	s.Chunk, s.ChunkAuto = n.Value, n.Auto
	if !n.Auto {
		s.ChunkTime = 0
		return
	}
	s.Chunk = cmp.Or(s.Chunk, MaxChunk)
	s.ChunkTime = cmp.Or(s.ChunkTime, min(DefaultChunkTime, cmp.Or(s.Timeout, DefaultTimeout)))
}

// setInFlight makes the limit of requests a fixed one, or one to be found.
func (s *Step) setInFlight(n Adaptive) {
	s.InFlight, s.InFlightAuto = n.Value, n.Auto
	if n.Auto {
		s.InFlight = cmp.Or(s.InFlight, DefaultInFlight)
	}
}

// longestBackoff is the longest wait of a step that does not give one.
func longestBackoff(first time.Duration) time.Duration { return max(first, DefaultMaxBackoff) }

func (p *Plan) clone() *Plan {
	out := *p
	out.Order.Values = slices.Clone(p.Order.Values)
	out.Steps = slices.Clone(p.Steps)
	for i := range out.Steps {
		s := &out.Steps[i]
		s.Needs, s.RetryCodes, s.NeverRetry = slices.Clone(s.Needs), slices.Clone(s.RetryCodes), slices.Clone(s.NeverRetry)
		s.Inputs, s.HTTP, s.SQL = slices.Clone(s.Inputs), s.HTTP.clone(), s.SQL.clone()
	}
	return &out
}
