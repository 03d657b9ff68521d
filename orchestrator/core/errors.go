package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
)

// ReadTimeout bounds a read from PostgreSQL: a connection that has gone silent is given up after it.
const ReadTimeout = 15 * time.Second

// CodeItemTooLarge is the error code of an item that fits in no request.
const CodeItemTooLarge = "item_too_large"

// TooLarge says that an item does not fit a message, with the parts that it needs.
func (k *Core) TooLarge(inputs []workqueue.StepInput) string {
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

// DeadlineError is the cause with which the context of a call ends whose time is over.
type DeadlineError struct{ Limit time.Duration }

func (e DeadlineError) Error() string { return fmt.Sprintf("it did not end within %s", e.Limit) }

// Is makes it a context.DeadlineExceeded.
func (DeadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// ErrSessionGone ends what is in progress for a session that is over.
var ErrSessionGone = errors.New("the session of the claim expired")

// Retry calls f until it succeeds or ctx ends, with growing pauses.
func (k *Core) Retry(ctx context.Context, what string, f func(context.Context) error) error {
	return k.RetryUntil(ctx, what, f, k.Warn)
}

// Warn tells of something that is retried.
func (k *Core) Warn(what string, err error, pause time.Duration) error {
	k.Log.Warn("cannot "+what+"; trying again", zap.Error(err), zap.Duration("in", pause))
	return nil
}

// RetryUntil is retry, which ends with what tell returns when that is told of an error.
func (k *Core) RetryUntil(ctx context.Context, what string, f func(context.Context) error,
	tell func(what string, err error, pause time.Duration) error,
) error {
	pauses := backoff.Exponential{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		pause := pauses.Next()
		if ctx.Err() == nil {
			if end := tell(what, err, pause); end != nil {
				return end
			}
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// SameError is how long a leader task that fails in the same way over and over is not logged again.
const SameError = time.Minute
