package trackers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
)

// Refused returns what is told of an error that the caller can do something about: what was asked is wrong, or does not
// fit the state of things. It returns nil for any other.
func Refused(err error) *fanout.Error {
	if bad, ok := errors.AsType[*fanout.Error](err); ok {
		return bad
	}
	if bad, ok := errors.AsType[*service.NotFoundError](err); ok {
		return noBatch(bad.Batch)
	}
	if bad, ok := errors.AsType[*service.ConflictError](err); ok {
		return &fanout.Error{Code: fanout.CodeKeyConflict, Place: bad.Field, Message: bad.Error()}
	}
	if bad, ok := errors.AsType[*service.RequestError](err); ok {
		return wrongMember(bad)
	}
	if bad, ok := errors.AsType[*tracker.StateError](err); ok {
		return wrongState(bad)
	}
	if errors.Is(err, tracker.ErrExists) {
		return &fanout.Error{Code: fanout.CodeBatchTaken, Place: "id", Message: "the id is taken by something else; leave " +
			"it out, or choose another UUID"}
	}
	return nil
}

func wrongMember(bad *service.RequestError) *fanout.Error {
	e := &fanout.Error{Code: fanout.CodeBadSetting, Place: bad.Field, Message: "it " + bad.Problem}
	switch bad.Field {
	case "items":
		e.Code = fanout.CodeTooManyItems
	case "ids":
		e.Code, e.Message = fanout.CodeTooMany, bad.Problem
	}
	return e
}

func wrongState(bad *tracker.StateError) *fanout.Error {
	if bad.State == service.StateExpired {
		return &fanout.Error{Code: fanout.CodeEnded, Value: bad.Batch.String(), Message: fmt.Sprintf(
			"tracker batch %s has expired: it was idle for too long; open another", bad.Batch)}
	}
	return &fanout.Error{Code: fanout.CodeNotOpen, Value: bad.Batch.String(), Message: fmt.Sprintf(
		"tracker batch %s is %s, and takes no more items; add them before the seal, or to another batch", bad.Batch,
		bad.State)}
}

// refused makes of any error what a caller over NATS is told; nil for none. What is not the caller's doing is logged.
func refused(log *zap.Logger, err error) *fanout.Error {
	switch bad := Refused(err); {
	case err == nil:
		return nil
	case bad != nil:
		return bad
	case away(err):
		return &fanout.Error{Code: fanout.CodeUnavailable, Message: "PostgreSQL cannot be reached, or is too slow; ask again"}
	}
	log.Error("a request to the tracker service failed", zap.Error(err))
	return &fanout.Error{Code: fanout.CodeInternal, Message: "something went wrong inside; the log of tranche serve " +
		"says what"}
}

// away reports whether PostgreSQL cannot be reached, cut the connection, is shutting down (57), is out of resources
// (53), or takes too long, also because others hold what is needed (55P03).
func away(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "53") || strings.HasPrefix(said.Code, "57") || said.Code == "55P03"
	}
	_, cannotConnect := errors.AsType[*pgconn.ConnectError](err)
	_, cut := errors.AsType[net.Error](err)
	return cannotConnect || cut || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled)
}

// Status is the status of HTTP that goes with a code.
func Status(code fanout.Code) int {
	switch code {
	case fanout.CodeNoBatch:
		return http.StatusNotFound
	case fanout.CodeBatchTaken, fanout.CodeKeyConflict, fanout.CodeNotOpen, fanout.CodeEnded:
		return http.StatusConflict
	case fanout.CodeBusy, fanout.CodeUnavailable: // it is the server's doing, and not one caller's
		return http.StatusServiceUnavailable
	case fanout.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}

// checkName refuses a text that would mislead whoever reads it, or that PostgreSQL cannot store.
func checkName(place, text string) error {
	bad := &fanout.Error{Code: fanout.CodeBadSetting, Place: place, Value: echo(text)}
	switch {
	case !utf8.ValidString(text):
		bad.Message = "it is not valid UTF-8"
	case utf8.RuneCountInString(text) > fanout.MaxName:
		bad.Message = fmt.Sprintf("it has %d characters, and %d are allowed", utf8.RuneCountInString(text), fanout.MaxName)
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		bad.Message = fmt.Sprintf("%q has characters that cannot be printed; leave them out", echo(text))
	default:
		return nil
	}
	return bad
}
