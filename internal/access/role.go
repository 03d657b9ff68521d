package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role says what somebody may do. Each role may do what those before it may.
type Role string

// The roles, and None for what needs nobody.
const (
	None     Role = "none"     // of a route: open to everybody, also without a login
	Viewer   Role = "viewer"   // looks at everything
	Operator Role = "operator" // changes runs, items, plans, endpoints and dead letters
	Admin    Role = "admin"    // makes and revokes tokens, deletes plans
)

// Roles lists those that somebody can have, the weakest first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// Allows reports whether somebody with this role may do what needs another. A role that is none of ours allows nothing,
// and nobody is allowed what needs one.
func (r Role) Allows(needed Role) bool {
	if needed == None {
		return true
	}
	own, wanted := slices.Index(Roles(), r), slices.Index(Roles(), needed)
	return wanted >= 0 && own >= wanted
}

// ParseRole reads a role that somebody can have.
func ParseRole(text string) (Role, error) {
	if role := Role(text); slices.Contains(Roles(), role) {
		return role, nil
	}
	names := make([]string, 0, len(Roles()))
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return "", fmt.Errorf("the role %q is none; use one of %s", text, strings.Join(names, ", "))
}
