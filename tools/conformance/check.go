package conformance

import (
	"context"
	"fmt"
	"slices"
)

// need is what a check cannot do without.
type need int

const (
	needContract need = 1 << iota // the endpoint obeys the orders of the contract
	needPrivate                   // the server is the suite's own
)

// check is one conversation with the service.
type check struct {
	name, about string
	section     string // of docs/protocol.md
	needs       need
	run         func(context.Context, *node) error
}

// mismatch is the error of a check that the service failed.
type mismatch struct{ expected, got string }

func (m *mismatch) Error() string { return fmt.Sprintf("expected %s, got %s", m.expected, m.got) }

// differs returns a mismatch.
func differs(expected, format string, args ...any) error {
	return &mismatch{expected, fmt.Sprintf(format, args...)}
}

// Check describes a check. Notice is what users notice of a service that fails it.
type Check struct {
	Name, About, Section string
	Level                Level
	Notice               string
}

// Checks lists all checks in the order in which they run.
func Checks() []Check {
	var list []Check
	wanted := demands()
	for _, c := range checks() {
		d := wanted[c.name]
		list = append(list, Check{c.name, c.about, c.section, d.level, d.notice})
	}
	return list
}

// Names lists the names of all checks.
func Names() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

// checks are in the order in which they run: the last ones leave nothing as it was.
func checks() []check {
	return slices.Concat(listChecks(), replyChecks(), encodingChecks(), returnChecks(), settleChecks(), refusalChecks(),
		deliveryChecks(), lateChecks(), discoveryChecks(), orderChecks(), laneChecks(), outsizeChecks(), lifeChecks())
}
