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

// Fail returns the error of an item that trying again would not help.
func Fail(code, format string, args ...any) error {
	return NewSlotError(code, fmt.Sprintf(format, args...), false)
}

// Retry returns an error like Fail's which says that trying again could help.
func Retry(code, format string, args ...any) error {
	return NewSlotError(code, fmt.Sprintf(format, args...), true)
}

// NewSlotError returns the error of an item, with code and message as they may be sent.
func NewSlotError(code, message string, retry bool) *SlotError {
	return &SlotError{Code: cleanCode(code), Message: cleanMessage(message), Retry: retry}
}

// AsSlotError turns what a handler returned into what is sent. An error that is not of Fail or Retry has code
// CodeHandlerError and is retryable as plain says, unless it comes from the context: then the handler was cut short.
func AsSlotError(ctx context.Context, err error, plain bool) *SlotError {
	var slot *SlotError
	switch {
	case errors.As(err, &slot):
		message := slot.Message
		if err.Error() != slot.Error() { // wrapped: what was added around it is worth reading
			message = err.Error()
		}
		return NewSlotError(slot.Code, message, slot.Retry)
	case IsCut(ctx, err):
		return CutShort(ctx)
	default:
		return NewSlotError(CodeHandlerError, err.Error(), plain)
	}
}

// IsCut reports whether an error comes from the end of ctx.
func IsCut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// ErrShutdown is the cause with which a handler's context is cancelled when draining took too long.
var ErrShutdown = errors.New("the service is shutting down")

// CutShort says why ctx has ended, as a retryable failure.
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

// Panicked describes a recovered panic. The stack is for the log only: it never leaves the service.
func Panicked(value any, retry bool) (failure *SlotError, stack string) {
	return NewSlotError(CodePanic, fmt.Sprintf("the handler panicked: %v", value), retry), firstFrames(debug.Stack())
}

// firstFrames returns the frames of a stack from the one that panicked on.
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

// AppendError writes the error of a slot.
func AppendError(b []byte, e *SlotError) []byte {
	b = append(b, `{"code":`...)
	b = AppendString(b, e.Code)
	b = append(b, `,"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"retry":`...)
	b = strconv.AppendBool(b, e.Retry)
	return append(b, '}')
}

// Codes of the errors that the SDK itself reports. A service's own codes should differ.
const (
	CodeHandlerError   = "handler_error"       // the handler returned an error of its own; retryable for a chunk only
	CodePanic          = "panic"               // the handler panicked
	CodeBadPayload     = "bad_payload"         // the payload does not fit the handler's input; not retryable
	CodeBadPart        = "bad_part"            // a part does not fit what the handler reads it as; not retryable
	CodeBadResult      = "bad_result"          // the result cannot be written; not retryable
	CodeResultTooLarge = "result_too_large"    // over MaxResult, or over a message for who is no node; not retryable
	CodeBadRequest     = "bad_request"         // the request could not be read; not retryable
	CodeTimeout        = "timeout"             // the handler did not end in time; retryable
	CodeShutdown       = "shutdown"            // the service stopped before it got to the rest; retryable
	CodeHeldTooLarge   = "held_too_large"      // the chunk's results do not fit what a wrapper holds; not retryable
	CodeBadQuery       = "bad_query"           // what a flow asks cannot be written as JSON; not retryable
	CodeQueryTooLarge  = "query_too_large"     // what a flow asks does not fit one message; not retryable
	CodeBadAnswer      = "bad_answer"          // an answer does not fit the flow's type; not retryable
	CodeUnanswered     = "unanswered"          // an endpoint left the item out that a flow has asked; retryable
	CodeBadState       = "bad_state"           // a flow's state cannot be written as JSON; not retryable
	CodeStateTooLarge  = "state_too_large"     // a flow's state is over MaxState; not retryable
	CodeNoNextStage    = "no_next_stage"       // the last stage of a flow asks, or goes on; not retryable
	CodeFlowFull       = "flow_full"           // there is no room for the state of a chunk; retryable
	CodeFlowChanged    = "flow_changed"        // a chunk was suspended by another version of the flow; retryable
	CodeStackTooDeep   = "stack_too_deep"      // over MaxStack endpoints would wait for one another; not retryable
	CodeOverloaded     = "overloaded"          // a direct request found the service busy; retryable
	CodeDeliveries     = "too_many_deliveries" // the chunk was delivered many times and never answered; retryable
)

// Reasons of a MalformedError. They are stable: quarantine lists and metrics carry them.
const (
	ReasonSubject  = "subject"  // the subject names no endpoint
	ReasonVersion  = "version"  // Tranche-Version is missing or of another major version
	ReasonHeader   = "header"   // a header is missing or unreadable
	ReasonEncoding = "encoding" // the Content-Encoding is unknown or the body does not fit it
	ReasonTooLarge = "too_large"
	ReasonDepth    = "depth"
	ReasonTooMany  = "too_many" // more slots or items than a slice can have
	ReasonJSON     = "json"     // the body is not valid JSON, or not valid UTF-8
	ReasonSlot     = "slot"     // a slot or an item is not of the described shape
	ReasonStack    = "stack"    // too many endpoints wait for one another
	ReasonFinal    = "final"    // Tranche-Final contradicts the body
	ReasonPiece    = "piece"    // a piece of a result is not of the described shape
)

// MalformedError is returned for a message that cannot be understood. Nothing of it may be used.
type MalformedError struct {
	Reason string // one of the Reason constants
	Detail string
	// Run and Slice are what the headers say, as far as they could be read; otherwise zero.
	Run, Slice uuid.UUID
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed message (%s): %s", e.Reason, e.Detail)
}

// Malformed returns a MalformedError.
func Malformed(reason, format string, args ...any) *MalformedError {
	return &MalformedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// About adds what the headers said to a MalformedError.
func About(meta Meta, err error) error {
	if bad, ok := errors.AsType[*MalformedError](err); ok {
		bad.Run, bad.Slice = meta.Run, meta.Slice
	}
	return err
}
