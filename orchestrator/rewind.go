package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/session"
)

// recallMark reads from JetStream how far the database had come before this node was started. A stream that was wiped
// says nothing: nodes that lived through it know.
func (n *Node) recallMark(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	stream, err := n.js.Stream(ctx, wire.StreamFlow)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", wire.StreamFlow, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, wire.DatabaseMark)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the database's mark: %w", err)
	}
	if err := json.Unmarshal(msg.Data, &n.mark); err != nil {
		n.mark = session.Mark{}
		n.log.Warn("the mark of the database in JetStream cannot be read; going without it", zap.Error(err))
	}
	return nil
}

// watchDatabase looks whether the database is where it was left, again and again, until ctx ends. The leader raises the
// mark by which this is told, and keeps it in JetStream for nodes that are started later.
func (n *Node) watchDatabase(ctx context.Context) {
	tick := time.NewTicker(n.cfg.StreamsInterval)
	defer tick.Stop()
	for {
		if err := n.lookAtDatabase(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("look how far the database has come", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (n *Node) lookAtDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	leads := n.lease.Load() != nil
	look := session.New(n.store).ReadMark
	if leads && n.mark.Lineage != uuid.Nil {
		look = func(ctx context.Context) (session.Mark, error) { return session.New(n.store).RaiseMark(ctx, n.mark) }
	}
	have, err := look(ctx)
	if err != nil {
		return err
	}
	if have.Moved || have.Behind(n.mark) {
		return n.passGap(ctx, have)
	}
	if n.mark = have; !leads {
		return nil
	}
	return n.keepMark(ctx)
}

// passGap has all that is out issued again, since the database knows less of it than was so.
func (n *Node) passGap(ctx context.Context, have session.Mark) error {
	known := have.Later(n.mark)
	epoch, _ := n.streams.now()
	known.Epoch = max(known.Epoch, epoch)
	gap, err := session.New(n.store).PassGap(ctx, known)
	if err != nil {
		return err
	}
	if gap != nil {
		n.log.Error("the database went back in time, or another server took it over; issuing again what was out",
			zap.Bool("lost", gap.Lost), zap.Time("from", gap.From), zap.Time("to", gap.To), zap.Int("runs", gap.Runs))
		n.PublishEvents()
	}
	n.Look()
	return nil
}

// keepMark keeps the mark in JetStream, where it has no end.
func (n *Node) keepMark(ctx context.Context) error {
	doc, err := json.Marshal(n.mark)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: wire.DatabaseMark, Data: doc, Header: nats.Header{jetstream.MsgTTLHeader: {"never"}}}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if _, err := n.js.PublishMsg(ctx, msg); err != nil {
		n.log.Debug("keep the database's mark", zap.Error(err)) // the next one is kept
	}
	return nil
}
