package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// presence says whether a request lies in the work stream.
type presence int

const (
	unknown presence = iota // JetStream did not say
	there
	gone
)

// removeTimeout bounds the removal of requests.
const removeTimeout = 2 * time.Second

// lookForRequests returns a function that tells whether a request lies in the work stream, from where a purge would
// have left the stream's beginning, and for the first few by looking for the message itself.
func (n *Node) lookForRequests(ctx context.Context) func(workqueue.Overdue) presence {
	stream, err := n.js.Stream(ctx, endpoints.StreamWork)
	if err != nil {
		n.log.Debug("look for requests", zap.Error(err))
		return func(workqueue.Overdue) presence { return unknown }
	}
	first := stream.CachedInfo().State.FirstSeq
	looked := 0
	return func(o workqueue.Overdue) presence {
		if uint64(o.StreamSeq) < first {
			return gone
		}
		looked++
		if looked > lookups {
			return there
		}
		msg, err := stream.GetMsg(ctx, uint64(o.StreamSeq))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return gone
		case err != nil:
			return unknown
		case msg.Header.Get(endpoints.HeaderMsgID) != o.ID.String():
			return gone
		default:
			return there
		}
	}
}

// removeRequests takes the requests of slices that have ended out of the work stream, so that no service works on them
// in vain. It is a courtesy, of bounded length: a request that stays is answered with a stale reply. The message id is
// compared first, since a sequence of an earlier stream may belong to another request now.
func (n *Node) removeRequests(ctx context.Context, requests []workqueue.Sent) {
	if len(requests) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	stream, err := n.js.Stream(ctx, endpoints.StreamWork)
	if err != nil {
		n.log.Debug("remove requests", zap.Error(err))
		return
	}
	for _, r := range requests {
		if r.StreamSeq == 0 || ctx.Err() != nil {
			continue
		}
		msg, err := stream.GetMsg(ctx, uint64(r.StreamSeq))
		if err != nil || msg.Header.Get(endpoints.HeaderMsgID) != r.ID.String() {
			continue
		}
		if err := stream.DeleteMsg(ctx, uint64(r.StreamSeq)); err != nil {
			n.log.Debug("remove a request", zap.Stringer("slice", r.ID), zap.Error(err))
		}
	}
}
