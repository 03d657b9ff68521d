package producers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// OpError says what is wrong with operations that were sent. None of them was added.
type OpError struct {
	Number  int    // of the operation, from 1; 0: of none
	Line    int    // of the input, from 1; 0: unknown
	Field   string // id, key, priority or payload; empty: none of these
	Problem string // what is wrong, and what is allowed
}

func (e *OpError) Error() string {
	field := ""
	if e.Field != "" {
		field = e.Field + ": "
	}
	switch {
	case e.Number == 0 && e.Line == 0:
		return e.Problem
	case e.Number == 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
	case e.Line == 0:
		return fmt.Sprintf("operation %d: %s%s", e.Number, field, e.Problem)
	}
	return fmt.Sprintf("operation %d (line %d): %s%s", e.Number, e.Line, field, e.Problem)
}

// TooManyError is returned for more operations, or bytes, than one add may bring. None was added.
type TooManyError struct {
	Bytes bool // too many of these
}

func (e *TooManyError) Error() string {
	if e.Bytes {
		return fmt.Sprintf("the operations have more than %d MiB; add them in several requests", MaxBytes>>20)
	}
	return fmt.Sprintf("there are more than %d operations; add them in several requests", MaxOps)
}

// OverloadedError is returned while the node has as much to add as it has room for. It passes.
type OverloadedError struct{}

func (*OverloadedError) Error() string {
	return fmt.Sprintf("this node has %d MiB of operations under way already; add them again a little later", MaxHeld>>20)
}

// isText reports whether PostgreSQL can store a text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// isData reports whether PostgreSQL did not like the data: classes 22 and 23 of its errors.
func isData(err error) bool {
	said, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(said.Code, "22") || strings.HasPrefix(said.Code, "23"))
}

// isAway reports whether PostgreSQL cannot be reached, is shutting down (57), out of resources (53), or too slow.
func isAway(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "53") || strings.HasPrefix(said.Code, "57")
	}
	_, unreached := errors.AsType[*pgconn.ConnectError](err)
	_, cut := errors.AsType[net.Error](err) // time-outs of a context are among them
	return unreached || cut || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed)
}
