package dispatch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

const (
	// partReaders limits the parts that a node reads concurrently. What waits longer is asked for again, of any node.
	partReaders = 4
	// partHeaders is left for headers in an answer.
	partHeaders = 1 << 10
)

// ServeParts gives services the parts that their requests refer to, until the subscriptions end. NATS permissions say
// who may ask for parts of an endpoint (docs/security.md); the store, whether a slice is entitled to a part.
func ServeParts(k *core.Core) (subs []*nats.Subscription, err error) {
	store := dispatch.New(k.Store)
	for range partReaders {
		sub, err := k.NC.QueueSubscribe(wire.PartSubject("*"), wire.PartQueue, func(msg *nats.Msg) {
			if !wire.Answerable(msg) || msg.Reply == "" {
				return
			}
			answer := &nats.Msg{}
			var fault error
			if answer.Data, fault = partOf(k, store, msg); fault != nil {
				bad := wire.AsSlotError(context.Background(), fault, true)
				answer.Header = nats.Header{wire.HeaderErrorCode: {bad.Code}, wire.HeaderError: {wire.OneLine(bad.Message)}}
			}
			if err := msg.RespondMsg(answer); err != nil {
				k.Log.Debug("answer with a part", zap.String("subject", msg.Subject), zap.Error(err)) // it asks again
			}
		})
		if err != nil {
			return subs, fmt.Errorf("orchestrator: subscribe to %s: %w", wire.PartSubject("*"), err)
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

func partOf(k *core.Core, store dispatch.Store, msg *nats.Msg) ([]byte, error) {
	endpoint, err := wire.ParsePartSubject(msg.Subject)
	var asked wire.PartQuery
	if err == nil {
		err = asked.Read(msg.Data)
	}
	if err != nil {
		return nil, wire.Fail(wire.CodeBadRequest, "%v", err)
	}
	sum, _ := hex.DecodeString(asked.SHA256) // Read has checked it
	ctx, cancel := context.WithTimeout(context.Background(), core.ReadTimeout)
	defer cancel()
	data, err := store.Part(ctx, dispatch.PartRequest{Slice: workqueue.SliceID(asked.Slice), Endpoint: endpoint,
		Ordinal: workqueue.Ordinal(asked.Ordinal), Step: asked.Step, Bytes: asked.Bytes, SHA256: sum, From: asked.From,
		Most: min(wire.DefaultPiece, int(k.NC.MaxPayload())-partHeaders)})
	if errors.Is(err, workqueue.ErrNotFound) {
		return nil, wire.Retry(wire.CodePartGone, "the request of endpoint %s that had this part of step %s for item %d is "+
			"not in progress any more, or the part was redone", endpoint, asked.Step, asked.Ordinal)
	}
	if errors.Is(err, database.ErrDamaged) {
		return nil, wire.Fail(core.CodeItemDamaged, "%v", err)
	}
	if err != nil {
		k.Log.Warn("read a part for a service", zap.String("endpoint", endpoint), zap.Error(err))
		return nil, wire.Retry(wire.CodePartUnavailable, "a node cannot read it now; its log says why")
	}
	return data, nil
}
