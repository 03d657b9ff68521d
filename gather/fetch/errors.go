package fetch

import (
	"context"
	"errors"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// ErrorOf turns what a function returned into an error slot. One of wire.Fail or wire.Retry keeps its code,
// the end of a context is wire.CodeTimeout and may pass, and any other has code wire.CodeHandlerError and may
// pass as retry says. Codes and messages of any make are cut to what is allowed.
func ErrorOf(err error, retry bool) *wire.SlotError {
	slot, ok := errors.AsType[*wire.SlotError](err)
	switch {
	case ok:
		message := slot.Message
		if err.Error() != slot.Error() { // wrapped: what was added around it is worth reading
			message = err.Error()
		}
		return clean(slot.Code, message, slot.Retry)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return clean(wire.CodeTimeout, err.Error(), true)
	default:
		return clean(wire.CodeHandlerError, err.Error(), retry)
	}
}

// Clean returns an error slot whose code and message are such as are allowed.
func Clean(e *wire.SlotError) *wire.SlotError { return clean(e.Code, e.Message, e.Retry) }

func clean(code, message string, retry bool) *wire.SlotError {
	of := wire.Fail
	if retry {
		of = wire.Retry
	}
	slot, _ := errors.AsType[*wire.SlotError](of(code, "%s", message)) // it is one
	return slot
}

// cut reports whether an error comes from the end of ctx.
func cut(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}
