package fetch

import (
	"context"
	"errors"

	"github.com/tranchehq/tranche/endpoints"
)

// ErrorOf turns what a function returned into an error slot. One of endpoints.Fail or endpoints.Retry keeps its code,
// the end of a context is endpoints.CodeTimeout and may pass, and any other has code endpoints.CodeHandlerError and may
// pass as retry says. Codes and messages of any make are cut to what is allowed.
func ErrorOf(err error, retry bool) *endpoints.SlotError {
	slot, ok := errors.AsType[*endpoints.SlotError](err)
	switch {
	case ok:
		message := slot.Message
		if err.Error() != slot.Error() { // wrapped: what was added around it is worth reading
			message = err.Error()
		}
		return clean(slot.Code, message, slot.Retry)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return clean(endpoints.CodeTimeout, err.Error(), true)
	default:
		return clean(endpoints.CodeHandlerError, err.Error(), retry)
	}
}

// Clean returns an error slot whose code and message are such as are allowed.
func Clean(e *endpoints.SlotError) *endpoints.SlotError { return clean(e.Code, e.Message, e.Retry) }

func clean(code, message string, retry bool) *endpoints.SlotError {
	of := endpoints.Fail
	if retry {
		of = endpoints.Retry
	}
	slot, _ := errors.AsType[*endpoints.SlotError](of(code, "%s", message)) // it is one
	return slot
}

// cut reports whether an error comes from the end of ctx.
func cut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}
