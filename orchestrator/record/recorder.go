// Package record reads replies, records many per transaction, and acknowledges them after its commit.
package record

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// smallBytes is the size limit of replies in the small lane.
	smallBytes = 16 << 10
	// heldBytes limits the other replies that are not recorded yet: what two commits have, and the next one.
	heldBytes = 3 * core.RecordBytes
	// quickCommit is the duration of a commit by an idle PostgreSQL, gatherTime the longest that replies gather
	// otherwise.
	quickCommit, gatherTime = 5 * time.Millisecond, 100 * time.Millisecond
)

// Config configures a recorder. No field has a default.
type Config struct {
	RecordBatch int         // maximum replies of one commit
	Recorders   int         // concurrent commits
	Limits      wire.Limits // of replies
}

// givenUp stores requests that services abandoned as dead letters.
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
	replies    *core.SharedConsumer // the shared reply consumer
	unrecorded chan struct{}        // a reply could not be recorded
	held       *semaphore.Weighted  // of heldBytes
	whole      sync.Mutex           // for a result in pieces that is read entirely
}

// New returns a recorder.
func New(k *core.Core, streams core.Epochs, letters givenUp, after core.OutcomeObserver, cfg Config) *Recorder {
	return &Recorder{node: k, cfg: cfg, outcomes: k, failures: k.Settling, unreadable: deadletter.New(k.Store),
		streams: streams, letters: letters, after: after,
		replies:    core.NewShared(k, wire.StreamReply, wire.RecorderConsumer, stream.EnsureRecorder),
		unrecorded: make(chan struct{}, 1), held: semaphore.NewWeighted(heldBytes)}
}

// Run reads and records replies until ctx ends, then records those already read.
func (r *Recorder) Run(ctx, draining context.Context) {
	replies := core.NewLanes[core.Message](r.cfg.RecordBatch)
	recorders := replies.Work(1, func(lane <-chan core.Message) {
		core.Batch(lane, r.cfg.Recorders, gatherTime, r.full, func(batch []core.Message) { r.commit(draining, batch) })
	})
	r.feed(ctx, replies)
	replies.Close()
	recorders.Wait()
}

// isSmall reports whether a reply is quick to record. A compressed one may be large.
func isSmall(reply jetstream.Msg) bool {
	return len(reply.Data()) <= smallBytes && reply.Headers().Get(wire.HeaderEncoding) == ""
}

// weight is the share of heldBytes of replies. Small ones have none, so that they wait for no others.
func weight(replies ...core.Message) (bytes int64) {
	for _, reply := range replies {
		if !isSmall(reply) {
			bytes += min(int64(len(reply.Data())), heldBytes)
		}
	}
	return bytes
}

func (r *Recorder) full(batch []core.Message) bool {
	size := 0
	for _, msg := range batch {
		size += len(msg.Data())
	}
	return len(batch) >= r.cfg.RecordBatch || size >= core.RecordBytes
}

// commit records replies. The slower commits are, the longer replies gather for the next one, while more may come.
func (r *Recorder) commit(ctx context.Context, batch []core.Message) {
	begun, held := time.Now(), weight(batch...)
	r.recordBatch(ctx, batch)
	r.held.Release(held)
	if slow := time.Since(begun) - quickCommit; slow > 0 && !r.full(batch) {
		select {
		case <-r.node.Awaited.None():
		case <-time.After(min(slow, gatherTime)):
		case <-ctx.Done():
		}
	}
}

type reading struct {
	msg    core.Message
	answer settle.Answer
}

// recordBatch parses replies and records them, in several commits if their uncompressed size demands it.
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
	for _, u := range unread { // last: they may be about the same slices, which end with this
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

// recordRead commits replies and acknowledges them. If PostgreSQL refuses a batch, it records one at a time, and
// quarantines a refused one. While PostgreSQL is unavailable it releases them for other nodes, and stops reading.
func (r *Recorder) recordRead(ctx context.Context, read []reading) {
	batch := make([]core.Recording, len(read))
	for i := range read {
		h := read[i].msg.Headers()
		run, _ := uuid.Parse(h.Get(wire.HeaderRun)) // parsed before, so it is valid
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
		r.replies.Settle(read[i].msg, jetstream.Msg.Ack) // only after the commit: after a crash in between it is redelivered
	}
	r.node.Faults.Hit(fault.ReplyAcked)
	r.after.Seen(out, cameAt(read))
}

// keepGivenUp stores a dead letter of a slice that a service abandoned after too many deliveries. Its items continue
// in smaller slices. A redelivered reply stores the same letter.
func (r *Recorder) keepGivenUp(ctx context.Context, of *reading) error {
	if of.answer.Failure == nil || of.answer.Failure.Code != workqueue.CodeDeliveries {
		return nil
	}
	run, _ := uuid.Parse(of.msg.Headers().Get(wire.HeaderRun)) // parsed before, so it is valid
	return r.letters.GivenUp(ctx, &of.answer, run)
}

type complaint struct{ reason, text string }

// objection returns what was wrong with an answer, if a person should see it.
func objection(v settle.Verdict, from string) complaint {
	switch {
	case v.Endpoint != "":
		return complaint{"wrong_endpoint",
			fmt.Sprintf("the reply came from endpoint %s; the slice was sent to %s", from, v.Endpoint)}
	case len(v.Foreign) > 0:
		return complaint{"foreign_ordinal",
			fmt.Sprintf("%d slots for items that were not requested, the first is ordinal %d; the rest were taken",
				len(v.Foreign), v.Foreign[0])}
	default:
		return complaint{}
	}
}

func (r *Recorder) quarantine(
	ctx context.Context, msg core.Message, reason, detail string, slice workqueue.SliceID,
) {
	r.node.Stats.Quarantined.Add(1)
	r.node.Meter.Happened(core.EventQuarantined, reason, 1)
	r.node.Log.Warn("reply quarantined", zap.String("reason", reason), zap.String("subject", msg.Subject()),
		zap.Stringer("slice", slice))
	r.node.Log.Debug("reply quarantined", zap.String("detail", detail)) // may quote the reply
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	run, _ := uuid.Parse(msg.Headers().Get(wire.HeaderRun)) // zero if missing
	err := r.unreadable.Quarantine(ctx, deadletter.Quarantined{Reason: reason, Detail: detail, Subject: msg.Subject(),
		Run: run, Slice: uuid.UUID(slice), Headers: msg.Headers(), Body: msg.Data()})
	if err != nil {
		r.node.Log.Warn("quarantine; the reply will come again", zap.Error(err))
		r.replies.Settle(msg, core.GiveBack)
		return
	}
	r.replies.Settle(msg, jetstream.Msg.Ack) // after the commit that stores it
}

// cameAt returns when the newest reply came into its stream, by the server's clock, at most now.
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
