package sqlfetch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
)

// chunkBytes bounds the values of a chunk in memory.
const chunkBytes = 64 << 20

type found struct {
	rows  int
	data  []byte // the value; of many rows the list without its end
	large int    // bytes of a value that is too large
	null  bool   // bytea that is NULL
}

func (s *step) read(ctx context.Context, c *pgx.Conn, req *fetch.Request, params [][]byte) ([]fetch.Slot, error) {
	columns, err := s.describe(ctx, c)
	if err != nil {
		return nil, err
	}
	results := make(map[string]*found, len(req.Items))
	for i := range req.Items {
		results[req.Items[i].Key] = &found{}
	}
	// The result is binary; text and bytea are the same in it.
	rows := c.PgConn().ExecParams(ctx, columns.sql, params, types(), nil, []int16{1})
	bad := s.take(rows.NextRow, rows.Values, results)
	if bad != nil {
		_ = c.Close(ctx) // rather than read the rest
		return nil, bad
	}
	if _, err := rows.Close(); err != nil {
		return nil, err
	}
	slots := make([]fetch.Slot, len(req.Items))
	for i := range req.Items {
		slots[i] = s.slot(&req.Items[i], results[req.Items[i].Key], columns)
	}
	return slots, nil
}

// take reads the rows within the limits of a chunk.
func (s *step) take(next func() bool, values func() [][]byte, results map[string]*found) error {
	maxRows := s.MaxRows
	if s.source.MaxRows > 0 {
		maxRows = min(maxRows, s.source.MaxRows)
	}
	maxBytes := min(cmp.Or(int(s.source.MaxBytes), chunkBytes), chunkBytes)
	held := 0
	for rows := 1; next(); rows++ {
		row := values()
		held += len(row[0]) + len(row[2])
		switch {
		case rows > maxRows:
			return &queryError{CodeTooMuch, false, fmt.Sprintf("source %s: the query returns more than %d rows for the chunk; "+
				"max_rows, and that of the source, say how many are taken", s.Source, maxRows)}
		case held > maxBytes:
			return &queryError{CodeTooMuch, false, fmt.Sprintf("source %s: the query returns more than %v for the chunk",
				s.Source, workqueue.Bytes(maxBytes))}
		}
		if of := results[string(row[0])]; of != nil && row[0] != nil {
			s.add(of, row)
		}
	}
	return nil
}

// add adds a row to an item's result. The connection owns the row's memory.
func (s *step) add(of *found, row [][]byte) {
	of.rows++
	size := 0
	if row[1] != nil { // the database counts in its own encoding
		size = max(int(int32(binary.BigEndian.Uint32(row[1]))), len(row[2]))
	}
	switch {
	case size > int(s.MaxBytes) || len(of.data)+size > int(s.MaxBytes) && s.Rows == gather.RowsMany:
		of.large, of.data = max(size, len(of.data)+size), nil
	case of.large > 0:
	case s.Rows == gather.RowsMany:
		of.data = append(append(of.data, separator(of.rows)), row[2]...)
	default:
		of.data, of.null = bytes.Clone(row[2]), row[2] == nil
	}
}

func separator(row int) byte {
	if row == 1 {
		return '['
	}
	return ','
}

func (s *step) slot(item *fetch.Item, of *found, columns *columns) fetch.Slot {
	fails := func(code, format string, args ...any) fetch.Slot {
		e := wire.SlotError{Code: code, Message: fmt.Sprintf("source %s: ", s.Source) + fmt.Sprintf(format, args...)}
		return fetch.Slot{Ordinal: item.Ordinal, Err: fetch.Clean(&e)}
	}
	slot := fetch.Slot{Ordinal: item.Ordinal, Data: of.data}
	switch {
	case of.large > 0:
		return fails(CodeTooLarge, "the value has %d bytes; %d are allowed (max_bytes)", of.large, int(s.MaxBytes))
	case s.Rows == gather.RowsMany && of.rows == 0:
		slot.Data = []byte("[]")
	case s.Rows == gather.RowsMany:
		slot.Data = append(slot.Data, ']')
	case of.rows == 0:
		return fails(CodeNotFound, "no row of the key")
	case of.rows > 1:
		return fails(CodeManyRows, "%d rows of the key, and the step wants one (rows)", of.rows)
	case columns.bytes && of.null:
		return fails(CodeNotFound, "the value of the key is null")
	case columns.bytes:
		slot.ContentType = cmp.Or(s.ContentType, wire.DefaultBinaryType)
		return slot
	}
	if flaw := wire.FlawOf(slot.Data, wire.DefaultMaxDepth); flaw != nil {
		at := ""
		if flaw.At != "" {
			at = fmt.Sprintf(" (%.200s)", flaw.At)
		}
		hint := ""
		if flaw.Code == wire.CodeDuplicateName {
			hint = " (::jsonb keeps the last of such values)"
		}
		return fails(flaw.Code, "it gave JSON %s%s; convert it in the query%s", flaw.Words, at, hint)
	}
	return slot
}

// Codes of errors, in addition to those of wire.Flaw.
const (
	CodeBadStep     = "bad_step"         // settings unknown to this version; permanent
	CodeNoSource    = "no_source"        // this node lacks it; permanent
	CodeBadQuery    = wire.CodeBadQuery  // the query is invalid, or lacks the plan's columns
	CodeForbidden   = "forbidden"        // the role lacks the privilege, or the query writes; permanent
	CodeBadKey      = "bad_key"          // a key or value that the query rejects; a chunk is halved
	CodeNotFound    = "not_found"        // no row for the key; permanent
	CodeManyRows    = "many_rows"        // several rows for the key, with rows: one; permanent
	CodeTooLarge    = "result_too_large" // permanent
	CodeTooMuch     = "chunk_too_large"  // more rows or bytes than allowed; a chunk is halved
	CodeTimeout     = "timeout"          // the query took too long; retryable
	CodeUnreachable = "unreachable"      // no connection, or a broken one; retryable
	CodeOverloaded  = "overloaded"       // the source has no free connection; retryable, not counted against items
	CodeUnavailable = "unavailable"      // a conflict, lock or temporary shortage; retryable
	CodeSQLError    = "sql_error"        // any other database error; permanent
	CodeBadResult   = wire.CodeBadResult // the database returned invalid JSON
)

type verdict struct {
	code  string
	retry bool
	whole bool // applies to every item instead of the chunk
}

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

// ofState evaluates PostgreSQL's SQLSTATE, whose first two characters are the class.
func ofState(state string) verdict {
	switch {
	case state == "57014": // query_canceled, by the timeout
		return verdict{CodeTimeout, true, false}
	case state == "53300" || state == "53400": // too_many_connections
		return verdict{CodeOverloaded, true, true}
	case slices.Contains([]string{"08", "28", "3D", "57"}, state[:min(2, len(state))]): // connections, logins, shutdowns
		return verdict{CodeUnreachable, true, false}
	case slices.Contains([]string{"40", "53", "55", "58", "XX"}, state[:min(2, len(state))]): // conflicts, shortages
		return verdict{CodeUnavailable, true, false}
	case state == "42501" || state == "25006": // insufficient_privilege, read_only_sql_transaction
		return verdict{CodeForbidden, false, true}
	case state == "22021": // a database in SQL_ASCII: keys are UTF-8
		return verdict{wire.CodeNotUTF8, false, false}
	case strings.HasPrefix(state, "22"): // a value that does not fit
		return verdict{CodeBadKey, false, false}
	case slices.Contains([]string{"0A", "25", "3F", "42"}, state[:min(2, len(state))]):
		return verdict{CodeBadQuery, false, true}
	}
	return verdict{CodeSQLError, false, false}
}

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
