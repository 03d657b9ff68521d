package pginbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/endpoints/wire"
)

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
