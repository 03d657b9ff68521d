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

// chunk is the transaction of one chunk.
type chunk struct {
	sql      *statements
	tx       pgx.Tx
	key      key
	ordinals []int32
	claimed  map[int32]bool // items that are this chunk's to do
	done     map[int]bool   // items that an earlier transaction has sent on
}

// claim claims what is not remembered, and returns the answers to what is.
func (c *chunk) claim(ctx context.Context) (known []wire.Slot, err error) {
	open := c.ordinals
	for range claimRounds {
		fresh, err := c.insert(ctx, open)
		if err != nil {
			return nil, err
		}
		for _, ordinal := range fresh {
			c.claimed[ordinal] = true
		}
		if len(c.claimed)+len(c.done)+len(known) == len(c.ordinals) {
			return known, nil
		}
		remembered, err := c.recall(ctx, c.missing(open))
		if err != nil {
			return nil, err
		}
		known = append(known, remembered...)
		if len(c.claimed)+len(c.done)+len(known) == len(c.ordinals) {
			return known, nil
		}
		open = c.unknown(open, known) // pruned since the claim
	}
	return nil, errors.New("what is remembered of them keeps vanishing")
}

func (c *chunk) insert(ctx context.Context, ordinals []int32) ([]int32, error) {
	rows, err := c.tx.Query(ctx, c.sql.claim, c.key.run, c.key.place, c.key.generation, ordinals)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}

// missing returns those of ordinals that are not claimed.
func (c *chunk) missing(ordinals []int32) []int32 {
	rest := make([]int32, 0, len(ordinals))
	for _, ordinal := range ordinals {
		if !c.claimed[ordinal] {
			rest = append(rest, ordinal)
		}
	}
	return rest
}

// unknown returns those of ordinals that are neither claimed nor remembered.
func (c *chunk) unknown(ordinals []int32, known []wire.Slot) []int32 {
	have := make(map[int32]bool, len(known))
	for _, slot := range known {
		have[int32(slot.Ordinal)] = true
	}
	rest := ordinals[:0:0]
	for _, ordinal := range c.missing(ordinals) {
		if !have[ordinal] && !c.done[int(ordinal)] {
			rest = append(rest, ordinal)
		}
	}
	return rest
}

// recall returns the answers that are remembered, and notes in done what was sent on.
func (c *chunk) recall(ctx context.Context, ordinals []int32) ([]wire.Slot, error) {
	rows, err := c.tx.Query(ctx, c.sql.recall, c.key.run, c.key.place, c.key.generation, ordinals)
	if err != nil {
		return nil, err
	}
	remembered, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, err
	}
	slots := make([]wire.Slot, 0, len(remembered))
	for _, r := range remembered {
		if r.Result == nil && r.Code == nil {
			if c.done == nil {
				c.done = map[int]bool{}
			}
			c.done[int(r.Ordinal)] = true
			continue
		}
		slots = append(slots, r.slot())
	}
	return slots, nil
}

// remember stores final answers and what goes on, and forgets the claims of the rest.
func (c *chunk) remember(ctx context.Context, slots []wire.Slot, goingOn []int) error {
	var final answers
	for _, slot := range slots {
		if slot.Err == nil || !slot.Err.Retry {
			final.add(slot)
			delete(c.claimed, int32(slot.Ordinal))
		}
	}
	for _, ordinal := range goingOn { // its row is as it is to be
		delete(c.claimed, int32(ordinal))
	}
	if len(final.ordinals) > 0 {
		if _, err := c.tx.Exec(ctx, c.sql.remember, c.key.run, c.key.place, c.key.generation, final.ordinals, final.results,
			final.types, final.codes, final.messages); err != nil {
			return err
		}
	}
	if len(c.claimed) == 0 {
		return nil
	}
	rest := make([]int32, 0, len(c.claimed))
	for ordinal := range c.claimed {
		rest = append(rest, ordinal)
	}
	_, err := c.tx.Exec(ctx, c.sql.forget, c.key.run, c.key.place, c.key.generation, rest)
	return err
}

// row is what the table says of one item.
type row struct {
	Ordinal                    int32
	Result                     []byte
	ContentType, Code, Message *string
}

func (r row) slot() wire.Slot {
	slot := wire.Slot{Ordinal: int(r.Ordinal)}
	if r.Code != nil {
		slot.Err = &wire.SlotError{Code: *r.Code, Message: *r.Message}
		return slot
	}
	slot.Data = r.Result
	if r.ContentType != nil {
		slot.ContentType = *r.ContentType
	}
	return slot
}

// answers are rows as columns, for one statement.
type answers struct {
	ordinals               []int32
	results                [][]byte
	types, codes, messages []*string
}

func (a *answers) add(slot wire.Slot) {
	a.ordinals = append(a.ordinals, int32(slot.Ordinal))
	var contentType, code, message *string
	result := slot.Data
	switch {
	case slot.Err != nil:
		code, message, result = &slot.Err.Code, &slot.Err.Message, nil
	case slot.ContentType != "":
		contentType = &slot.ContentType
	}
	a.results = append(a.results, result)
	a.types, a.codes, a.messages = append(a.types, contentType), append(a.codes, code), append(a.messages, message)
}
