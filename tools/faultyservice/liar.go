package faultyservice

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// Liar answers requests without the SDK, one at a time, and lies about each chunk's first attempt.
type Liar struct {
	Ledger *Ledger // a lie counts as a fault of the same name

	endpoint string
	lies     Lie
	js       jetstream.JetStream
}

// NewLiar returns a liar on a connection that the caller owns.
func NewLiar(nc *nats.Conn, endpoint string, lies Lie) (*Liar, error) {
	js, err := jetstream.New(nc)
	return &Liar{&Ledger{}, endpoint, lies, js}, err
}

const (
	liarFetch = 16
	liarWait  = 200 * time.Millisecond // for messages, and between two polls for the consumer
)

// Run answers until ctx ends. It waits until nodes have created the endpoint's consumer.
func (l *Liar) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		consumer, err := l.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(l.endpoint))
		if err != nil {
			_ = backoff.Sleep(ctx, liarWait)
			continue
		}
		batch, err := consumer.Fetch(liarFetch, jetstream.FetchMaxWait(liarWait))
		if err != nil {
			_ = backoff.Sleep(ctx, liarWait)
			continue
		}
		for msg := range batch.Messages() {
			if err := l.answer(ctx, msg); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Liar) answer(ctx context.Context, msg jetstream.Msg) error {
	request, err := wire.ParseRequest(msg.Headers(), msg.Data(), wire.Limits{})
	if err != nil {
		return fmt.Errorf("faultyservice: read a request: %w", err)
	}
	q := &question{request, msg.Headers()}
	messages := q.right(l.endpoint)
	fault := FaultNone
	if q.Attempt == 1 {
		messages, fault = q.lie(l.lies, l.endpoint), Fault(l.lies)
	}
	var ordinals []int
	for _, item := range q.Items {
		ordinals = append(ordinals, item.Ordinal)
	}
	l.Ledger.add(entryOf(&q.Meta, ordinals, fault))
	for _, m := range messages {
		if _, err := l.js.PublishMsg(ctx, m); err != nil && ctx.Err() == nil {
			return fmt.Errorf("faultyservice: answer slice %s: %w", q.Slice, err)
		}
	}
	return msg.Ack()
}

type Lie string

// The lies. Unless noted otherwise, the reply looks complete.
const (
	LieForeign   Lie = "foreign"    // results for ordinals that were not requested
	LieOthers    Lie = "others"     // the result of another chunk of the run, under this slice
	LieMissing   Lie = "missing"    // half of the results, with a matching count
	LieEmpty     Lie = "empty"      // success without results
	LieCountHigh Lie = "count high" // a count above the number of slots: the reply never looks complete
	LieCountLow  Lie = "count low"  // a count below the number of slots
	LieDoubled   Lie = "doubled"    // each result twice, the second one wrong
	LieTwice     Lie = "twice"      // a right reply, then a second one that revokes it
	LieRun       Lie = "run"        // an unknown run in the headers; the slice is right
	LieSlice     Lie = "slice"      // an unknown slice
	LieEndpoint  Lie = "endpoint"   // a right reply, on the subject of another endpoint
	LieGarbage   Lie = "garbage"    // a body that is not JSON
	LieTruncated Lie = "truncated"  // a truncated body
	LieBoth      Lie = "both"       // a slot with both a result and an error
)

// foreignBy is the offset of LieForeign's ordinals: in another block, if there is one.
const foreignBy = 100_000

type question struct {
	*wire.Request

	header nats.Header
}

type slot struct {
	Ordinal int             `json:"i"`
	Result  json.RawMessage `json:"d,omitempty"`
	Err     *slotError      `json:"e,omitempty"`
}

type slotError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Retry   bool   `json:"retry"`
}

func (q *question) slots() []slot {
	all := make([]slot, len(q.Items))
	for i, item := range q.Items {
		all[i] = slot{Ordinal: item.Ordinal, Result: item.Payload}
	}
	return all
}

// reply returns a message of a reply. A count of −1 means that another one follows.
func (q *question) reply(endpoint string, slots []slot, count int) *nats.Msg {
	msg := &nats.Msg{Subject: wire.ReplySubject(endpoint), Header: maps.Clone(q.header)}
	msg.Header.Set(wire.HeaderMsgID, uuid.NewString())
	msg.Header.Set(wire.HeaderContentType, "application/json")
	msg.Header.Set(wire.HeaderService, "liar@1.0.0 one")
	if count >= 0 {
		msg.Header.Set(wire.HeaderFinal, strconv.Itoa(count))
	}
	slots = append([]slot{}, slots...) // not null
	// Slots are numbers, strings and JSON that was read: they can be marshaled.
	msg.Data, _ = json.Marshal(map[string]any{"slots": slots}) //nolint:errchkjson // as above
	return msg
}

func (q *question) right(endpoint string) []*nats.Msg {
	return []*nats.Msg{q.reply(endpoint, q.slots(), len(q.Items))}
}

func (q *question) lie(lie Lie, endpoint string) []*nats.Msg {
	n := len(q.Items)
	honest := q.right(endpoint)
	only := honest[0]
	switch lie {
	case LieForeign:
		return []*nats.Msg{q.reply(endpoint, q.moved(foreignBy), n)}
	case LieOthers:
		return []*nats.Msg{q.reply(endpoint, q.moved(n), n)}
	case LieMissing:
		return []*nats.Msg{q.reply(endpoint, q.slots()[:n/2], n/2)}
	case LieEmpty:
		return []*nats.Msg{q.reply(endpoint, nil, 0)}
	case LieCountHigh:
		return []*nats.Msg{q.reply(endpoint, q.slots()[:n/2], n)}
	case LieCountLow:
		only.Header.Set(wire.HeaderFinal, strconv.Itoa(n-1))
	case LieDoubled:
		return []*nats.Msg{q.reply(endpoint, append(q.slots(), q.taken()...), 2*n)}
	case LieTwice:
		return append(honest, q.reply(endpoint, q.taken(), n))
	case LieRun:
		only.Header.Set(wire.HeaderRun, uuid.NewString())
	case LieSlice:
		only.Header.Set(wire.HeaderSlice, uuid.NewString())
	case LieEndpoint:
		only.Subject = wire.ReplySubject("another")
	case LieGarbage:
		only.Data = bytes.Repeat([]byte{0xff, '{', 0}, 50)
	case LieTruncated:
		only.Data = only.Data[:len(only.Data)*2/3]
	case LieBoth:
		only.Data = bytes.Replace(only.Data, []byte(`"d":`), []byte(`"e":{"code":"x","message":"y","retry":false},"d":`), 1)
	}
	return honest
}

func (q *question) moved(by int) []slot {
	all := q.slots()
	for i := range all {
		all[i].Ordinal += by
	}
	return all
}

func (q *question) taken() []slot {
	all := q.slots()
	for i := range all {
		all[i] = slot{Ordinal: all[i].Ordinal, Err: &slotError{Code: "taken_back", Message: "it was a lie"}}
	}
	return all
}
