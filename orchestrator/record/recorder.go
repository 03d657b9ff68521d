// Package record reads replies and records them, many in a transaction, and acknowledges them after its commit.
package record

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// smallBytes is the largest reply that is recorded beside the large ones, and before them.
	smallBytes = 16 << 10
	// quickCommit is what a commit takes of a PostgreSQL that has time, gatherTime for how long replies gather at most
	// when it has not.
	quickCommit, gatherTime = 5 * time.Millisecond, 100 * time.Millisecond
)

// Config sets a recorder up. Nothing in it has a default.
type Config struct {
	RecordBatch int         // replies of one commit at most
	Recorders   int         // commits in progress at once
	Limits      wire.Limits // of the replies read
}

// givenUp keeps what services have given up.
type givenUp interface {
	GivenUp(ctx context.Context, a *settle.Answer, run uuid.UUID) error
}

// outcomes records replies. See [core.Core.Record].
type outcomes interface {
	Record(ctx context.Context, batch []core.Recording) (out settle.Recorded, apart bool, err error)
}

// failures records that replies cannot be read. See [settle.Store].
type failures interface {
	Record(ctx context.Context, answers []settle.Answer) (settle.Recorded, error)
}

// quarantine keeps messages that cannot be taken. See [deadletter.Store].
type quarantine interface {
	Quarantine(ctx context.Context, m deadletter.Quarantined) error
}

// Recorder records replies.
type Recorder struct {
	node       *core.Core
	cfg        Config
	outcomes   outcomes
	failures   failures
	unreadable quarantine
	streams    core.Epochs
	letters    givenUp
	after      core.OutcomeObserver
	replies    *core.SharedConsumer // the consumer
	unrecorded chan struct{}        // a reply could not be recorded
}

// New returns what records replies.
func New(k *core.Core, streams core.Epochs, letters givenUp, after core.OutcomeObserver, cfg Config) *Recorder {
	return &Recorder{node: k, cfg: cfg, outcomes: k, failures: k.Settling, unreadable: deadletter.New(k.Store),
		streams: streams, letters: letters, after: after,
		replies:    core.NewShared(k, wire.StreamReply, wire.RecorderConsumer, stream.EnsureRecorder),
		unrecorded: make(chan struct{}, 1)}
}

// Run reads replies and records them until ctx ends, and then records what has been read.
func (r *Recorder) Run(ctx, draining context.Context) {
	replies := core.NewLanes[core.Message](r.cfg.RecordBatch)
	recorders := replies.Work(1, func(lane <-chan core.Message) {
		core.Batch(lane, r.cfg.Recorders, gatherTime, r.full, func(batch []core.Message) { r.commit(draining, batch) })
	})
	r.feed(ctx, replies)
	replies.Close()
	recorders.Wait()
}

// isSmall reports whether a reply takes no time to record. A compressed one may hold anything.
func isSmall(reply jetstream.Msg) bool {
	return len(reply.Data()) <= smallBytes && reply.Headers().Get(wire.HeaderEncoding) == ""
}

// full reports whether a commit has all that it may have.
func (r *Recorder) full(batch []core.Message) bool {
	size := 0
	for _, msg := range batch {
		size += len(msg.Data())
	}
	return len(batch) >= r.cfg.RecordBatch || size >= core.RecordBytes
}

// commit records replies. The more there is to do, the more of it goes into the next commit.
func (r *Recorder) commit(ctx context.Context, batch []core.Message) {
	begun := time.Now()
	r.recordBatch(ctx, batch)
	if slow := time.Since(begun) - quickCommit; slow > 0 && !r.full(batch) {
		_ = backoff.Sleep(ctx, min(slow, gatherTime))
	}
}

// reading is a reply that was understood.
type reading struct {
	msg    core.Message
	answer settle.Answer
}

// recordBatch reads replies and records them, in more than one commit when they are larger than their messages: a
// small compressed message may hold a large reply.
func (r *Recorder) recordBatch(ctx context.Context, batch []core.Message) {
	read := make([]reading, 0, len(batch))
	var unread []unreadable
	var pieces []piece
	size := 0
	for _, msg := range batch {
		if stream.IsProbe(msg.Subject()) {
			r.replies.Settle(msg, jetstream.Msg.Ack)
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
		reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), r.cfg.Limits)
		if err != nil {
			unread = append(unread, asUnreadable(msg, err))
			continue
		}
		read = append(read, reading{msg, answerOf(reply)})
		if size += reply.Size; size >= core.RecordBytes {
			r.recordRead(ctx, read)
			read, size = read[:0], 0
		}
	}
	if read = append(read, (pieceTaker{r, export.New(r.node.Store)}).take(ctx, pieces)...); len(read) > 0 {
		r.recordRead(ctx, read)
	}
	for _, u := range unread { // after the others: they may be about the same slices, which end with this
		r.takeUnreadable(ctx, u)
	}
}

func answerOf(r *wire.Reply) settle.Answer {
	a := settle.Answer{Slice: workqueue.SliceID(r.Slice), Endpoint: r.Endpoint, Service: r.Service,
		Answered: r.Answered, Took: r.Took.Seconds(), Slots: make([]settle.Slot, len(r.Slots))}
	for i := range r.Slots {
		s := &r.Slots[i]
		a.Slots[i] = settle.Slot{Ordinal: workqueue.Ordinal(s.Ordinal), Result: s.Data, ContentType: s.ContentType,
			Err: core.SlotError(s.Err)}
	}
	a.Failure = core.SlotError(r.Failure)
	return a
}

// recordRead commits replies and acknowledges them. When PostgreSQL refuses them, they are taken one by one, and one
// that it refuses for what is in it is put aside. When PostgreSQL cannot be reached they are given back, for another
// node to record, and this one reads no more until it can.
func (r *Recorder) recordRead(ctx context.Context, read []reading) {
	batch := make([]core.Recording, len(read))
	for i := range read {
		h := read[i].msg.Headers()
		run, _ := uuid.Parse(h.Get(wire.HeaderRun)) // it was parsed before
		batch[i] = core.Recording{Answer: read[i].answer, Run: run, Trace: wire.TraceOfHeader(h)}
	}
	out, apart, err := r.outcomes.Record(ctx, batch)
	switch {
	case err == nil:
		r.recorded(ctx, read, out)
	case apart:
		for i := range read {
			r.recordRead(ctx, read[i:i+1])
		}
	case workqueue.Refused(err):
		r.takeUnreadable(ctx, unreadable{read[0].msg, "refused", err.Error(), read[0].answer.Slice})
	default:
		r.node.Log.Error("cannot record; giving replies back", zap.Int("replies", len(read)), zap.Error(err))
		for i := range read {
			r.replies.Settle(read[i].msg, core.GiveBack)
		}
		core.Signal(r.unrecorded)
	}
}

// recorded acknowledges replies, now that their commit has succeeded, and tells of what else they brought.
func (r *Recorder) recorded(ctx context.Context, read []reading, out settle.Recorded) {
	r.node.Stats.Replies.Add(int64(len(read)))
	for i, v := range out.Verdicts {
		if about, err := read[i].msg.Metadata(); err == nil && about.NumDelivered > 1 {
			r.node.Meter.Happened(core.EventRedelivered, read[i].answer.Endpoint, 1)
		}
		if detail := objection(v, read[i].answer.Endpoint); detail.reason != "" {
			r.quarantine(ctx, read[i].msg, detail.reason, detail.text, read[i].answer.Slice)
			continue
		}
		if err := r.keepGivenUp(ctx, &read[i]); err != nil {
			r.node.Log.Warn("keep a dead letter; the reply will come again", zap.Error(err))
			r.replies.Settle(read[i].msg, core.GiveBack)
			continue
		}
		r.replies.Settle(read[i].msg, jetstream.Msg.Ack) // after the commit: a crash in between brings the reply again
	}
	r.node.Faults.Hit(fault.ReplyAcked)
	r.after.Seen(out, cameAt(read))
}

// keepGivenUp leaves a dead letter of a slice that a service has given up after too many deliveries, for people to see:
// its items go on in smaller slices. A reply that comes again after a crash leaves the same one.
func (r *Recorder) keepGivenUp(ctx context.Context, of *reading) error {
	if of.answer.Failure == nil || of.answer.Failure.Code != workqueue.CodeDeliveries {
		return nil
	}
	run, _ := uuid.Parse(of.msg.Headers().Get(wire.HeaderRun)) // the reply was understood: it says
	return r.letters.GivenUp(ctx, &of.answer, run)
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
func (r *Recorder) quarantine(
	ctx context.Context, msg core.Message, reason, detail string, slice workqueue.SliceID,
) {
	r.node.Stats.Quarantined.Add(1)
	r.node.Meter.Happened(core.EventQuarantined, reason, 1)
	r.node.Log.Warn("reply quarantined", zap.String("reason", reason), zap.String("detail", detail),
		zap.String("subject", msg.Subject()), zap.Stringer("slice", slice))
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	run, _ := uuid.Parse(msg.Headers().Get(wire.HeaderRun)) // zero when it does not say
	err := r.unreadable.Quarantine(ctx, deadletter.Quarantined{Reason: reason, Detail: detail, Subject: msg.Subject(),
		Run: run, Slice: uuid.UUID(slice), Headers: msg.Headers(), Body: msg.Data()})
	if err != nil {
		r.node.Log.Warn("quarantine; the reply will come again", zap.Error(err))
		r.replies.Settle(msg, core.GiveBack)
		return
	}
	r.replies.Settle(msg, jetstream.Msg.Ack) // after the commit that keeps it
}

// cameAt is when the newest of some replies came into its stream, as its server's clock has it, but not after now.
func cameAt(read []reading) (at time.Time) {
	for i := range read {
		if about, err := read[i].msg.Metadata(); err == nil && about.Timestamp.After(at) {
			at = about.Timestamp
		}
	}
	if now := time.Now(); at.IsZero() || at.After(now) {
		return now
	}
	return at
}
