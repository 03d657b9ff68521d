package gather

import "slices"

// Kind says how the work of a step is done: the name of the field that is set.
type Kind string

// The kinds of steps.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindRequest  Kind = "request"  // a list request over core NATS
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query in another database
	KindLocal    Kind = "local"    // Go code in the program that embeds a node
)

// Kind returns how the step's work is done.
func (s *Step) Kind() Kind {
	switch {
	case s.Request != "":
		return KindRequest
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
	case KindRequest:
		return s.Request
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

// PaceKey is what paces the step: steps with the same key share budgets, rates and the breaker. For endpoints it is
// their name, and for others the kind and the target, as in http:branches.example.com.
func (s *Step) PaceKey() string {
	switch kind := s.Kind(); kind {
	case KindEndpoint, KindRequest:
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
