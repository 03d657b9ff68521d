package serve

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/outbox"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// MaxBegun is how often a suspect may be begun alone and never finished.
	MaxBegun = 2
	// markPatience bounds each look at a mark, and each change of one.
	markPatience = time.Second
	// begunTTL is how long a mark is kept, endedTTL what has taken its place.
	begunTTL = "1h"
	endedTTL = "1s"
)

// begunMark is where it is written down how often a suspect was begun alone without being finished. Deliveries do not
// tell: a request that was handed back has been delivered, too. The mark is a message of StreamFlow; where it cannot be
// read or written, for want of a permission or the stream, deliveries have to do.
type begunMark struct {
	out     *outbox.Outbox
	subject string
	log     *zap.Logger
}

func newBegunMark(out *outbox.Outbox, endpoint string, slice uuid.UUID, log *zap.Logger) begunMark {
	return begunMark{out, wire.FlowPrefix + endpoint + "." + slice.String() + ".begun", log}
}

// read returns how often the request was begun and not finished.
func (m begunMark) read(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, markPatience)
	defer cancel()
	var msg *nats.Msg
	api := "$JS.API.DIRECT.GET." + wire.StreamFlow + "." + m.subject
	err := stream.During(ctx, m.out.NC, func(ctx context.Context) (err error) {
		msg, err = m.out.NC.RequestWithContext(ctx, api, nil)
		return err
	}, api)
	if err != nil {
		m.log.Debug("the mark of a suspect cannot be read; its deliveries are counted all the same", zap.Error(err))
		return 0
	}
	n, err := strconv.Atoi(string(msg.Data))
	if err != nil || msg.Header.Get("Status") != "" { // there is none
		return 0
	}
	return max(n, 0)
}

// write notes how often the request was begun; 0 when it was finished, whatever came of it.
func (m begunMark) write(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, markPatience)
	defer cancel()
	ttl := begunTTL
	if n == 0 {
		ttl = endedTTL
	}
	msg := &nats.Msg{Subject: m.subject, Header: nats.Header{wire.HeaderTTL: {ttl}},
		Data: strconv.AppendInt(nil, int64(n), 10)}
	if err := m.out.Try(ctx, msg); err != nil {
		m.log.Debug("a suspect cannot be marked; its deliveries are counted all the same", zap.Error(err))
	}
}
