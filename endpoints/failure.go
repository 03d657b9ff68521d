package endpoints

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

func newSlotError(code, message string, retry bool) *SlotError {
	return &SlotError{Code: cleanCode(code), Message: cleanMessage(message), Retry: retry}
}

// asSlotError turns what a handler returned into what is sent. An error that is not of Fail or Retry has code
// CodeHandlerError and is retryable as plain says, unless it comes from the context: then the handler was cut short.
func asSlotError(ctx context.Context, err error, plain bool) *SlotError {
	var slot *SlotError
	switch {
	case errors.As(err, &slot):
		message := slot.Message
		if err.Error() != slot.Error() { // wrapped: what was added around it is worth reading
			message = err.Error()
		}
		return newSlotError(slot.Code, message, slot.Retry)
	case isCut(ctx, err):
		return cutShort(ctx)
	default:
		return newSlotError(CodeHandlerError, err.Error(), plain)
	}
}

// isCut reports whether an error comes from the end of ctx.
func isCut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// errShutdown is the cause with which a handler's context is cancelled when draining took too long.
var errShutdown = errors.New("the service is shutting down")

// cutShort says why ctx has ended, as a retryable failure.
func cutShort(ctx context.Context) *SlotError {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errShutdown):
		return newSlotError(CodeShutdown, cause.Error(), true)
	case errors.Is(cause, context.DeadlineExceeded):
		return newSlotError(CodeTimeout, "the handler did not end within its time", true)
	default:
		return newSlotError(CodeShutdown, fmt.Sprintf("the handler was cut short: %v", cause), true)
	}
}

// panicked describes a recovered panic. The stack is for the log only: it never leaves the service.
func panicked(value any, retry bool) (failure *SlotError, stack string) {
	return newSlotError(CodePanic, fmt.Sprintf("the handler panicked: %v", value), retry), firstFrames(debug.Stack())
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
