package stream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// LoginRefused reports whether an error is a NATS server's refusal of the user.
func LoginRefused(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// UserRefused says what NATS refuses the user of a connection without which nothing is sent: to log in, to make a stream, or
// to publish to one. Empty: nothing that is known.
func UserRefused(nc *nats.Conn) string {
	if !nc.IsConnected() {
		if err := nc.LastError(); LoginRefused(err) {
			return fmt.Sprintf("NATS refuses its user (%v)", err)
		}
		return ""
	}
	if subjects := PermissionsOf(nc).unwritable(); len(subjects) > 0 {
		return "NATS denies its user to publish to " + strings.Join(subjects, ", ")
	}
	return ""
}

// unwritable are the subjects of streams, and those for making one, that the user was lately denied to publish to.
func (p *Permissions) unwritable() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]bool{}
	for _, d := range p.denied {
		if d.err.Op == OpPublish && time.Since(d.last) < denialLife &&
			(!strings.HasPrefix(d.subject, wire.APIPrefix) || strings.HasPrefix(d.subject, wire.APIPrefix+"STREAM.CREATE.")) {
			found[d.err.Subject] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
