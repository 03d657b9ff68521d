package faultyservice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// LiarConfig says who lies, how, and when.
type LiarConfig struct {
	Endpoint string
	Lie      Lie
	// Poison is the items about which the liar always lies. Nil: it lies about every chunk at its first attempt, and is
	// honest at the others.
	Poison []int
	Ledger *Ledger // nil: one of its own, which Liar.Ledger returns
}

// Liar answers requests without the SDK. It does one after the other.
type Liar struct {
	cfg LiarConfig
	js  jetstream.JetStream
}

// NewLiar makes a liar on a connection, which stays the caller's.
func NewLiar(nc *nats.Conn, cfg LiarConfig) (*Liar, error) {
	if err := wire.ValidateName(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("faultyservice: LiarConfig.Endpoint: %w", err)
	}
	if cfg.Lie == "" {
		return nil, errors.New("faultyservice: LiarConfig.Lie is missing")
	}
	cfg.Ledger = cmp.Or(cfg.Ledger, NewLedger(nil))
	js, err := jetstream.New(nc)
	return &Liar{cfg: cfg, js: js}, err
}

// Ledger is where the liar notes its work. A lie counts as a fault of that name.
func (l *Liar) Ledger() *Ledger { return l.cfg.Ledger }

const (
	liarFetch = 16
	liarWait  = 200 * time.Millisecond // for messages, and between two looks for the consumer
)

// Run answers until ctx ends. It waits for nodes to make the endpoint's consumer.
func (l *Liar) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		consumer, err := l.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(l.cfg.Endpoint))
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
	q, err := readQuestion(&nats.Msg{Header: msg.Headers(), Data: msg.Data()})
	if err != nil {
		return fmt.Errorf("faultyservice: read a request: %w", err)
	}
	messages := q.right(l.cfg.Endpoint)
	fault := FaultNone
	if l.lies(q) {
		messages, fault = q.tell(l.cfg.Lie, l.cfg.Endpoint), Fault(l.cfg.Lie)
	}
	l.cfg.Ledger.add(q.entry(fault))
	for _, m := range messages {
		if _, err := l.js.PublishMsg(ctx, m); err != nil && ctx.Err() == nil {
			return fmt.Errorf("faultyservice: answer slice %s: %w", q.header.Get(wire.HeaderSlice), err)
		}
	}
	return msg.Ack()
}

func (l *Liar) lies(q *question) bool {
	if l.cfg.Poison == nil {
		return q.header.Get(wire.HeaderAttempt) == "1"
	}
	return slices.ContainsFunc(q.items, func(item questionItem) bool {
		return slices.Contains(l.cfg.Poison, item.Ordinal)
	})
}

// entry is what the ledger keeps. Headers that a node has written can be read.
func (q *question) entry(fault Fault) Entry {
	e := Entry{Fault: fault, At: time.Now()}
	e.Run, _ = uuid.Parse(q.header.Get(wire.HeaderRun))
	e.Slice, _ = uuid.Parse(q.header.Get(wire.HeaderSlice))
	e.Attempt, _ = strconv.Atoi(q.header.Get(wire.HeaderAttempt))
	e.Generation, _ = strconv.Atoi(q.header.Get(wire.HeaderGeneration))
	for _, item := range q.items {
		e.Ordinals = append(e.Ordinals, item.Ordinal)
	}
	return e
}
