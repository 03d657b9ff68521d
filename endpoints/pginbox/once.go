package pginbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Codes of the errors that the inbox itself reports.
const (
	// CodeInbox is of a chunk whose transaction could not begin, or be ended well. It is retryable.
	CodeInbox = "inbox"
	// CodeNeedsList is of items of a HandleEach endpoint, which an inbox cannot serve. It is not retryable.
	CodeNeedsList = "inbox_needs_list"
)

const (
	// rollbackTimeout bounds the end of a transaction whose chunk has ended.
	rollbackTimeout = 5 * time.Second
	// claimRounds bounds how often items are claimed that vanish from the memory in between, as it is pruned.
	claimRounds = 3
)

// Once returns the wrapper that runs a handler in the inbox's transaction. See the package's description.
func (i *Inbox) Once() endpoints.Wrapper { return i.once }

func (i *Inbox) once(ctx context.Context, w *endpoints.Work, next func(context.Context) error) error {
	items := w.Items()
	switch {
	case len(items) == 0:
		return next(ctx)
	case w.ByItem():
		return refuse(ctx, w, items)
	}
	// Read committed, whatever the database's default: what a claim has waited for must be seen by the statement after
	// it.
	tx, err := i.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return broken(ctx, "begin", err)
	}
	defer rollback(ctx, tx) // does nothing after a commit
	chunk := &chunk{sql: &i.sql, tx: tx, key: keyOf(w, items[0]), ordinals: ordinalsOf(items), claimed: map[int32]bool{}}
	known, err := chunk.claim(ctx)
	if err != nil {
		return broken(ctx, "claim the items", err)
	}
	if err := answer(ctx, w, known); err != nil {
		return err
	}
	if len(chunk.claimed)+len(chunk.done) == 0 {
		rollback(ctx, tx) // the connection is needed elsewhere
		return next(ctx)
	}
	// From here on answers wait for the commit. Those from memory do not: they are committed.
	w.Hold()
	if err := next(context.WithValue(ctx, chunkKey{}, chunk)); err != nil {
		return err
	}
	return chunk.end(ctx, w)
}

// refuse answers every item, so that a report says what is wrong.
func refuse(ctx context.Context, w *endpoints.Work, items []endpoints.ItemInfo) error {
	slots := make([]wire.Slot, len(items))
	for n, item := range items {
		slots[n] = wire.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{Code: CodeNeedsList,
			Message: fmt.Sprintf("endpoint %s uses HandleEach, whose items run at the same time, and pginbox, which has one "+
				"transaction for a chunk; use HandleList", w.Endpoint())}}
	}
	return answer(ctx, w, slots)
}

func answer(ctx context.Context, w *endpoints.Work, slots []wire.Slot) error {
	for _, slot := range slots {
		if err := w.Answer(slot); err != nil {
			return broken(ctx, "answer from memory", err)
		}
	}
	return nil
}

// broken returns what fails a chunk. Where the chunk's time is over, that is the reason.
func broken(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	return endpoints.Retry(CodeInbox, "the inbox of the service cannot %s: %v", doing, err)
}

// rollback ends a transaction even when ctx has ended.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // when it fails the connection is closed, and the server rolls back
}

// key is what the items of a chunk have in common.
type key struct {
	run        [16]byte
	place      string
	generation int32
}

func keyOf(w *endpoints.Work, item endpoints.ItemInfo) key {
	// run/step/ordinal/generation, and behind that what tells apart the questions of flows
	parts := strings.SplitN(item.IdempotencyKey(), "/", 5)
	place := fmt.Sprintf("%s:%d/%d", w.Endpoint(), w.Stage(), item.Step)
	if len(parts) == 5 {
		place += "/" + parts[4]
	}
	return key{run: item.Run, place: place, generation: int32(item.Generation)}
}

func ordinalsOf(items []endpoints.ItemInfo) []int32 {
	ordinals := make([]int32, len(items))
	for n, item := range items {
		ordinals[n] = int32(item.Ordinal)
	}
	return ordinals
}

// end stores the answers and commits. The outcome of a commit that fails may be unknown: then the chunk will be tried
// again, and answered from memory if it had committed.
func (c *chunk) end(ctx context.Context, w *endpoints.Work) error {
	slots, err := w.Answers()
	if err != nil {
		return broken(ctx, "read the answers", err)
	}
	if err := c.remember(ctx, slots, w.GoingOn()); err != nil {
		return broken(ctx, "store the answers", err)
	}
	if err := c.tx.Commit(ctx); err != nil {
		if errors.Is(err, pgx.ErrTxCommitRollback) {
			return broken(ctx, "commit", errors.New("a statement of the handler had failed; the handler must return its error"))
		}
		return broken(ctx, "commit", err)
	}
	return nil
}
