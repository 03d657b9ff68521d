package kernel

import (
	"errors"
	"net/http"

	"github.com/tranchehq/tranche/internal/access"
)

// maxStrangers is how many requests may be under way at once that come from one address, which of IPv6 is a network of
// 64 bits, and of which it is not known who makes them: logins, pages, and the rest of bodies that were refused. Over
// HTTP/2 a browser asks for all files of the dashboard at once, more than a hundred, and several people may share one.
const maxStrangers = 512

// countStranger counts a request, until it has ended, unless it is known who makes it. It returns a BusyError when too
// many come from there already. Where nobody says who they are, none is a stranger.
func (s *Kernel) countStranger(w http.ResponseWriter, r *http.Request) error {
	timed, ok := w.(*timedWriter)
	if s.Access == nil || !ok || timed.known || timed.leave != nil || isProbe(r) {
		return nil
	}
	leave, err := s.Strangers.Take(access.NetworkOf(s.CallerAddress(r)).String())
	if busy, ok := errors.AsType[*access.BusyError](err); ok {
		busy.Strangers = true
		return busy
	}
	timed.leave = leave
	return nil
}

// isProbe says whether somebody only looks how the node is. Such a request has next to nothing to hold, and who watches
// over the node may share the address of strangers.
func isProbe(r *http.Request) bool {
	return (r.URL.Path == "/healthz" || r.URL.Path == "/readyz") && r.ContentLength == 0
}

// makeKnown says that it is known who makes a request.
func makeKnown(w http.ResponseWriter) {
	if timed, ok := w.(*timedWriter); ok {
		timed.known = true
	}
}

// left says that a request has ended.
func (t *timedWriter) left() {
	if t.leave != nil {
		t.leave()
	}
}
