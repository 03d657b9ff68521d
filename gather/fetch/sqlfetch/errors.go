package sqlfetch

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/connections"
)

// Codes of the errors.
const (
	CodeBadStep     = "bad_step"         // the step's settings cannot be read by this version; not retryable
	CodeNoSource    = "no_source"        // this node does not have it; not retryable
	CodeBadQuery    = wire.CodeBadQuery  // the query is not one, or its columns are not those that the plan names
	CodeForbidden   = "forbidden"        // the source's role may not do it, or nobody may: it writes; not retryable
	CodeBadKey      = "bad_key"          // a key or value that the query cannot take; a chunk is halved
	CodeNotFound    = "not_found"        // no row of the key; not retryable
	CodeManyRows    = "many_rows"        // several rows of the key, with rows: one; not retryable
	CodeTooLarge    = "result_too_large" // not retryable
	CodeTooMuch     = "chunk_too_large"  // more rows or bytes than the source may give; a chunk is halved
	CodeTimeout     = "timeout"          // the query took too long; retryable
	CodeUnreachable = "unreachable"      // no connection, or one that broke; retryable
	CodeOverloaded  = "overloaded"       // the source has no connection left; retryable, and not held against items
	CodeUnavailable = "unavailable"      // a conflict, a lock, or a lack that may pass; retryable
	CodeSQLError    = "sql_error"        // any other error of the database; not retryable
	CodeBadResult   = wire.CodeBadResult // the database gave what is not JSON
)

// verdict is what an error of a query means.
type verdict struct {
	code  string
	retry bool
	whole bool // it is the same for all items: they all have it, instead of the chunk
}

// judge says what an error means.
func judge(err error) verdict {
	if _, ok := errors.AsType[*connections.RoleError](err); ok {
		return verdict{CodeForbidden, false, true}
	}
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return ofState(said.Code)
	}
	timeout, ok := errors.AsType[net.Error](err)
	if ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return verdict{CodeTimeout, true, false}
	}
	return verdict{CodeUnreachable, true, false}
}

// ofState judges by PostgreSQL's five characters, of which the first two are the class.
func ofState(state string) verdict {
	switch {
	case state == "57014": // query_canceled, by its timeout
		return verdict{CodeTimeout, true, false}
	case state == "53300" || state == "53400": // too_many_connections
		return verdict{CodeOverloaded, true, true}
	case slices.Contains([]string{"08", "28", "3D", "57"}, state[:min(2, len(state))]): // connections, logins, shut-downs
		return verdict{CodeUnreachable, true, false}
	case slices.Contains([]string{"40", "53", "55", "58", "XX"}, state[:min(2, len(state))]): // conflicts, lacks
		return verdict{CodeUnavailable, true, false}
	case state == "42501" || state == "25006": // insufficient_privilege, read_only_sql_transaction
		return verdict{CodeForbidden, false, true}
	case strings.HasPrefix(state, "22"): // a value that does not fit
		return verdict{CodeBadKey, false, false}
	case slices.Contains([]string{"0A", "25", "3F", "42"}, state[:min(2, len(state))]):
		return verdict{CodeBadQuery, false, true}
	}
	return verdict{CodeSQLError, false, false}
}

// failed is what becomes of a chunk by an error of its query.
func (s *step) failed(req *fetch.Request, err error) ([]fetch.Slot, error) {
	if slot, ok := errors.AsType[*queryError](err); ok {
		return s.refused(req, verdict{slot.code, false, slot.whole}, slot.message)
	}
	return s.refused(req, judge(err), s.source.Explain(err))
}

// queryError is an error of ours about what a query returns.
type queryError struct {
	code    string
	whole   bool
	message string
}

func (e *queryError) Error() string { return e.message }

func (s *step) refused(req *fetch.Request, v verdict, message string) ([]fetch.Slot, error) {
	e := fetch.Clean(&wire.SlotError{Code: v.code, Message: message, Retry: v.retry})
	if !v.whole {
		return nil, e
	}
	slots := make([]fetch.Slot, len(req.Items))
	for i := range req.Items {
		slots[i] = fetch.Slot{Ordinal: req.Items[i].Ordinal, Err: e}
	}
	return slots, nil
}
