package gather

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints"
)

// Limits of a plan. A chunk is a mask of one block.
const (
	MaxChunk       = bitfield.Size
	MaxInFlight    = 10_000
	MaxMaxAttempts = 100
	MaxTimeout     = 24 * time.Hour
	MinTimeout     = time.Millisecond

	maxSteps      = 64
	maxNameLength = 64
)

// Validate returns a *FieldError for the first rule that the plan breaks. It fills in nothing. Endpoints are looked at
// before names, since a name that was not given is that of an endpoint.
func (p *Plan) Validate() error {
	switch {
	case len(p.Steps) == 0:
		return fieldError("steps", "a plan needs a step")
	case len(p.Steps) > maxSteps:
		return fieldError("steps", "%d steps; at most %d are allowed", len(p.Steps), maxSteps)
	}
	for i := range p.Steps {
		if err := p.Steps[i].validate(stepField(i)); err != nil {
			return err
		}
	}
	if err := checkName("name", p.Name, "."); err != nil {
		return err
	}
	if err := checkGraph(p.Steps); err != nil {
		return err
	}
	return checkRunnable(p.Steps)
}

// checkRunnable is the one place that knows how far this version goes.
func checkRunnable(steps []Step) error {
	if len(steps) > 1 {
		return fieldError("steps", "this version runs plans of one step, and this plan has %d", len(steps))
	}
	return nil
}

func stepField(i int) string { return fmt.Sprintf("steps[%d]", i) }

func (s *Step) validate(field string) error {
	if s.Endpoint == "" {
		return fieldError(field+".endpoint", "a step needs an endpoint")
	}
	if err := endpoints.ValidateName(s.Endpoint); err != nil {
		return fieldError(field+".endpoint", "%v", err)
	}
	if err := checkName(field+".name", s.Name, ""); err != nil {
		return err
	}
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"chunk", s.Chunk, MaxChunk},
		{"in_flight", s.InFlight, MaxInFlight},
		{"max_attempts", s.MaxAttempts, MaxMaxAttempts},
	} {
		if n.value < 1 || n.value > n.max {
			return fieldError(field+"."+n.name, "%d is not within 1 to %d", n.value, n.max)
		}
	}
	if s.Timeout < MinTimeout || s.Timeout > MaxTimeout {
		return fieldError(field+".timeout", "%v is not within %v to %v", s.Timeout, MinTimeout, MaxTimeout)
	}
	if s.RetryBackoff < 0 || s.RetryBackoff > MaxTimeout {
		return fieldError(field+".retry_backoff", "%v is not within 0s to %v", s.RetryBackoff, MaxTimeout)
	}
	return nil
}

// checkName allows letters, digits, _ and -, and what also names.
func checkName(field, name, also string) error {
	if name == "" {
		return fieldError(field, "a name is needed")
	}
	if len(name) > maxNameLength {
		return fieldError(field, "%.20q… has %d characters; %d are allowed", name, len(name), maxNameLength)
	}
	for _, c := range name {
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
		if !word && (also == "" || string(c) != also) {
			return fieldError(field, "%q: use %s", name, strings.TrimSpace("A-Z a-z 0-9 _ - "+also))
		}
	}
	return nil
}
