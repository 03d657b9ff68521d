package workqueue

import (
	"fmt"
	"strings"
)

// GuardRule says when the first outcomes of a step tell that it is no use to go on: of the first Within of them,
// Failures are of one code and would not pass by trying again. The zero rule holds nothing.
type GuardRule struct{ Failures, Within int }

// DefaultGuard is the rule of plans that do not say. A run with fewer items than Failures is never held by it: all of
// them are out before anybody could look.
func DefaultGuard() GuardRule { return GuardRule{Failures: 200, Within: 400} }

// maxGuarded bounds the outcomes that a guard looks at: recorders take turns until they are over.
const maxGuarded = 10_000

// GuardOff is the text of the zero rule.
const GuardOff = "off"

// ErrGuard says what a guard may be.
var ErrGuard = fmt.Errorf("want failures of so many first outcomes, like 200/400, at most %d; or %s", maxGuarded,
	GuardOff)

// ParseGuard reads a rule: "200/400", or "off". An empty text is [DefaultGuard].
func ParseGuard(text string) (GuardRule, error) {
	switch text {
	case "":
		return DefaultGuard(), nil
	case GuardOff:
		return GuardRule{}, nil
	}
	failures, within, found := strings.Cut(text, "/")
	if !found {
		return GuardRule{}, ErrGuard
	}
	n, err := WholeNumber(failures)
	m, err2 := WholeNumber(within)
	if err != nil || err2 != nil || n < 1 || m < n || m > maxGuarded {
		return GuardRule{}, ErrGuard
	}
	return GuardRule{Failures: n, Within: m}, nil
}

// Trips reports whether so many failures of one code among the first outcomes are enough. When outcomes are recorded
// together that are more than Within, they are enough in proportion.
func (g GuardRule) Trips(failures, outcomes int) bool {
	return g.Failures > 0 && failures >= g.Failures && failures*g.Within >= g.Failures*outcomes
}

// String writes the one form in which plans and runs keep a rule.
func (g GuardRule) String() string {
	if g == (GuardRule{}) {
		return GuardOff
	}
	return fmt.Sprintf("%d/%d", g.Failures, g.Within)
}

// CanonicalGuard reads a rule and writes it in its one form.
func CanonicalGuard(text string) (string, error) {
	if text == "" {
		return "", ErrGuard
	}
	rule, err := ParseGuard(text)
	return rule.String(), err
}
