package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/results"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// recordBytes bounds the replies of one commit, and what is fetched ahead.
	recordBytes = 8 << 20
	// smallBytes is the largest reply that is recorded beside the large ones, and before them.
	smallBytes = 16 << 10
	// quickCommit is what a commit takes of a PostgreSQL that has time, gatherTime for how long replies gather at the most
	// when it has not.
	quickCommit, gatherTime = 5 * time.Millisecond, 20 * time.Millisecond
	// nakDelay is how long a reply that could not be recorded rests before any node may try again.
	nakDelay = time.Second
)

// runRecording reads replies and records them until ctx ends, and then records what has been read.
func (n *Node) runRecording(ctx, draining context.Context) {
	replies := newLanes[fetched](n.cfg.RecordBatch)
	recorders := replies.work(n.cfg.Recorders, func(lane <-chan fetched) { n.record(draining, lane) })
	n.feed(ctx, replies)
	replies.close()
	recorders.Wait()
}

// isSmall reports whether a reply takes no time to record. A compressed one may hold anything.
func isSmall(reply jetstream.Msg) bool {
	return len(reply.Data()) <= smallBytes && reply.Headers().Get(wire.HeaderEncoding) == ""
}

// record takes replies as they come: one at once when there is one, many in a commit when they queue up.
func (n *Node) record(ctx context.Context, replies <-chan fetched) {
	for first := range replies {
		batch, size := []fetched{first}, len(first.Data())
	more:
		for len(batch) < n.cfg.RecordBatch && size < recordBytes {
			select {
			case msg, open := <-replies:
				if !open {
					break more
				}
				batch, size = append(batch, msg), size+len(msg.Data())
			default:
				break more
			}
		}
		begun := time.Now()
		n.recordBatch(ctx, batch)
		full := len(batch) == n.cfg.RecordBatch || size >= recordBytes
		if slow := time.Since(begun) - quickCommit; slow > 0 && !full {
			_ = backoff.Sleep(ctx, min(slow, gatherTime)) // the more there is to do, the more of it goes into a commit
		}
	}
}

// reading is a reply that was understood.
type reading struct {
	msg    fetched
	answer settle.Answer
}

// recordBatch reads replies and records them, in more than one commit when they are larger than their messages: a
// small compressed message may hold a large reply.
func (n *Node) recordBatch(ctx context.Context, batch []fetched) {
	read := make([]reading, 0, len(batch))
	var unread []unreadable
	var pieces []piece
	size := 0
	for _, msg := range batch {
		if stream.IsProbe(msg.Subject()) {
			n.settle(msg, jetstream.Msg.Ack)
			continue
		}
		if wire.IsPiece(msg.Headers()) {
			p, err := wire.ParsePiece(msg.Subject(), msg.Headers(), msg.Data())
			if err != nil {
				unread = append(unread, asUnreadable(msg, err))
			} else {
				pieces = append(pieces, piece{msg, p})
			}
			continue
		}
		reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), n.cfg.Limits)
		if err != nil {
			unread = append(unread, asUnreadable(msg, err))
			continue
		}
		read = append(read, reading{msg, answerOf(reply)})
		if size += reply.Size; size >= recordBytes {
			n.recordRead(ctx, read)
			read, size = read[:0], 0
		}
	}
	if read = append(read, (pieceTaker{n, results.New(n.store)}).take(ctx, pieces)...); len(read) > 0 {
		n.recordRead(ctx, read)
	}
	for _, u := range unread { // after the others: they may be about the same slices, which end with this
		n.takeUnreadable(ctx, u)
	}
}

func answerOf(r *wire.Reply) settle.Answer {
	a := settle.Answer{Slice: workqueue.SliceID(r.Slice), Endpoint: r.Endpoint, Service: r.Service,
		Answered: r.Answered, Took: r.Took.Seconds(), Slots: make([]settle.Slot, len(r.Slots))}
	for i := range r.Slots {
		s := &r.Slots[i]
		a.Slots[i] = settle.Slot{Ordinal: workqueue.Ordinal(s.Ordinal), Result: s.Data, ContentType: s.ContentType,
			Err: slotError(s.Err)}
	}
	a.Failure = slotError(r.Failure)
	return a
}

func slotError(e *wire.SlotError) *workqueue.SlotError {
	if e == nil {
		return nil
	}
	return &workqueue.SlotError{Code: e.Code, Message: e.Message, Retry: e.Retry}
}

// recordRead commits replies and acknowledges them. When PostgreSQL refuses them, they are taken one by one, and one
// that it refuses for what is in it is put aside. When PostgreSQL cannot be reached they are given back, for another
// node to record, and this one reads no more until it can.
func (n *Node) recordRead(ctx context.Context, read []reading) {
	n.cfg.Faults.Hit(fault.RecordBefore)
	answers := make([]settle.Answer, len(read))
	for i := range read {
		answers[i] = read[i].answer
	}
	traced := n.traceRecording(ctx, read)
	begun := time.Now()
	out, err := n.settling.Record(ctx, answers)
	traced(out, err)
	_, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		measureRecording(n.cfg.Meter, read, time.Since(begun))
		n.cfg.Faults.Hit(fault.RecordCommitted)
		n.recorded(ctx, read, out)
	case len(read) > 1 && (answered || workqueue.Refused(err)):
		for i := range read {
			n.recordRead(ctx, read[i:i+1])
		}
	case workqueue.Refused(err):
		n.takeUnreadable(ctx, unreadable{read[0].msg, "refused", err.Error(), read[0].answer.Slice})
	default:
		n.log.Error("cannot record; giving replies back", zap.Int("replies", len(read)), zap.Error(err))
		for i := range read {
			n.settle(read[i].msg, giveBack)
		}
		signal(n.unrecorded)
	}
}

// recorded acknowledges replies, now that their commit has succeeded, and tells of what else they brought.
func (n *Node) recorded(ctx context.Context, read []reading, out settle.Recorded) {
	n.stats.commits.Add(1)
	n.stats.replies.Add(int64(len(read)))
	for i, v := range out.Verdicts {
		n.stats.slots.Add(int64(v.Taken))
		n.stats.duplicates.Add(int64(v.Duplicates))
		if v.Stale {
			n.stats.stale.Add(1)
			n.log.Debug("stale reply", zap.Stringer("slice", read[i].answer.Slice))
		}
		if detail := objection(v, read[i].answer.Endpoint); detail.reason != "" {
			n.quarantine(ctx, read[i].msg, detail.reason, detail.text, read[i].answer.Slice)
			continue
		}
		if err := n.noteGivenUp(ctx, &read[i]); err != nil {
			n.log.Warn("keep a dead letter; the reply will come again", zap.Error(err))
			n.settle(read[i].msg, giveBack)
			continue
		}
		n.settle(read[i].msg, jetstream.Msg.Ack) // after the commit: a crash in between brings the reply again
	}
	n.cfg.Faults.Hit(fault.ReplyAcked)
	n.followUp(out, cameAt(read))
}

// followUp sees to what a recording brought beside outcomes, of replies that came at a time.
func (n *Node) followUp(out settle.Recorded, came time.Time) {
	n.alarms.set(time.Now(), out.Due)
	n.wakeFreed()
	n.announce(out.Completed, came)
	n.watch.add(out.Look)
}

// noteGivenUp leaves a dead letter of a slice that a service has given up after too many deliveries, for people to see:
// its items go on in smaller slices. A reply that comes again after a crash leaves the same one.
func (n *Node) noteGivenUp(ctx context.Context, r *reading) error {
	if r.answer.Failure == nil || r.answer.Failure.Code != workqueue.CodeDeliveries {
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	run, _ := uuid.Parse(r.msg.Headers().Get(wire.HeaderRun)) // the reply was understood: it says
	isNew, err := deadletter.New(n.store).Bury(timed, givenUpDeadLetter(&r.answer, run))
	if isNew {
		n.stats.buried.Add(1)
		n.cfg.Meter.Happened(EventDead, r.answer.Endpoint, 1)
	}
	return err
}

// announce sees to it that the events of completed runs are published now. What completed them came at a time.
func (n *Node) announce(completed []settle.Completion, came time.Time) {
	for _, c := range completed {
		n.log.Info("run completed", zap.Stringer("run", c.Run), zap.Int32("generation", int32(c.Generation)),
			zap.Int64("done", c.Done), zap.Int64("failed", c.Failed))
		n.fresh.add(freshEvent{c.Event, came})
		outcome := OutcomeClean
		if c.Failed > 0 {
			outcome = OutcomeFailures
		}
		n.cfg.Meter.Happened(EventCompleted, outcome, 1)
	}
}

type complaint struct{ reason, text string }

// objection says what of an answer could not be taken, if that is worth a person's look.
func objection(v settle.Verdict, from string) complaint {
	switch {
	case v.Endpoint != "":
		return complaint{"wrong_endpoint",
			fmt.Sprintf("the reply came from endpoint %s; the slice was sent to %s", from, v.Endpoint)}
	case len(v.Foreign) > 0:
		return complaint{"foreign_ordinal",
			fmt.Sprintf("%d slots for items that were not asked for, the first is ordinal %d; the others were taken",
				len(v.Foreign), v.Foreign[0])}
	default:
		return complaint{}
	}
}

// quarantine puts a message aside with its reason, and acknowledges it so that the consumer goes on.
func (n *Node) quarantine(ctx context.Context, msg fetched, reason, detail string, slice workqueue.SliceID) {
	n.stats.quarantined.Add(1)
	n.cfg.Meter.Happened(EventQuarantined, reason, 1)
	n.log.Warn("reply quarantined", zap.String("reason", reason), zap.String("detail", detail),
		zap.String("subject", msg.Subject()), zap.Stringer("slice", slice))
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	run, _ := uuid.Parse(msg.Headers().Get(wire.HeaderRun)) // zero when it does not say
	err := deadletter.New(n.store).Quarantine(ctx, deadletter.Quarantined{Reason: reason, Detail: detail,
		Subject: msg.Subject(),
		Run:     run, Slice: uuid.UUID(slice), Headers: msg.Headers(), Body: msg.Data()})
	if err != nil {
		n.log.Warn("quarantine; the reply will come again", zap.Error(err))
		n.settle(msg, giveBack)
		return
	}
	n.settle(msg, jetstream.Msg.Ack) // after the commit that keeps it
}
