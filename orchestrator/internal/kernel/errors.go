package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
)

// ReadTimeout bounds a read from PostgreSQL: a connection that has gone silent is given up after it.
const ReadTimeout = 15 * time.Second

// CodeItemTooLarge is the error code of an item that fits in no request.
const CodeItemTooLarge = "item_too_large"

// TooLarge says that an item does not fit a message, with the parts that it needs.
func (k *Kernel) TooLarge(inputs []workqueue.StepInput) string {
	return fmt.Sprintf("the item%s is larger than a message may be: max_payload of the NATS server is %d bytes; "+
		"make the item smaller or raise max_payload (16 MiB count)", withParts(inputs), k.NC.MaxPayload())
}

// withParts names the parts that make an item large.
func withParts(inputs []workqueue.StepInput) string {
	if len(inputs) == 0 {
		return ""
	}
	names := make([]string, len(inputs))
	for i := range inputs {
		names[i] = inputs[i].Name
	}
	return " with its parts (" + strings.Join(names, ", ") + ")"
}

// SlotError is an error of a message as the store has them.
func SlotError(e *wire.SlotError) *workqueue.SlotError {
	if e == nil {
		return nil
	}
	return &workqueue.SlotError{Code: e.Code, Message: e.Message, Retry: e.Retry}
}

// CodeDeadline is the error code of a chunk, or an item, whose time was over.
const CodeDeadline = "deadline"

// IsEnd reports whether an error says no more than that a context has ended.
func IsEnd(err error) bool {
	_, own := errors.AsType[*wire.SlotError](err)
	return !own && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// TimeOverError is the cause with which the context of a call ends whose time is over.
type TimeOverError struct{ Limit time.Duration }

func (e TimeOverError) Error() string { return fmt.Sprintf("it did not end within %s", e.Limit) }

// Is makes it a context.DeadlineExceeded.
func (TimeOverError) Is(target error) bool { return target == context.DeadlineExceeded }

// ErrSessionGone ends what is under way for a session that is over.
var ErrSessionGone = errors.New("the session of the claim is over")
