package redo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/order"
)

// CorrectionError says what is wrong with one of the items of a correction.
type CorrectionError struct {
	Key     string
	Line    int    // 0 when the source has no lines
	Unit    string // what Line counts; empty: lines
	Problem string
}

func (e *CorrectionError) Error() string {
	place := ""
	switch {
	case e.Line > 0 && e.Unit == "":
		place = fmt.Sprintf("line %d, ", e.Line)
	case e.Line > 0:
		place = fmt.Sprintf("%s %d, ", e.Unit, e.Line)
	}
	return fmt.Sprintf("%skey %.80q: %s; nothing was corrected", place, e.Key, e.Problem)
}

// TooManyCorrectionsError is returned for a correction that is more than one transaction is to take.
type TooManyCorrectionsError struct{ Limit string }

func (e *TooManyCorrectionsError) Error() string {
	return fmt.Sprintf("more than %s in one correction; nothing was corrected. Send them in several", e.Limit)
}

const (
	correctRows  = 4096
	correctBytes = 4 << 20
)

// correctPayloads keeps the payloads that items have, and gives them new ones. Keys are looked up one by one in
// work_queue_key, whatever the planner knows of the table; twins come in the order of their ordinals.
const correctPayloads = `
WITH met AS MATERIALIZED (
    SELECT g.n, q.ordinal, q.payload AS before, g.payload AS after
    FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS g (key, payload, n)
    CROSS JOIN LATERAL (
        SELECT ordinal, payload FROM work_queue WHERE run_id = $1 AND item_key = g.key OFFSET 0) q
), kept AS (
    INSERT INTO work_correction (run_id, ordinal, generation, payload)
    SELECT $1, ordinal, $2, before FROM met WHERE before <> after
    ON CONFLICT DO NOTHING -- an item that is given twice is refused
), moved AS (
    UPDATE work_queue q SET payload = m.after FROM met m
    WHERE q.run_id = $1 AND q.ordinal = m.ordinal AND m.before <> m.after
)
SELECT n - 1, ordinal, octet_length(after) - octet_length(before), before <> after FROM met ORDER BY n, ordinal`

// correctBatch is a piece of what was given.
type correctBatch struct {
	keys, payloads []string
	lines          []int
	bytes          int
}

// write reads what was given to its end and writes it, batch by batch.
func (c *correction) write(ctx context.Context) error {
	next, err := c.Items()
	if err != nil {
		return err
	}
	lanes, err := c.laneRule(ctx)
	if err != nil {
		return err
	}
	c.out = Corrected{}
	c.corrected, c.given, c.grown = blockMasks{}, blockMasks{}, map[workqueue.Block]int64{}
	c.unknown = UnknownKeysError{Run: c.run}
	read := correctReader{next: next}
	for more := true; more; {
		var b correctBatch
		if more, err = read.fill(&b); err != nil {
			return err
		}
		if len(b.keys) == 0 {
			continue
		}
		ordinals, err := c.put(ctx, &b)
		if err != nil {
			return err
		}
		if lanes != nil {
			if err := c.keepLanes(ctx, lanes, &b, ordinals); err != nil {
				return err
			}
		}
	}
	if c.unknown.more+len(c.unknown.Keys) > 0 {
		return &c.unknown
	}
	return nil
}

// correctReader reads batches, and holds them to the bounds of a correction.
type correctReader struct {
	next  func(*Correction) error
	items int
	bytes int64
}

func (r *correctReader) fill(b *correctBatch) (more bool, err error) {
	var one Correction
	for len(b.keys) < correctRows && b.bytes < correctBytes {
		one.Line = 0
		err := r.next(&one)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if r.items++; r.items > MaxCorrections {
			return false, &TooManyCorrectionsError{control.Grouped(MaxCorrections) + " items"}
		}
		size := len(one.Key) + len(one.Payload)
		if r.bytes += int64(size); r.bytes > MaxCorrectionBytes {
			return false, &TooManyCorrectionsError{fmt.Sprintf("%d MiB of keys and payloads", MaxCorrectionBytes>>20)}
		}
		b.keys, b.payloads = append(b.keys, one.Key), append(b.payloads, string(one.Payload))
		b.lines, b.bytes = append(b.lines, one.Line), b.bytes+size
	}
	return true, nil
}

// put writes a batch, and returns the ordinals of its items; -1 for those whose key the run does not have.
func (c *correction) put(ctx context.Context, b *correctBatch) ([]workqueue.Ordinal, error) {
	wrong := func(i int, problem string) error {
		return &CorrectionError{Key: b.keys[i], Line: b.lines[i], Unit: c.Unit, Problem: problem}
	}
	ordinals := make([]workqueue.Ordinal, len(b.keys))
	for i := range ordinals {
		ordinals[i] = -1
	}
	rows := pg.Rows(ctx, c.tx, correctPayloads, c.run, c.generation+1, b.keys, b.payloads)
	var i, grown int
	var o workqueue.Ordinal
	var changed bool
	_, err := pgx.ForEachRow(rows, []any{&i, &o, &grown, &changed}, func() error {
		block, bit := o.Block()
		switch {
		case ordinals[i] >= 0:
			return wrong(i, "the run has several items with this key, and which of them is meant cannot be told")
		case c.given[block] != nil && c.given[block].Has(bit):
			return wrong(i, "the key was given before; give each item once")
		}
		ordinals[i] = o
		c.given.add(o)
		if !changed {
			c.out.Same++
			return nil
		}
		c.out.Items++
		c.corrected.add(o)
		c.grown[block] += int64(grown)
		if len(c.out.Examples) < Examples {
			c.out.Examples = append(c.out.Examples, b.keys[i])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write payloads: %w", err)
	}
	for i, o := range ordinals {
		if o < 0 {
			c.unknown.note(b.keys[i])
		}
	}
	return ordinals, nil
}

const (
	laneRule = `SELECT rule FROM run_order WHERE run_id = $1`

	// Point reads of work_order's primary key.
	lanesOf = `
SELECT u.n - 1, o.lane FROM unnest($2::int[]) WITH ORDINALITY AS u (ordinal, n)
JOIN work_order o ON o.run_id = $1 AND o.ordinal = u.ordinal`
)

// laneRule reads by what the items of the run are put in lines; nil when they are not.
func (c *correction) laneRule(ctx context.Context) (*order.Rule, error) {
	if !c.graph.Ordered {
		return nil, nil
	}
	var text []byte
	rule := &order.Rule{}
	err := c.tx.QueryRow(ctx, laneRule, c.run).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, rule)
	}
	if err != nil {
		return nil, fmt.Errorf("read the order of run %s: %w", c.run, err)
	}
	return rule, nil
}

// keepLanes refuses payloads by which items would stand in other lines than they do: what was done in its turn there
// would have been done out of turn.
func (c *correction) keepLanes(ctx context.Context, rule *order.Rule, b *correctBatch, items []workqueue.Ordinal,
) error {
	rows := pg.Rows(ctx, c.tx, lanesOf, c.run, items)
	var i int
	var lane int64
	_, err := pgx.ForEachRow(rows, []any{&i, &lane}, func() error {
		value, err := rule.Value(b.keys[i], []byte(b.payloads[i]))
		switch {
		case err != nil:
			return &CorrectionError{Key: b.keys[i], Line: b.lines[i], Unit: c.Unit, Problem: err.Error()}
		case rule.Lane(value) != lane:
			return &CorrectionError{Key: b.keys[i], Line: b.lines[i], Unit: c.Unit, Problem: fmt.Sprintf(
				"the run's items are kept in order by order_by, and the value %.80q would put this one elsewhere; leave that "+
					"value as it is, or start a new run", value)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the lines of items: %w", err)
	}
	return nil
}
