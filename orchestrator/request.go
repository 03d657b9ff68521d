package orchestrator

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

// stillThere reports whether a slice's request lies in the work stream. Somebody may have purged it.
func (n *Node) stillThere(ctx context.Context, o workqueue.Overdue) bool {
	stream, err := n.js.Stream(ctx, endpoints.StreamWork)
	if err != nil {
		return false
	}
	msg, err := stream.GetMsg(ctx, uint64(o.StreamSeq))
	return err == nil && msg.Header.Get(endpoints.HeaderMsgID) == o.ID.String()
}

// removeRequests takes the requests of slices that have ended out of the work stream, so that no service works on them
// in vain. It is a courtesy: a request that stays is answered with a stale reply. The message id is compared first,
// since a sequence of an earlier stream may belong to another request now.
func (n *Node) removeRequests(ctx context.Context, requests []workqueue.Sent) {
	if len(requests) == 0 {
		return
	}
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
