package pginbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

type chunkKey struct{}

// Tx returns the transaction of the chunk, given the context of a handler that an inbox wraps, or one made from it. It
// panics with any other: to write outside of the transaction is what the inbox is there to prevent. The inbox commits
// and rolls back; Begin makes a savepoint.
func Tx(ctx context.Context) pgx.Tx {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	if !ok {
		panic("pginbox.Tx: the context is not of a handler that an inbox wraps; register it with " +
			"endpoints.Wrap(inbox.Once()), and pass the handler's context on")
	}
	return handlersTx{c.tx}
}

// Done reports whether a stage of a flow has been through with an item before: it sent the item on, what it wrote for
// it is committed, and then the chunk came again. The stage must send the item on again and not write again. For items
// of endpoints that are not flows it is false, and with a context that Tx does not take.
func Done(ctx context.Context, ordinal int) bool {
	c, ok := ctx.Value(chunkKey{}).(*chunk)
	return ok && c.done[ordinal]
}

// handlersTx is a transaction that only the inbox may end.
type handlersTx struct{ pgx.Tx }

// errNotYours is the same for both ends of a transaction.
var errNotYours = errors.New("the inbox ends the chunk's transaction: return an error to roll back, nil to commit")

func (handlersTx) Commit(context.Context) error { return errNotYours }

func (handlersTx) Rollback(context.Context) error { return errNotYours }
