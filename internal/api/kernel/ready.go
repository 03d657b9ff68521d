package kernel

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// PingTimeout is how long PostgreSQL has to say that it is there.
const PingTimeout = 2 * time.Second

// AwayError is about something the API needs that is not there at the moment.
type AwayError struct{ detail string }

func (e *AwayError) Error() string { return e.detail }

// Away is an error about something that is not there at the moment.
func Away(detail string) *AwayError { return &AwayError{detail} }

var (
	// ErrNoNATS is told of what needs NATS while it is away.
	ErrNoNATS   = Away("NATS is not connected; the node tries to reach it, see --nats; try again soon")
	errNotReady = Away("the node has not started yet: it waits for PostgreSQL or JetStream; /readyz says more")
	errTooSlow  = Away("PostgreSQL or NATS has not answered in time; try again soon")
)

// MayChange reports why this caller cannot start or change anything: a node that is not ready keeps no session alive.
func (s *Kernel) MayChange(actor string) error {
	if err := CheckText("header "+ActorHeader, actor, MaxActorBytes); err != nil {
		return err
	}
	switch {
	case s.isReady():
		return nil
	case !s.NC.IsConnected() || stream.UserRefused(s.NC) != "":
		return s.noNATS()
	}
	if short := s.Short(); len(short) > 0 {
		return Away("the node has not started yet: " + short[0])
	}
	return errNotReady
}

// noNATS is told of what needs NATS while this node cannot reach it, or is refused.
func (s *Kernel) noNATS() *AwayError {
	if refused := stream.UserRefused(s.NC); refused != "" {
		return Away(refused + "; " + explain.RefusedRemedy)
	}
	return ErrNoNATS
}

func (s *Kernel) isReady() bool {
	select {
	case <-s.Node.Ready():
		return true
	default:
		return false
	}
}

// Ready says all that is missing.
func (s *Kernel) Ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), PingTimeout)
	defer cancel()
	var missing []string
	switch writable, err := inspect.New(s.Store).Writable(ctx); {
	case err != nil:
		missing = append(missing, "PostgreSQL does not answer")
	case !writable:
		missing = append(missing, NoWrites)
	}
	if refused := stream.UserRefused(s.NC); refused != "" {
		missing = append(missing, refused+"; "+explain.RefusedRemedy)
	} else if !s.NC.IsConnected() {
		missing = append(missing, "NATS is not connected")
	}
	switch {
	case s.Node.Session() == workqueue.SessionID{}:
		missing = append(missing, s.unready("the node has no session yet"))
	case !s.isReady():
		missing = append(missing, s.unready("the node has not set up its streams yet"))
	}
	missing = append(missing, s.Short()...)
	if _, known := access.From(r.Context()); len(missing) > 0 && s.Access != nil && !known {
		missing = []string{"it is not ready; its log says why, and so does this page to who is logged in"}
	}
	if len(missing) > 0 {
		WriteProblem(w, http.StatusServiceUnavailable, strings.Join(missing, "; "))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// away returns what an error says about PostgreSQL or NATS being away, or out of something; nil when it is about
// something else.
func (s *Kernel) away(err error) *AwayError {
	if found, ok := errors.AsType[*AwayError](err); ok {
		return found
	}
	if found := s.shortage(err); found != "" {
		return Away(found)
	}
	switch {
	case errors.Is(err, workqueue.ErrSessionLost):
		return Away("this node had lost touch with PostgreSQL and lost its session; try again in a few seconds")
	case fromNATS(err):
		return s.noNATS()
	case as[*database.HeldError](err) != nil:
		return Away(as[*database.HeldError](err).Error())
	case database.Contended(err):
		return Away("other transactions in PostgreSQL kept this from being done; try again soon")
	case fromPostgres(err):
		return Away("PostgreSQL does not answer at the moment; try again soon")
	default:
		return nil
	}
}
