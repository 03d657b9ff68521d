package gather

import (
	"fmt"
	"math"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
)

// Limits of a plan.
const (
	MaxCanary = 1_000_000

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
		if err := p.Steps[i].validate(stepField(i) + "."); err != nil {
			return err
		}
	}
	if err := checkName("name", p.Name, "."); err != nil {
		return err
	}
	if err := p.validateValues(); err != nil {
		return err
	}
	if p.CanaryAuto && p.Canary == 0 {
		return fieldError("canary_auto", "there is no canary that it could be about; set canary, like canary: 100")
	}
	if err := p.checkOrder(); err != nil {
		return err
	}
	if err := p.checkItems(); err != nil {
		return err
	}
	return p.checkSteps()
}

// checkSteps looks at what steps are to each other.
func (p *Plan) checkSteps() error {
	if err := checkGraph(p.Steps); err != nil {
		return err
	}
	optional := 0
	for i := range p.Steps {
		s := &p.Steps[i]
		if len(p.Steps) > 1 && s.Name == InputItem {
			return fieldError(stepField(i)+".name", "%q is what inputs call the item itself; choose another name", s.Name)
		}
		if err := s.checkInputs(stepField(i) + "."); err != nil {
			return err
		}
		if s.Optional {
			optional++
		}
	}
	if optional == len(p.Steps) {
		return fieldError(stepField(len(p.Steps)-1)+".optional",
			"every step is optional, so that no item could ever fail; leave it out of one that counts")
	}
	return nil
}

// validateValues looks at each of the plan's own settings by itself.
func (p *Plan) validateValues() error {
	if p.Priority < math.MinInt32 || p.Priority > math.MaxInt32 {
		return fieldError("priority", "%d is not within %d to %d", p.Priority, math.MinInt32, math.MaxInt32)
	}
	if canonical, err := workqueue.ParseMaxFailed(p.MaxFailed); err != nil || canonical != p.MaxFailed {
		return fieldError("max_failed", "%.40q: %v", p.MaxFailed, workqueue.ErrMaxFailed)
	}
	if p.Canary < 0 || p.Canary > MaxCanary {
		return fieldError("canary", "%d is not within 0 to %d", p.Canary, MaxCanary)
	}
	return nil
}

func stepField(i int) string { return fmt.Sprintf("steps[%d]", i) }

// CheckName returns a *FieldError for what is not the name of a plan.
func CheckName(name string) error { return checkName("name", name, ".") }

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
