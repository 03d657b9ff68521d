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
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue/session"
)

// rewind detects a database that lost recent commits.
type rewind struct {
	node     *core.Core
	streams  core.Epochs
	leads    func() bool     // whether this node leads
	interval time.Duration   // between checks
	mark     session.Mark    // the furthest state the database is known to have reached
	limit    backoff.Timeout // of recalling it
}

// RecallMark reads the mark from JetStream, possibly of earlier nodes. A wiped stream has none.
func (w *rewind) RecallMark(ctx context.Context) error {
	ctx, end := w.limit.Context(ctx)
	defer end()
	stream, err := w.node.JS.Stream(ctx, wire.StreamFlow)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check stream %s: %w", wire.StreamFlow, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, wire.DatabaseMark)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the database's mark: %w", err)
	}
	if err := json.Unmarshal(msg.Data, &w.mark); err != nil {
		w.mark = session.Mark{}
		w.node.Log.Warn("the mark of the database in JetStream cannot be read; going without it", zap.Error(err))
	}
	return nil
}

// Run compares the database with the mark until ctx ends. The leader raises it, and saves it for later nodes.
func (w *rewind) Run(ctx context.Context) {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for {
		if err := w.lookAtDatabase(ctx); err != nil && ctx.Err() == nil {
			w.node.Log.Warn("check how far the database has come", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *rewind) lookAtDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	leads := w.leads()
	look := session.New(w.node.Store).ReadMark
	if leads && w.mark.Lineage != uuid.Nil {
		look = func(ctx context.Context) (session.Mark, error) {
			return session.New(w.node.Store).RaiseMark(ctx, w.mark)
		}
	}
	have, err := look(ctx)
	if err != nil {
		return err
	}
	if have.Moved || have.Behind(w.mark) {
		return w.passGap(ctx, have)
	}
	if w.mark = have; !leads {
		return nil
	}
	return w.keepMark(ctx)
}

// passGap reissues everything in flight, since the database may have lost its outcome.
func (w *rewind) passGap(ctx context.Context, have session.Mark) error {
	known := have.Later(w.mark)
	epoch, _ := w.streams.Now()
	known.Epoch = max(known.Epoch, epoch)
	gap, err := session.New(w.node.Store).PassGap(ctx, known)
	if err != nil {
		return err
	}
	if gap != nil {
		w.node.Log.Error("the database lost recent commits, or another server took over; reissuing what was in flight",
			zap.Bool("lost", gap.Lost), zap.Time("from", gap.From), zap.Time("to", gap.To), zap.Int("runs", gap.Runs))
		w.node.PublishEvents()
	}
	w.node.Look()
	return nil
}

// keepMark saves the mark in JetStream, without expiry.
func (w *rewind) keepMark(ctx context.Context) error {
	doc, err := json.Marshal(w.mark)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: wire.DatabaseMark, Data: doc, Header: nats.Header{jetstream.MsgTTLHeader: {"never"}}}
	ctx, cancel := context.WithTimeout(ctx, core.QueryTimeout)
	defer cancel()
	if _, err := w.node.JS.PublishMsg(ctx, msg); err != nil {
		w.node.Log.Debug("keep the database's mark", zap.Error(err)) // the next one is saved
	}
	return nil
}
