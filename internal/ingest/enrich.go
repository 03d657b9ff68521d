package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/intake/row"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

const maxAsked = 1000

// Queries makes the fetcher for a step's settings. A *sqlfetch.Client implements it.
type Queries interface {
	Fetcher(config []byte) (fetch.Fetcher, error)
}

// EnrichError is returned when a collector's query failed regardless of the operations. None of them was added.
type EnrichError struct {
	Collector string
	Err       error
}

func (e *EnrichError) Error() string {
	return fmt.Sprintf("collector %s stores what a query adds, and that fails: %v; nothing was added, add them again "+
		"later", e.Collector, e.Err)
}

// Unwrap returns the query's error.
func (e *EnrichError) Unwrap() error { return e.Err }

type enriching struct {
	of    *Producers
	name  string
	spec  *collectorstore.CollectorSpec
	body  *template.Body
	rows  map[string]template.Part // by requested value; nothing for values without a row
	asked []string                 // by operation
	held  int                      // bytes reserved in the node's room
}

// enrich gives operations the payloads that their collector stores. Operations with known IDs are marked and skipped,
// so nothing is queried again. sent are the operations as sent. Without an error, held is the reserved room in bytes,
// which the caller must release.
func (p *Producers) enrich(ctx context.Context, name string, known *knownSpec, sent, ops []collectorstore.Op) (
	held int, err error,
) {
	if known.spec.Enrich == nil {
		return 0, nil
	}
	e := &enriching{of: p, name: name, spec: &known.spec, body: known.body}
	if err = e.markKnown(ctx, ops); err == nil {
		err = e.ask(ctx, sent, ops)
	}
	if err == nil {
		err = e.fill(sent, ops)
	}
	if err != nil {
		p.room.give(e.held)
		return 0, err
	}
	return e.held, nil
}

func (e *enriching) markKnown(ctx context.Context, ops []collectorstore.Op) error {
	var ids []string
	for i := range ops {
		if ops[i].ID != "" {
			ids = append(ids, ops[i].ID)
		}
	}
	if len(ids) == 0 || e.spec.Dedupe == 0 {
		return nil
	}
	known, err := e.of.definitions.KnownOps(ctx, e.name, ids)
	if err != nil || len(known) == 0 {
		return err
	}
	slices.Sort(known)
	for i := range ops {
		_, ops[i].Duplicate = slices.BinarySearch(known, ops[i].ID)
	}
	return nil
}

func (e *enriching) ask(ctx context.Context, sent, ops []collectorstore.Op) error {
	if e.spec.Enrich.SQL == nil {
		return nil
	}
	e.rows, e.asked = map[string]template.Part{}, make([]string, len(ops))
	first := map[string]int{} // the first operation that needs a value
	var values []string
	for i := range ops {
		if ops[i].Duplicate {
			continue
		}
		value, err := collector.Asked(e.spec, sent[i].Key, sent[i].Payload)
		if bad, ok := errors.AsType[*order.ValueError](err); ok {
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("enrich by %s: %s", bad.Field, bad.Problem)}
		}
		if err != nil {
			return err
		}
		if e.asked[i] = value; !isText(value) {
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("the value to look up, %.60q, must be UTF-8 "+
				"without NUL", value)}
		}
		if _, there := first[value]; !there {
			first[value], values = i, append(values, value)
		}
	}
	if len(values) == 0 {
		return nil
	}
	from, err := e.fetcher()
	if err != nil {
		return e.fails(ctx, err)
	}
	for some := range slices.Chunk(values, maxAsked) {
		if err := e.askFor(ctx, from, some, first); err != nil {
			return err
		}
	}
	e.of.noteTaken(ctx, e.name)
	return nil
}

func (e *enriching) fetcher() (fetch.Fetcher, error) {
	if e.of.queries == nil {
		return nil, wire.Fail(sqlfetch.CodeNoSource, "this node has no sources")
	}
	return e.of.queries.Fetcher(e.spec.Enrich.SQL)
}

// askFor queries some values. If a query fails entirely it is retried in halves, until the bad value is alone.
func (e *enriching) askFor(ctx context.Context, from fetch.Fetcher, values []string, first map[string]int) error {
	req := &fetch.Request{Step: e.name, Params: e.spec.Params, Items: make([]fetch.Item, len(values))}
	for i, value := range values {
		req.Items[i] = fetch.Item{Ordinal: i, Key: value}
	}
	slots, err := from.Fetch(ctx, req)
	said, ok := errors.AsType[*wire.SlotError](err)
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), context.Canceled): // the caller has left
		return err
	case !ok || said.Retry:
		return e.fails(ctx, err)
	case len(values) > 1:
		half := len(values) / 2
		if err := e.askFor(ctx, from, values[:half], first); err != nil {
			return err
		}
		return e.askFor(ctx, from, values[half:], first)
	default:
		slots = []fetch.Slot{{Err: said}}
	}
	for i := range slots {
		value := values[slots[i].Ordinal]
		if err := e.answered(ctx, value, &slots[i], first[value]); err != nil {
			return err
		}
	}
	return nil
}

func (e *enriching) answered(ctx context.Context, value string, slot *fetch.Slot, op int) error {
	switch {
	case slot.Err == nil:
		if err := e.hold(len(slot.Data)); err != nil {
			return err
		}
		e.rows[value] = template.Part{Data: slot.Data, ContentType: slot.ContentType}
		return nil
	case slot.Err.Code == sqlfetch.CodeNotFound && e.spec.Enrich.Optional:
		return nil
	case slices.Contains(ofTheValue(), slot.Err.Code):
		return &OpError{Number: op + 1, Field: "payload", Problem: fmt.Sprintf("enrich: %q: %s (%s)", value,
			slot.Err.Message, slot.Err.Code)}
	}
	return e.fails(ctx, slot.Err)
}

func ofTheValue() []string {
	return []string{sqlfetch.CodeNotFound, sqlfetch.CodeManyRows, sqlfetch.CodeTooLarge, sqlfetch.CodeBadKey,
		sqlfetch.CodeTooMuch, sqlfetch.CodeBadResult}
}

func (e *enriching) fails(ctx context.Context, err error) error {
	e.of.noteRefused(ctx, e.name, err)
	return &EnrichError{e.name, err}
}

func (e *enriching) hold(n int) error {
	if e.held+n > MaxBytes {
		return &TooManyError{Bytes: true}
	}
	if !e.of.room.take(n) {
		return &OverloadedError{}
	}
	e.held += n
	return nil
}

func (e *enriching) fill(sent, ops []collectorstore.Op) error {
	for i := range ops {
		if ops[i].Duplicate {
			continue
		}
		values := &template.Values{Key: sent[i].Key, Item: sent[i].Payload, Params: e.spec.Params, Nulls: true}
		if e.asked != nil {
			if row, there := e.rows[e.asked[i]]; there {
				values.Parts = map[string]template.Part{collector.RowPart: row}
			}
		}
		payload, err := e.body.Expand(values)
		if err != nil {
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("enrich: %v", err)}
		}
		switch {
		case len(payload) > collectorstore.MaxOpPayload:
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("with what enrich adds it has %d bytes; at "+
				"most %d are stored", len(payload), collectorstore.MaxOpPayload)}
		case row.Deeper(payload, wire.DefaultMaxDepth):
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("with what enrich adds it is nested deeper "+
				"than %d", wire.DefaultMaxDepth)}
		}
		if err := e.hold(len(payload)); err != nil {
			return err
		}
		ops[i].Payload = payload
	}
	return nil
}
