package apicore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// PingTimeout is how long PostgreSQL has to answer a ping.
const PingTimeout = 2 * time.Second

// UnavailableError means that something the API needs is currently unavailable.
type UnavailableError struct{ detail string }

func (e *UnavailableError) Error() string { return e.detail }

// Away returns an UnavailableError.
func Away(detail string) *UnavailableError { return &UnavailableError{detail} }

var (
	// ErrNoNATS means that NATS is needed and unavailable.
	ErrNoNATS   = Away("NATS is not connected; the node tries to reach it, see --nats; try again soon")
	errNotReady = Away("the node has not started yet: it waits for PostgreSQL or JetStream; /readyz says more")
	errTooSlow  = Away("PostgreSQL or NATS did not answer before the deadline; try again soon")
)

// MayChange returns why nothing can be started or changed here: a node that is not ready keeps no session alive.
func (s *Core) MayChange() error {
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

func (s *Core) noNATS() *UnavailableError {
	if refused := stream.UserRefused(s.NC); refused != "" {
		return Away(refused + "; " + health.NATS.Advice("refused").Do)
	}
	return ErrNoNATS
}

func (s *Core) isReady() bool {
	select {
	case <-s.Node.Ready():
		return true
	default:
		return false
	}
}

type lack struct{ reason, text string }

// Unready reports for each reason why a node may be unready whether it applies, for metrics.
func (s *Core) Unready(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, PingTimeout)
	defer cancel()
	reasons := map[string]bool{}
	for _, reason := range []string{
		"postgresql", "read_only", "standby", "nats", "jetstream", "starting", "resource_exhausted",
	} {
		reasons[reason] = false
	}
	for _, lack := range s.lacks(ctx) {
		reasons[lack.reason] = true
	}
	return reasons
}

func (s *Core) lacks(ctx context.Context) (all []lack) {
	switch writable, waits, err := inspect.New(s.Store).Writable(ctx); {
	case err != nil:
		all = append(all, lack{"postgresql", "PostgreSQL does not answer"})
	case !writable:
		all = append(all, lack{"read_only", NoWrites})
	case waits:
		all = append(all, lack{"standby", health.StandbyText + "; " + health.Database.Advice("standby").Do})
	}
	if refused := stream.UserRefused(s.NC); refused != "" {
		all = append(all, lack{"nats", refused + "; " + health.NATS.Advice("refused").Do})
	} else if !s.NC.IsConnected() {
		all = append(all, lack{"nats", "NATS is not connected"})
	} else if stalled := s.Node.Stalled(); stalled != nil {
		all = append(all, lack{"jetstream", health.StalledText(stalled.Why) + "; " + health.NATS.Advice("stalled").Do})
	}
	switch {
	case s.Node.Session() == workqueue.SessionID{}:
		all = append(all, lack{"starting", s.unready("the node has no session yet")})
	case !s.isReady():
		all = append(all, lack{"starting", s.unready("the node has not set up its streams yet")})
	}
	for _, short := range s.Short() {
		all = append(all, lack{"resource_exhausted", short})
	}
	return all
}

// Ready serves /readyz and lists all that is missing.
func (s *Core) Ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), PingTimeout)
	defer cancel()
	var missing []string
	for _, lack := range s.lacks(ctx) {
		missing = append(missing, lack.text)
	}
	if _, known := access.From(r.Context()); len(missing) > 0 && s.Access != nil && !known {
		missing = []string{"it is not ready; its log says why, and so does this page to who is logged in"}
	}
	if len(missing) > 0 {
		WriteProblem(w, http.StatusServiceUnavailable, strings.Join(missing, "; "))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// away returns what an error says about PostgreSQL or NATS being unavailable or exhausted; nil for other errors.
func (s *Core) away(err error) *UnavailableError {
	if found, ok := errors.AsType[*UnavailableError](err); ok {
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
	case database.Unavailable(err):
		return Away("PostgreSQL does not answer at the moment; try again soon")
	default:
		return nil
	}
}

// Trouble is the node's latest failure.
type Trouble struct {
	What string
	Err  error
	At   time.Time
}

// troubleLasts is how long a trouble counts: a node that cannot work reports one every few seconds.
const troubleLasts = 15 * time.Second

// Codes of PostgreSQL and JetStream for exhausted resources.
const (
	pgDiskFull        = "53100"
	pgNoConnection    = "53300"
	pgReadOnly        = "25006"
	natsNoStorage     = 10047 // insufficient storage resources available
	natsNoResources   = 10023 // insufficient resources
	natsStorageIsOver = 10028 // resource limits exceeded for the account
)

// NoWrites is the text shown while PostgreSQL is read-only.
const NoWrites = "PostgreSQL takes no writes, so that nothing is sent or recorded and nodes cannot say that they " +
	"live; see whether it is a standby (SELECT pg_is_in_recovery()) that --database should not lead to, or was set so " +
	"(SHOW default_transaction_read_only); work continues automatically when it does"

func (s *Core) shortage(err error) string {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch said.Code {
		case pgDiskFull:
			return fmt.Sprintf("PostgreSQL's disk is full (%s); free some space, and work continues automatically",
				Echo(said.Message))
		case pgNoConnection:
			return "PostgreSQL has no connection left; raise its max_connections, or lower --max-connections of the nodes"
		case pgReadOnly:
			return NoWrites
		}
	}
	if slow, ok := errors.AsType[*database.SlowError](err); ok {
		return slow.Error() + "; see what it is busy with (pg_stat_activity), and whether what compiles statements (jit) " +
			"is off for the role of Tranche"
	}
	if said, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch said.ErrorCode {
		case natsNoStorage, natsNoResources, natsStorageIsOver:
			need := ""
			if s.config.StreamBytes != nil {
				need = fmt.Sprintf(": together they need %.1f GiB on each server that keeps them",
					float64(s.config.StreamBytes())/(1<<30))
			}
			return "JetStream has no room for the streams (" + Echo(said.Description) + ")" + need +
				"; free space on the disk of NATS, raise its max_file_store, or give the streams less with `tranche streams set`"
		}
	}
	return ""
}

func (s *Core) trouble() (Trouble, bool) {
	if s.config.Trouble == nil {
		return Trouble{}, false
	}
	t, ok := s.config.Trouble()
	return t, ok && time.Since(t.At) < troubleLasts
}

// Short lists exhausted resources by the node's latest failure.
func (s *Core) Short() []string {
	if t, ok := s.trouble(); ok {
		if found := s.shortage(t.Err); found != "" {
			return []string{found}
		}
	}
	return nil
}

func (s *Core) unready(what string) string {
	if t, ok := s.trouble(); ok && s.shortage(t.Err) == "" && !errors.Is(t.Err, context.Canceled) {
		return fmt.Sprintf("%s (%s: %s)", what, t.What, Cut(t.Err.Error(), 3*MaxEchoed))
	}
	return what
}
