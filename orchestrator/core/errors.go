package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// ReadTimeout limits a read from PostgreSQL, after which a silent connection is abandoned.
const ReadTimeout = 15 * time.Second

// CodeItemTooLarge is the error code of an item that fits no request.
const CodeItemTooLarge = "item_too_large"

// CodeItemDamaged is the error code of an item that cannot be decrypted: a value of it was changed in the database.
const CodeItemDamaged = "item_damaged"

// Params returns the parameters of a run as a claim returned them, as JSON. After an error that wraps ErrDamaged no
// item of the run can be sent.
func (k *Core) Params(ctx context.Context, run workqueue.RunID, claimed []byte) ([]byte, error) {
	if claimed == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	params, err := k.Store.OpenParams(ctx, k.Store.Pool, run, claimed)
	if errors.Is(err, database.ErrDamaged) {
		err = fmt.Errorf("%w; start another run: tranche run start --from-run %s, with parameters", err, run)
	}
	return params, err
}

// TooLarge returns the message for an item that, with the results it needs, does not fit a NATS message.
func (k *Core) TooLarge(inputs []workqueue.StepInput) string {
	return fmt.Sprintf("the item%s is larger than a message may be: max_payload of the NATS server is %d bytes; "+
		"make the item smaller or raise max_payload (16 MiB count)", WithParts(inputs), k.NC.MaxPayload())
}

// WithParts names the parts of an item in a message.
func WithParts(inputs []workqueue.StepInput) string {
	if len(inputs) == 0 {
		return ""
	}
	names := make([]string, len(inputs))
	for i := range inputs {
		names[i] = inputs[i].Name
	}
	return " with its parts (" + strings.Join(names, ", ") + ")"
}

// SlotError returns the store's form of a wire error.
func SlotError(e *wire.SlotError) *workqueue.SlotError {
	if e == nil {
		return nil
	}
	return &workqueue.SlotError{Code: e.Code, Message: e.Message, Retry: e.Retry}
}

// CodeDeadline is the error code of a chunk, or an item, that timed out.
const CodeDeadline = "deadline"

// IsEnd reports whether an error only means that a context ended.
func IsEnd(err error) bool {
	_, own := errors.AsType[*wire.SlotError](err)
	return !own && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// DeadlineError is the cause with which the context of a timed-out call ends.
type DeadlineError struct{ Limit time.Duration }

func (e DeadlineError) Error() string { return fmt.Sprintf("it did not end within %s", e.Limit) }

// Is makes it match context.DeadlineExceeded.
func (DeadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// ErrSessionGone ends the work in progress of an expired session.
var ErrSessionGone = errors.New("the session of the claim expired")

// Retry calls f until it succeeds or ctx ends, with growing pauses.
func (k *Core) Retry(ctx context.Context, what string, f func(context.Context) error) error {
	return k.RetryUntil(ctx, what, f, k.Warn)
}

// Warn logs that something is retried.
func (k *Core) Warn(what string, err error, pause time.Duration) error {
	k.Log.Warn("cannot "+what+"; trying again", zap.Error(err), zap.Duration("in", pause))
	return nil
}

// RetryUntil is Retry, with failures passed to tell. An error from tell ends it.
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

// SameError is how long a leader task's repeated error is not logged again.
const SameError = time.Minute

// WithoutValues is the text of an error without what PostgreSQL quotes of rows.
func WithoutValues(err error) string {
	said, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || said.Code == "" || !slices.Contains([]string{"22", "23", "P0"}, said.Code[:2]) {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), said.Message, "its message is in the log at level debug")
}
