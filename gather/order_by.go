package gather

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/workqueue/order"
)

// Values of on_failure, for the items after one that failed.
const (
	FailureStop     = "stop"     // they end without being tried
	FailureContinue = "continue" // they are processed; the default, stored as ""
)

var errOnFailure = fmt.Errorf("want %s or %s", FailureContinue, FailureStop)

// ParseOnFailure returns the stored form of on_failure.
func ParseOnFailure(text string) (string, error) {
	switch text {
	case "", FailureContinue:
		return "", nil
	case FailureStop:
		return text, nil
	}
	return "", errOnFailure
}

// Stops reports whether items after a failed one end.
func (p *Plan) Stops() bool { return p.OnFailure == FailureStop }

func (p *Plan) checkOrder() error {
	if p.OnFailure != "" && p.OnFailure != FailureStop {
		return fieldError("on_failure", "%v; this is %.40q", errOnFailure, p.OnFailure)
	}
	if !p.Order.Set() {
		if p.OnFailure != "" {
			return fieldError("on_failure", "nothing follows an item that failed when items have no order; set order_by, like "+
				"order_by: customer, or leave this out")
		}
		return nil
	}
	if p.Order.By == "" {
		beside := "values"
		if p.Order.Partitions != 0 {
			beside = "partitions"
		}
		return fieldError(beside, "it goes with order_by, which is missing; name the field that items are put in order by, "+
			"like order_by: customer, or leave this out")
	}
	err := p.Order.Validate()
	if wrong, ok := errors.AsType[*order.SettingError](err); ok {
		return fieldError(wrong.Field, "%s", wrong.Problem)
	}
	if p.Canary > 0 {
		return fieldError("canary", "it does not go with order_by: its sample is spread over all items, and would be "+
			"processed before the items ahead of it; leave one of the two out")
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Barrier && len(s.Needs) > 0:
			return fieldError(stepField(i)+".barrier", "it does not go with order_by: the step waits for all items, and items "+
				"wait until it has done those before them; leave one of the two out")
		case s.Optional && p.Stops():
			return fieldError(stepField(i)+".optional", "it does not go with on_failure: stop, since what comes after the step "+
				"would go on for items that are ended; leave one of the two out")
		}
	}
	return nil
}

// Ordered returns a valid plan with each step after those it needs, and otherwise in the given order.
func (p *Plan) Ordered() *Plan {
	out := p.clone()
	rest, placed := out.Steps, map[string]bool{}
	out.Steps = make([]Step, 0, len(rest))
	for len(rest) > 0 {
		next := slices.IndexFunc(rest, func(s Step) bool {
			return !slices.ContainsFunc(s.Needs, func(need string) bool { return !placed[need] })
		})
		if next < 0 {
			panic("gather: Ordered of a plan whose steps wait for each other")
		}
		placed[rest[next].Name] = true
		out.Steps = append(out.Steps, rest[next])
		rest = slices.Delete(rest, next, next+1)
	}
	return out
}
