package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// pingTimeout is how long PostgreSQL has to say that it is there.
const pingTimeout = 2 * time.Second

// awayError is about something the API needs that is not there at the moment.
type awayError struct{ detail string }

func (e *awayError) Error() string { return e.detail }

// away is an error about something that is not there at the moment.
func away(detail string) *awayError { return &awayError{detail} }

var (
	errNoNATS   = away("NATS is not connected; the node tries to reach it, see --nats; try again soon")
	errNotReady = away("the node has not started yet: it waits for PostgreSQL or JetStream; /readyz says more")
	errTooSlow  = away("PostgreSQL or NATS has not answered in time; try again soon")
)

// mayChange reports why this caller cannot start or change anything: a node that is not ready keeps no session alive.
func (s *Kernel) mayChange(actor string) error {
	if err := checkText("header "+ActorHeader, actor, maxActorBytes); err != nil {
		return err
	}
	switch {
	case s.isReady():
		return nil
	case !s.NC.IsConnected():
		return errNoNATS
	}
	if short := s.short(); len(short) > 0 {
		return away("the node has not started yet: " + short[0])
	}
	return errNotReady
}

func (s *Kernel) isReady() bool {
	select {
	case <-s.node.Ready():
		return true
	default:
		return false
	}
}

// ready says all that is missing.
func (s *Kernel) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	var missing []string
	if inspect.New(s.store).Ping(ctx) != nil {
		missing = append(missing, "PostgreSQL does not answer")
	}
	if !s.NC.IsConnected() {
		missing = append(missing, "NATS is not connected")
	}
	switch {
	case s.node.Session() == workqueue.SessionID{}:
		missing = append(missing, s.unready("the node has no session yet"))
	case !s.isReady():
		missing = append(missing, s.unready("the node has not set up its streams yet"))
	}
	missing = append(missing, s.short()...)
	if _, known := access.From(r.Context()); len(missing) > 0 && s.access != nil && !known {
		missing = []string{"it is not ready; its log says why, and so does this page to who is logged in"}
	}
	if len(missing) > 0 {
		writeProblem(w, http.StatusServiceUnavailable, strings.Join(missing, "; "))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// away returns what an error says about PostgreSQL or NATS being away, or out of something; nil when it is about
// something else.
func (s *Kernel) away(err error) *awayError {
	if found, ok := errors.AsType[*awayError](err); ok {
		return found
	}
	if found := s.shortage(err); found != "" {
		return away(found)
	}
	switch {
	case errors.Is(err, workqueue.ErrSessionLost):
		return away("this node had lost touch with PostgreSQL and lost its session; try again in a few seconds")
	case fromNATS(err):
		return errNoNATS
	case fromPostgres(err):
		return away("PostgreSQL does not answer at the moment; try again soon")
	default:
		return nil
	}
}
