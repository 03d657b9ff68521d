package record

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Error codes of items whose result in pieces cannot be recorded.
const (
	codeResultDamaged = "result_damaged"
	codeResultsOpen   = "too_many_open_results"
)

type piece struct {
	msg core.Message
	*wire.Piece
}

// pieceTaker stores results that come in pieces.
type pieceTaker struct {
	*Recorder

	kept export.Store
}

// take stores and acknowledges pieces, and returns the answers that they complete, whose messages are acknowledged
// after recording. A redelivered piece is harmless.
func (t pieceTaker) take(ctx context.Context, pieces []piece) (complete []reading) {
	if len(pieces) == 0 {
		return nil
	}
	taken, err := t.kept.Take(ctx, claimsOf(pieces))
	if err != nil {
		t.refuse(ctx, pieces, err)
		return nil
	}
	t.node.Faults.Hit(fault.PiecesKept)
	for i := range pieces {
		p := &pieces[i]
		answer, err := t.judge(ctx, p, &taken[i])
		switch {
		case err != nil:
			t.node.Log.Error("cannot check a result that came in pieces; giving its last back", zap.Error(err))
			t.replies.Settle(p.msg, core.GiveBack)
		case answer != nil:
			complete = append(complete, reading{p.msg, *answer})
		}
	}
	return complete
}

// refuse handles pieces not stored. While PostgreSQL is unavailable they are released; otherwise the refused one is
// quarantined.
func (t pieceTaker) refuse(ctx context.Context, pieces []piece, err error) {
	_, answered := errors.AsType[*pgconn.PgError](err)
	if answered && len(pieces) > 1 {
		for i := range pieces {
			if complete := t.take(ctx, pieces[i:i+1]); len(complete) > 0 {
				t.recordRead(ctx, complete)
			}
		}
		return
	}
	if workqueue.Refused(err) {
		t.takeUnreadable(ctx, unreadable{pieces[0].msg, "refused", err.Error(), workqueue.SliceID(pieces[0].Slice)})
		return
	}
	t.node.Log.Error("cannot keep pieces of results; giving them back", zap.Int("pieces", len(pieces)), zap.Error(err))
	for i := range pieces {
		t.replies.Settle(pieces[i].msg, core.GiveBack)
	}
	core.Signal(t.unrecorded)
}

func claimsOf(pieces []piece) []export.Piece {
	list := make([]export.Piece, len(pieces))
	for i, p := range pieces {
		list[i] = export.Piece{Number: p.Number, Data: p.Data, Claim: export.Claim{
			Slice: workqueue.SliceID(p.Slice), Endpoint: p.Endpoint, Ordinal: workqueue.Ordinal(p.Ordinal), Pieces: p.Pieces,
			Bytes: p.Bytes, SHA256: p.SHA256, ContentType: p.ContentType}}
	}
	return list
}

// judge returns the answer that a piece completes. Without one it has handled the piece.
func (t pieceTaker) judge(ctx context.Context, p *piece, of *export.Taken) (*settle.Answer, error) {
	slice := workqueue.SliceID(p.Slice)
	failed := func(code, format string, args ...any) *settle.Answer {
		t.node.Log.Warn("a result that came in pieces cannot be taken", zap.Stringer("slice", slice),
			zap.Int("ordinal", p.Ordinal), zap.String("code", code))
		return p.answer(settle.Slot{Err: &workqueue.SlotError{Code: code, Message: fmt.Sprintf(format, args...),
			Retry: true}})
	}
	switch of.Standing {
	case export.Stale:
		t.node.Stats.Stale.Add(1)
		t.replies.Settle(p.msg, jetstream.Msg.Ack)
	case export.Foreign:
		t.quarantine(ctx, p.msg, "foreign_ordinal", fmt.Sprintf(
			"a piece of a result for ordinal %d, which was not requested", p.Ordinal), slice)
	case export.WrongEndpoint:
		detail := objection(settle.Verdict{Endpoint: of.Endpoint}, p.Endpoint)
		t.quarantine(ctx, p.msg, detail.reason, detail.text, slice)
	case export.TooMuch:
		return failed(codeResultsOpen, "over %d MiB of results in pieces were begun for the request and not ended; send one "+
			"after the other", export.MaxOpen>>20), nil
	case export.WrongSize:
		return failed(codeResultDamaged, "the pieces of the result have other bytes than the %d that were announced",
			p.Bytes), nil
	case export.Complete:
		whole := io.Discard
		var json bytes.Buffer
		if p.ContentType == "" {
			t.whole.Lock() // of texts that may have 64 MiB only one is held
			defer t.whole.Unlock()
			json.Grow(int(p.Bytes))
			whole = &json
		}
		right, err := t.kept.Verify(ctx, of.ID, p.SHA256, whole)
		if err != nil {
			return nil, err
		}
		if !right {
			return failed(codeResultDamaged, "the SHA-256 of the result is not %s, which was announced",
				hex.EncodeToString(p.SHA256[:])), nil
		}
		if p.ContentType == "" {
			if flaw := wire.FlawOf(json.Bytes(), t.cfg.Limits.WithDefaults().MaxDepth); flaw != nil {
				return p.answer(settle.Slot{Err: core.SlotError(flaw.Slot())}), nil
			}
		}
		return p.answer(settle.Slot{Result: export.Reference(p.Bytes, p.SHA256), ContentType: p.ContentType,
			Large: &settle.Large{ID: of.ID, Bytes: p.Bytes}}), nil
	default:
		t.replies.Settle(p.msg, jetstream.Msg.Ack) // after the commit that stores it
	}
	return nil, nil
}

func (p *piece) answer(slot settle.Slot) *settle.Answer {
	slot.Ordinal = workqueue.Ordinal(p.Ordinal)
	return &settle.Answer{Slice: workqueue.SliceID(p.Slice), Endpoint: p.Endpoint, Service: p.Service, Answered: -1,
		Slots: []settle.Slot{slot}}
}
