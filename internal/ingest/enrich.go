package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue/collector"
)

const maxAsked = 1000

// Queries makes the fetcher for a step's settings. A *sqlfetch.Client implements it.
type Queries interface {
	Fetcher(config []byte) (fetch.Fetcher, error)
}

// Sources are what enrichments ask. What a node lacks, it refuses.
type Sources struct {
	SQL    Queries
	Locals map[string]fetch.Fetcher // functions of the program, by name
	NC     *nats.Conn               // to services
}

// EnrichError is returned when a collector's enrichment failed regardless of the operations. None of them was added.
type EnrichError struct {
	Collector string
	Err       error
}

func (e *EnrichError) Error() string {
	return fmt.Sprintf("collector %s stores what its enrich adds, and that fails: %v; nothing was added, add them again "+
		"later", e.Collector, e.Err)
}

// Unwrap returns the error of the source or service.
func (e *EnrichError) Unwrap() error { return e.Err }

type enriching struct {
	of    *Producers
	name  string
	spec  *collector.CollectorSpec
	body  *template.Body
	part  string                // what is asked, see partOf
	rows  map[int]template.Part // by the requested operation; nothing for values without a row
	asked []int                 // by operation, the requested one
	held  int                   // bytes reserved in the node's room
}

// question is a value to look up.
type question struct {
	value   string
	op      int // the first operation that needs it; of a service or function, each is requested
	payload []byte
}

// enrich gives operations the payloads that their collector stores. Operations with known IDs are marked and skipped,
// so nothing is queried again. sent are the operations as sent. Without an error, held is the reserved room in bytes,
// which the caller must release.
func (p *Producers) enrich(ctx context.Context, name string, known *knownSpec, sent, ops []collector.Op) (
	held int, err error,
) {
	if known.spec.Enrich == nil {
		return 0, nil
	}
	e := &enriching{of: p, name: name, spec: &known.spec, body: known.body, part: partOf(known.spec.Enrich)}
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

func (e *enriching) markKnown(ctx context.Context, ops []collector.Op) error {
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

func (e *enriching) ask(ctx context.Context, sent, ops []collector.Op) error {
	if e.part == "" {
		return nil
	}
	e.rows, e.asked = map[int]template.Part{}, make([]int, len(ops))
	by := usual(e.spec, e.spec.Enrich.By)
	first := map[string]int{} // the first operation that needs a value
	var questions []question
	for i := range ops {
		if ops[i].Duplicate {
			continue
		}
		value, err := valueOf(&by, "enrich by", sent[i].Key, sent[i].Payload)
		if err != nil {
			return ofOp(i, err)
		}
		q := question{value: value, op: i, payload: sent[i].Payload}
		if e.spec.Enrich.SQL != nil {
			if was, there := first[value]; there {
				e.asked[i] = was
				continue
			}
			first[value], q.payload = i, nil
		}
		e.asked[i], questions = i, append(questions, q)
	}
	if len(questions) == 0 {
		return nil
	}
	from, err := e.fetcher()
	if err != nil {
		return e.fails(ctx, err)
	}
	for some := range slices.Chunk(questions, maxAsked) {
		if err := e.askFor(ctx, from, some); err != nil {
			return err
		}
	}
	e.of.noteTaken(ctx, e.name)
	return nil
}

func (e *enriching) fetcher() (fetch.Fetcher, error) {
	from, ask := e.of.sources, e.spec.Enrich
	switch {
	case ask.Endpoint != "" && from.NC != nil:
		return fetch.Func(e.call), nil
	case ask.Local != "" && from.Locals[ask.Local] != nil:
		return from.Locals[ask.Local], nil
	case ask.SQL != nil && from.SQL != nil:
		return from.SQL.Fetcher(ask.SQL)
	}
	lacks := "sources; start it with --connections FILE"
	switch {
	case ask.Endpoint != "":
		lacks = "NATS connection to call endpoint " + ask.Endpoint
	case ask.Local != "":
		lacks = "function " + ask.Local + "; add through the API of the program that has it"
	}
	return nil, wire.Fail(sqlfetch.CodeNoSource, "this node has no %s", lacks)
}

// call asks the service, in as many requests as NATS needs.
func (e *enriching) call(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
	items := make([]endpoints.CallItem[json.RawMessage], len(req.Items))
	for i := range req.Items {
		items[i] = endpoints.CallItem[json.RawMessage]{Key: req.Items[i].Key, In: req.Items[i].Payload}
	}
	results, err := endpoints.CallList[json.RawMessage, json.RawMessage](ctx, e.of.sources.NC, e.spec.Enrich.Endpoint,
		items, endpoints.Direct(), endpoints.CallerName("collectors"), endpoints.CallParams(e.spec.Params),
		endpoints.CallOrigin("collector "+e.name))
	if err != nil {
		return nil, err
	}
	slots := make([]fetch.Slot, len(results))
	for i := range results {
		slots[i] = fetch.Slot{Ordinal: i, Data: results[i].Out, Err: results[i].Err}
	}
	return slots, nil
}

// askFor asks some questions. If that fails entirely it is retried in halves, until the bad one is alone.
func (e *enriching) askFor(ctx context.Context, from fetch.Fetcher, values []question) error {
	req := &fetch.Request{Step: e.name, Params: e.spec.Params, Attempt: 1, Generation: 1,
		Items: make([]fetch.Item, len(values))}
	for i, q := range values {
		req.Items[i] = fetch.Item{Ordinal: i, Key: q.value, Payload: q.payload}
	}
	slots, err := fetch.Guard(ctx, from, req)
	said, ok := errors.AsType[*wire.SlotError](err)
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), context.Canceled): // the caller has left
		return err
	case !ok || said.Retry:
		return e.fails(ctx, err)
	case len(values) > 1:
		half := len(values) / 2
		if err := e.askFor(ctx, from, values[:half]); err != nil {
			return err
		}
		return e.askFor(ctx, from, values[half:])
	default:
		slots = []fetch.Slot{{Err: said}}
	}
	for i := range slots {
		if at := slots[i].Ordinal; at >= 0 && at < len(values) {
			if err := e.answered(ctx, values[at], &slots[i]); err != nil {
				return err
			}
		}
	}
	return e.complete(ctx, values)
}

// complete reports whether a service or function has answered every question. A query need not have a row for each.
func (e *enriching) complete(ctx context.Context, values []question) error {
	for _, q := range values {
		if _, there := e.rows[q.op]; !there && e.spec.Enrich.SQL == nil {
			return e.fails(ctx, wire.Retry(wire.CodeUnanswered, "no answer for %q", q.value))
		}
	}
	return nil
}

func (e *enriching) answered(ctx context.Context, q question, slot *fetch.Slot) error {
	if slot.Err == nil && e.spec.Enrich.SQL == nil { // a query's rows are checked
		if flaw := wire.FlawOf(slot.Data, wire.DefaultMaxDepth); flaw != nil && slot.ContentType == "" {
			slot.Err = flaw.Slot()
		}
	}
	switch {
	case slot.Err == nil:
		if err := e.hold(len(slot.Data)); err != nil {
			return err
		}
		e.rows[q.op] = template.Part{Data: slot.Data, ContentType: slot.ContentType}
		return nil
	case slot.Err.Code == sqlfetch.CodeNotFound && e.spec.Enrich.Optional:
		return nil
	case slices.Contains(ofTheValue(), slot.Err.Code), e.spec.Enrich.SQL == nil && !slot.Err.Retry:
		return &OpError{Number: q.op + 1, Field: "payload", Problem: fmt.Sprintf("enrich: %q: %s (%s)", q.value,
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

func (e *enriching) fill(sent, ops []collector.Op) error {
	for i := range ops {
		if ops[i].Duplicate {
			continue
		}
		values := &template.Values{Key: sent[i].Key, Item: sent[i].Payload, Params: e.spec.Params, Nulls: true}
		if e.asked != nil {
			if row, there := e.rows[e.asked[i]]; there {
				values.Parts = map[string]template.Part{e.part: row}
			}
		}
		payload, err := e.body.Expand(values)
		if err != nil {
			return &OpError{Number: i + 1, Field: "payload", Problem: fmt.Sprintf("enrich: %v", err)}
		}
		if problem := payloadProblem(payload); problem != "" {
			return &OpError{Number: i + 1, Field: "payload", Problem: "with what enrich adds " + problem}
		}
		if err := e.hold(len(payload)); err != nil {
			return err
		}
		ops[i].Payload = payload
	}
	return nil
}
