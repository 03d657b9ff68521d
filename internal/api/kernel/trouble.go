package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/workqueue/database"
)

// Trouble is the last thing that went wrong in the node.
type Trouble struct {
	What string
	Err  error
	At   time.Time
}

// troubleLasts is how long a trouble counts: a node that is kept from its work says so every few seconds.
const troubleLasts = 15 * time.Second

// Codes of PostgreSQL and JetStream for what is used up.
const (
	pgDiskFull        = "53100"
	pgNoConnection    = "53300"
	pgReadOnly        = "25006"
	natsNoStorage     = 10047 // insufficient storage resources available
	natsNoResources   = 10023 // insufficient resources
	natsStorageIsOver = 10028 // resource limits exceeded for the account
)

// NoWrites is told while PostgreSQL is read-only.
const NoWrites = "PostgreSQL takes no writes, so that nothing is sent or recorded and nodes cannot say that they " +
	"live; see whether it is a standby (SELECT pg_is_in_recovery()) that --database should not lead to, or was set so " +
	"(SHOW default_transaction_read_only); work goes on by itself when it takes them"

// shortage says what an error has found used up, and what helps; empty when it speaks of something else.
func (s *Kernel) shortage(err error) string {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch said.Code {
		case pgDiskFull:
			return fmt.Sprintf("PostgreSQL has no room left on its disk (%s); free some there, and work goes on by itself",
				Cut(said.Message, MaxEchoed))
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
			return "JetStream has no room for the streams (" + Cut(said.Description, MaxEchoed) + ")" + s.need() +
				"; free space on the disk of NATS, raise its max_file_store, or give the streams less with `tranche streams set`"
		}
	}
	return ""
}

func (s *Kernel) need() string {
	if s.config.StreamBytes == nil {
		return ""
	}
	size := float64(s.config.StreamBytes()) / (1 << 30)
	return fmt.Sprintf(": together they need %.1f GiB on each server that keeps them", size)
}

// trouble is what keeps the node from its work at the moment, as far as it is known.
func (s *Kernel) trouble() (Trouble, bool) {
	if s.config.Trouble == nil {
		return Trouble{}, false
	}
	t, ok := s.config.Trouble()
	return t, ok && time.Since(t.At) < troubleLasts
}

// Short lists what is used up, by what the node last met.
func (s *Kernel) Short() []string {
	if t, ok := s.trouble(); ok {
		if found := s.shortage(t.Err); found != "" {
			return []string{found}
		}
	}
	return nil
}

// unready says why a node that has not begun does not.
func (s *Kernel) unready(what string) string {
	if t, ok := s.trouble(); ok && s.shortage(t.Err) == "" && !errors.Is(t.Err, context.Canceled) {
		return fmt.Sprintf("%s (%s: %s)", what, t.What, Cut(t.Err.Error(), 3*MaxEchoed))
	}
	return what
}
