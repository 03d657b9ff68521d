package pginbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Codes of errors reported by the inbox.
const (
	// CodeInbox means that a chunk's transaction could not begin or commit. Retryable.
	CodeInbox = "inbox"
	// CodeNeedsList means that the endpoint uses HandleEach, which the inbox does not support. Permanent.
	CodeNeedsList = "inbox_needs_list"
)

const (
	// rollbackTimeout bounds the rollback of a cancelled chunk.
	rollbackTimeout = 5 * time.Second
	// claimRounds bounds the attempts to claim items whose entries are pruned concurrently.
	claimRounds = 3
)

// Once returns a wrapper that runs handlers in the inbox's transaction; see the package comment.
func (i *Inbox) Once() endpoints.Wrapper { return i.once }

func (i *Inbox) once(ctx context.Context, w *endpoints.Work, next func(context.Context) error) error {
	items := w.Items()
	switch {
	case len(items) == 0:
		return next(ctx)
	case w.ByItem():
		return refuse(ctx, w, items)
	}
	// Read committed, regardless of the default: the statement after a claim must see what the claim waited for.
	tx, err := i.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return broken(ctx, "begin", err)
	}
	defer rollback(ctx, tx) // no effect after a commit
	chunk := &chunk{sql: &i.sql, tx: tx, key: keyOf(w, items[0]), hashes: map[int32]int64{}, claimed: map[int32]bool{}}
	for _, item := range items {
		chunk.ordinals = append(chunk.ordinals, int32(item.Ordinal))
		hash := sha256.Sum256([]byte(item.Key))
		chunk.hashes[int32(item.Ordinal)] = int64(binary.BigEndian.Uint64(hash[:8]))
	}
	known, err := chunk.claim(ctx)
	if err != nil {
		return broken(ctx, "claim the items", err)
	}
	if err := answer(ctx, w, known); err != nil {
		return err
	}
	if len(chunk.claimed)+len(chunk.done) == 0 {
		rollback(ctx, tx) // free the connection early
		return next(ctx)
	}
	// Hold answers until the commit. Those from the table are already committed.
	w.Hold()
	if err := next(context.WithValue(ctx, chunkKey{}, chunk)); err != nil {
		return err
	}
	return chunk.end(ctx, w)
}

// refuse fails every item, so that reports show the reason.
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

func broken(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	return endpoints.Retry(CodeInbox, "the inbox of the service cannot %s: %v", doing, err)
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // on failure the connection is closed, which rolls back
}

// key is the common part of the items' keys.
type key struct {
	run        [16]byte
	place      string
	generation int32
}

func keyOf(w *endpoints.Work, item endpoints.ItemInfo) key {
	place := fmt.Sprintf("%s:%d/%d", w.Endpoint(), w.Stage(), item.Step)
	if item.Stack != "" {
		place += "/" + string(item.Stack)
	}
	return key{run: item.Run, place: place, generation: int32(item.Generation)}
}

// end stores the answers and commits. If a failed commit's outcome is unknown, the retry finds out.
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

type chunk struct {
	sql      *statements
	tx       pgx.Tx
	key      key
	ordinals []int32
	hashes   map[int32]int64 // of the items' keys
	claimed  map[int32]bool  // items to process
	done     map[int]bool    // items that an earlier transaction sent on
}

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

// args identify the rows of items, in a statement.
func (c *chunk) args(ordinals []int32) []any {
	hashes := make([]int64, len(ordinals))
	for n, ordinal := range ordinals {
		hashes[n] = c.hashes[ordinal]
	}
	return []any{c.key.run, c.key.place, c.key.generation, ordinals, hashes}
}

func (c *chunk) insert(ctx context.Context, ordinals []int32) ([]int32, error) {
	rows, err := c.tx.Query(ctx, c.sql.claim, c.args(ordinals)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}

func (c *chunk) missing(ordinals []int32) []int32 {
	rest := make([]int32, 0, len(ordinals))
	for _, ordinal := range ordinals {
		if !c.claimed[ordinal] {
			rest = append(rest, ordinal)
		}
	}
	return rest
}

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

// recall returns the stored answers and adds items sent on to done.
func (c *chunk) recall(ctx context.Context, ordinals []int32) ([]wire.Slot, error) {
	rows, err := c.tx.Query(ctx, c.sql.recall, c.args(ordinals)...)
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

// remember stores final answers, keeps the claims of items sent on, and removes the rest.
func (c *chunk) remember(ctx context.Context, slots []wire.Slot, goingOn []int) error {
	var final answers
	for _, slot := range slots {
		if slot.Err == nil || !slot.Err.Retry {
			final.add(slot)
			delete(c.claimed, int32(slot.Ordinal))
		}
	}
	for _, ordinal := range goingOn { // its claim is the entry
		delete(c.claimed, int32(ordinal))
	}
	if len(final.ordinals) > 0 {
		args := append(c.args(final.ordinals), final.results, final.types, final.codes, final.messages)
		if _, err := c.tx.Exec(ctx, c.sql.remember, args...); err != nil {
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
	_, err := c.tx.Exec(ctx, c.sql.forget, c.args(rest)...)
	return err
}

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
