package kernel

import (
	"cmp"
	"net/http"

	"github.com/tranchehq/tranche/internal/access"
)

// noRoute stands for the route of a request that was refused before it had one.
const noRoute = "(none)"

// noteRoute says which route a request takes, for who measures; open, that everybody is an admin.
func noteRoute(w http.ResponseWriter, pattern string, open bool) {
	if timed, ok := w.(*timedWriter); ok {
		timed.route = pattern
	}
	if open {
		noteRole(w, access.Admin)
	}
}

// noteRole says of what role it is who makes a request, likewise.
func noteRole(w http.ResponseWriter, role access.Role) {
	if timed, ok := w.(*timedWriter); ok {
		timed.role = role
	}
}

// measure tells of a request that has ended.
func (t *timedWriter) measure(to Meter) {
	to.Asked(cmp.Or(t.route, noRoute), string(cmp.Or(t.role, access.None)), cmp.Or(t.status, http.StatusOK))
}
