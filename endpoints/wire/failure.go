package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
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
