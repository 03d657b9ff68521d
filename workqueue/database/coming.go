package database

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Coming reports whether an error says that PostgreSQL cannot be used yet, and in what words: it starts up, recovers
// or shuts down, has no connection left, takes no writes, or nobody answers where it should be. That may pass by
// itself. What is wrong with who asks, or for what (a password, the name of a database, TLS), does not.
func Coming(err error) (why string, coming bool) {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if pg.Code == "08P01" {
			return comingByPooler(pg.Message)
		}
		return comingByCode(pg.Code)
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
		return "takes no writes yet (target_session_attrs)", true // no server has been promoted
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return "", false // files that it names are read then, too
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "has no address yet (the name " + dns.Name + " is not known)", true // of a container that is not up
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "does not answer", true
	}
	for _, passing := range []error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH,
		syscall.ENOENT,              // the socket of a server that is not up
		io.EOF, io.ErrUnexpectedEOF, // killed as it answered; or a proxy before one that is not up
	} {
		if errors.Is(err, passing) {
			return "is not there", true
		}
	}
	return "", false
}

// comingByCode goes by SQLSTATE.
func comingByCode(code string) (why string, coming bool) {
	switch code {
	case "57P03": // cannot_connect_now
		return "is starting up, or recovering", true
	case "57P01", "57P02": // admin_shutdown, crash_shutdown
		return "is shutting down", true
	case readOnly:
		return "takes no writes", true // a standby, or default_transaction_read_only
	case "53300": // too_many_connections
		return "has no connection left", true
	case "08000", "08001", "08003", "08006": // connections that were lost or could not be made, say poolers
		return "is not there", true
	}
	return "", false
}

// comingByPooler goes by what PgBouncer says of its own failures, which have the SQLSTATE of a protocol violation, one
// and all: also that it knows no such database. Those that pass bear the names of its settings.
func comingByPooler(message string) (why string, coming bool) {
	for _, said := range []struct{ part, why string }{
		{"server_login_retry", "is not there, says its pooler"},
		{"client_login_timeout", "is not there, says its pooler"},
		{"cannot connect to server", "is not there, says its pooler"},
		{"query_wait_timeout", "does not answer its pooler"},
		{"max_client_conn", "has no connection left, says its pooler"},
		{"max_db_client_connections", "has no connection left, says its pooler"},
		{"max_user_client_connections", "has no connection left, says its pooler"},
		{"shutting down", "has a pooler that is shutting down"},
	} {
		if strings.Contains(message, said.part) {
			return said.why, true
		}
	}
	return "", false
}
