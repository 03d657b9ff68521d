package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Fail returns a permanent error of an item.
func Fail(code, format string, args ...any) error {
	return NewSlotError(code, fmt.Sprintf(format, args...), false)
}

// Retry returns a retryable error of an item.
func Retry(code, format string, args ...any) error {
	return NewSlotError(code, fmt.Sprintf(format, args...), true)
}

// NewSlotError returns an item's error with code and message cleaned for sending.
func NewSlotError(code, message string, retry bool) *SlotError {
	return &SlotError{Code: cleanCode(code), Message: cleanMessage(message), Retry: retry}
}

// AsSlotError converts a handler's error. An error not made by Fail or Retry has CodeHandlerError and is retryable if
// plain is set. If ctx ended the handler, it is CutShort.
func AsSlotError(ctx context.Context, err error, plain bool) *SlotError {
	var slot *SlotError
	switch {
	case errors.As(err, &slot):
		message := slot.Message
		if err.Error() != slot.Error() { // the wrapping adds context
			message = err.Error()
		}
		return NewSlotError(slot.Code, message, slot.Retry)
	case IsCut(ctx, err):
		return CutShort(ctx)
	default:
		return NewSlotError(CodeHandlerError, err.Error(), plain)
	}
}

// IsCut reports whether an error was caused by the end of ctx.
func IsCut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// ErrShutdown is the cause of a handler's cancelled context when the drain timeout has expired.
var ErrShutdown = errors.New("the service is shutting down")

// CutShort returns why ctx ended, as a retryable error.
func CutShort(ctx context.Context) *SlotError {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrShutdown):
		return NewSlotError(CodeShutdown, cause.Error(), true)
	case errors.Is(cause, context.DeadlineExceeded):
		return NewSlotError(CodeTimeout, "the handler did not end within its time", true)
	default:
		return NewSlotError(CodeShutdown, fmt.Sprintf("the handler was cut short: %v", cause), true)
	}
}

// Panicked converts a recovered panic. Log the stack only; it must not leave the service.
func Panicked(value any, retry bool) (failure *SlotError, stack string) {
	return NewSlotError(CodePanic, fmt.Sprintf("the handler panicked: %v", value), retry), firstFrames(debug.Stack())
}

// firstFrames returns the frames below the panic.
func firstFrames(stack []byte) string {
	const frames = 6
	lines := strings.Split(string(stack), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "panic(") {
			lines = lines[min(i+2, len(lines)):]
			break
		}
	}
	return strings.Join(lines[:min(2*frames, len(lines))], "\n")
}

// AppendError appends an error as JSON.
func AppendError(b []byte, e *SlotError) []byte {
	b = append(b, `{"code":`...)
	b = AppendString(b, e.Code)
	b = append(b, `,"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"retry":`...)
	b = strconv.AppendBool(b, e.Retry)
	return append(b, '}')
}

// Codes of errors that the SDK reports. A service's own codes should differ.
const (
	CodeHandlerError    = "handler_error"       // another error of the handler; retryable only for a whole chunk
	CodePanic           = "panic"               // the handler panicked
	CodeBadPayload      = "bad_payload"         // the payload does not fit the handler's input; permanent
	CodeBadPart         = "bad_part"            // a part does not fit the type it is read as; permanent
	CodePartGone        = "part_gone"           // a part was redone since the request, or the request ended; retryable
	CodePartUnavailable = "part_unavailable"    // no node gives the bytes of a part; retryable
	CodeBadResult       = "bad_result"          // the result cannot be written; permanent
	CodeResultTooLarge  = "result_too_large"    // over MaxResult, or over a message when not for a node; permanent
	CodeBadRequest      = "bad_request"         // the request cannot be read; permanent
	CodeTimeout         = "timeout"             // the handler exceeded its timeout; retryable
	CodeShutdown        = "shutdown"            // the service stopped first; retryable
	CodeHeldTooLarge    = "held_too_large"      // the chunk's results exceed what a wrapper holds; permanent
	CodeBadQuery        = "bad_query"           // a flow's question cannot be written as JSON; permanent
	CodeQueryTooLarge   = "query_too_large"     // a flow's question exceeds one message; permanent
	CodeBadAnswer       = "bad_answer"          // an answer does not fit the flow's type; permanent
	CodeUnanswered      = "unanswered"          // an endpoint left out a flow's item; retryable
	CodeBadState        = "bad_state"           // a flow's state cannot be written as JSON; permanent
	CodeStateTooLarge   = "state_too_large"     // a flow's state exceeds MaxState; permanent
	CodeNoNextStage     = "no_next_stage"       // the last stage of a flow asks or moves on; permanent
	CodeFlowFull        = "flow_full"           // the stream has no space for a chunk's state; retryable
	CodeFlowChanged     = "flow_changed"        // another version of the flow suspended the chunk; retryable
	CodeStackTooDeep    = "stack_too_deep"      // over MaxStack endpoints would wait for one another; permanent
	CodeOverloaded      = "overloaded"          // the service is too busy for a direct request; retryable
	CodeDeliveries      = "too_many_deliveries" // delivered repeatedly without an answer; retryable
)

// Reasons of a MalformedError. They are stable, as lists and metrics use them.
const (
	ReasonSubject  = "subject"  // the subject names no endpoint
	ReasonVersion  = "version"  // Tranche-Version is missing or of another major version
	ReasonHeader   = "header"   // a header is missing or invalid
	ReasonEncoding = "encoding" // Content-Encoding is unknown or does not match the body
	ReasonTooLarge = "too_large"
	ReasonDepth    = "depth"
	ReasonTooMany  = "too_many" // more slots or items than a slice can have
	ReasonJSON     = "json"     // the body is not valid JSON or UTF-8
	ReasonSlot     = "slot"     // a slot or item has the wrong shape
	ReasonStack    = "stack"    // too many endpoints wait for one another
	ReasonFinal    = "final"    // Tranche-Final contradicts the body
	ReasonPiece    = "piece"    // a piece of a result has the wrong shape
)

// MalformedError is returned for an invalid message. No part of the message may be used.
type MalformedError struct {
	Reason string // one of the Reason constants
	Detail string
	// Run and Slice are from the headers, or zero if unreadable.
	Run, Slice uuid.UUID
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed message (%s): %s", e.Reason, e.Detail)
}

// Malformed returns a MalformedError.
func Malformed(reason, format string, args ...any) *MalformedError {
	return &MalformedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// About adds the IDs of the headers to a MalformedError.
func About(meta Meta, err error) error {
	if bad, ok := errors.AsType[*MalformedError](err); ok {
		bad.Run, bad.Slice = meta.Run, meta.Slice
	}
	return err
}
