package intake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// KeyHeader is the message header that holds an item's key, instead of a field.
const KeyHeader = "Tranche-Key"

const (
	streamWait  = 2 * time.Second  // for the next message, before silent checks why none comes
	streamQuiet = 20               // attempts to count a stream's messages while none arrive
	streamAsk   = 10 * time.Second // for an answer about a stream
	pullBytes   = 8 << 20          // of messages read ahead

	maxStreamName = 255 // bytes, the server's limit
	// streamResets limits how often a lost consumer is recreated, over some seconds. If the stream itself is gone, the
	// client would otherwise retry indefinitely.
	streamResets = 4
	maxSilences  = 15

	// ownStreams begin with this. They hold messages of all namespaces.
	ownStreams = "TRANCHE_"
)

// StreamSource is a JetStream stream to read up to its last message at the start.
type StreamSource struct {
	Name       string
	Subject    string // only its messages; wildcards allowed; empty: all
	From       uint64 // first sequence to read; 0: all
	MaxMessage int64  // the maximum message size
}

type streamReader struct {
	ctx    context.Context //nolint:containedctx // it is the caller's, for as long as the reader lives
	source StreamSource
	stream jetstream.Stream
	lines  ndjsonReader
	begun  time.Time // when the stream was created
	start  jetstream.StreamState
	want   int64 // total messages expected; -1: unknown
	got    int64
	seen   uint64 // the last sequence read
	last   bool   // no more messages follow
	pull   func() (message, error)
	end    func()
}

type message struct {
	seq  uint64
	key  string // from the header
	data []byte
	last bool // the last one at the time
}

// OpenStream reads the messages of a stream as items: each is a JSON object like a line of NDJSON, with its key in
// the header Tranche-Key or in a field. Nothing is consumed. If messages are removed before they were read, reading
// ends with an error, so a run never has fewer items than the stream had.
func OpenStream(ctx context.Context, js jetstream.JetStream, source StreamSource, cfg Config) (*Reader, error) {
	given := cfg
	cfg = cfg.withDefaults().raw()
	if err := source.check(); err != nil {
		return nil, err
	}
	r := &streamReader{ctx: ctx, source: source, end: func() {}}
	r.lines = *newNDJSON(&lineReader{limit: cfg.MaxRowBytes}, cfg)
	asking, cancel := context.WithTimeout(ctx, streamAsk)
	defer cancel()
	var err error
	if r.stream, err = js.Stream(asking, source.Name); err != nil {
		return nil, r.unknown(asking, js, err)
	}
	if err := r.look(asking); err != nil {
		return nil, err
	}
	if r.source.From > r.start.LastSeq {
		return nil, r.fail("its last message is %d, before the first to read, %d", r.start.LastSeq, r.source.From)
	}
	if r.stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		r.readOneByOne()
	} else if err := r.consume(asking); err != nil {
		r.end()
		return nil, err
	}
	out := &Reader{rows: r, format: Stream, unit: "message", close: func() error { r.end(); return nil }}
	return out.with(given), nil
}

// check refuses invalid names before they reach the server. The server closes the node's only connection
// permanently when a protocol line is too long.
func (s *StreamSource) check() error {
	if strings.HasPrefix(s.Name, ownStreams) {
		return &row.InputError{Reason: fmt.Sprintf("stream %s: the streams %s… are the engine's own; give one of your own",
			row.Quote(s.Name), ownStreams)}
	}
	for _, name := range []struct{ what, text string }{{"name", s.Name}, {"subject", s.Subject}} {
		unfit := func(c rune) bool { return c == utf8.RuneError || unicode.IsSpace(c) || !unicode.IsPrint(c) }
		gap := name.text != "" && strings.Contains("."+name.text+".", "..")
		if gap || len(name.text) > maxStreamName || strings.ContainsFunc(name.text, unfit) {
			return &row.InputError{Reason: fmt.Sprintf("stream %s: the %s %s is none: want at most %d bytes, without spaces, "+
				"control characters and dots at its ends or in a row", row.Quote(s.Name), name.what, row.Quote(name.text),
				maxStreamName)}
		}
	}
	return nil
}

func (r *streamReader) KeyName() string { return r.lines.key }

func (r *streamReader) fail(format string, args ...any) error {
	return &row.InputError{Reason: "stream " + row.Quote(r.source.Name) + ": " + fmt.Sprintf(format, args...)}
}

func (r *streamReader) unknown(ctx context.Context, js jetstream.JetStream, err error) error {
	if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrInvalidStreamName) {
		return fmt.Errorf("check stream %s: %w", r.source.Name, err)
	}
	var names []string
	for name := range js.StreamNames(ctx).Name() {
		if !strings.HasPrefix(name, ownStreams) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return r.fail("there is no such stream, and no other")
	}
	return r.fail("there is no such stream; there are %s", row.List(names))
}

// look records the state of the stream as the range to read. Without a filter the number of messages is then known.
func (r *streamReader) look(ctx context.Context) error {
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("check stream %s: %w", r.source.Name, err)
	}
	r.begun, r.start, r.want = info.Created, info.State, -1
	whole := r.source.From <= info.State.FirstSeq
	switch {
	case r.source.Subject != "" && r.source.Subject != ">":
	case whole:
		r.want = int64(info.State.Msgs)
	case info.State.NumDeleted == 0:
		r.want = int64(info.State.LastSeq - r.source.From + 1)
	}
	return nil
}

// consume reads with a separate consumer that acknowledges nothing. The consumer's pending count before reading
// gives the number of messages of the subject, if none arrive meanwhile.
func (r *streamReader) consume(ctx context.Context) error {
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(r.source.From, 1),
		InactiveThreshold: time.Minute, MaxResetAttempts: streamResets,
	}
	if r.source.Subject != "" {
		config.FilterSubjects = []string{r.source.Subject}
	}
	for try := 0; ; try++ {
		consumer, err := r.stream.OrderedConsumer(ctx, config)
		if err != nil {
			return r.refused(err)
		}
		info := consumer.CachedInfo()
		before, counted := r.start, r.want
		if err := r.look(ctx); err != nil {
			return err
		}
		quiet := before.LastSeq == r.start.LastSeq && before.Msgs == r.start.Msgs
		if counted < 0 && quiet {
			counted = int64(info.NumPending)
		}
		if counted >= 0 || try == streamQuiet {
			r.start, r.want = before, counted
			return r.deliver(consumer)
		}
	}
}

func (r *streamReader) refused(err error) error {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return r.fail("it cannot be read: %s", api.Description)
	}
	return fmt.Errorf("read stream %s: %w", r.source.Name, err)
}

func (r *streamReader) deliver(consumer jetstream.Consumer) error {
	ahead := max(pullBytes, int(2*r.source.MaxMessage)) // less than one message would stall it
	messages, err := consumer.Messages(jetstream.PullMaxBytes(ahead))
	if err != nil {
		return r.refused(err)
	}
	r.end = messages.Stop
	r.pull = func() (message, error) {
		msg, err := messages.Next(jetstream.NextMaxWait(streamWait))
		if err != nil {
			return message{}, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return message{}, err
		}
		return message{meta.Sequence.Stream, msg.Headers().Get(KeyHeader), msg.Data(), meta.NumPending == 0}, nil
	}
	return nil
}

// readOneByOne gets each message by its sequence: a work queue allows no further consumers.
func (r *streamReader) readOneByOne() {
	r.pull = func() (message, error) {
		return r.after(max(r.seen+1, r.source.From))
	}
}

// after returns the first message at a sequence or later, or io.EOF.
func (r *streamReader) after(seq uint64) (message, error) {
	ctx, cancel := context.WithTimeout(r.ctx, streamAsk)
	defer cancel()
	msg, err := r.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(cmp.Or(r.source.Subject, ">")))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return message{}, io.EOF
	}
	if err != nil {
		return message{}, err
	}
	return message{seq: msg.Sequence, key: msg.Header.Get(KeyHeader), data: msg.Data}, nil
}

func (r *streamReader) Next(item *row.Item) error {
	for silences := 0; ; {
		if r.last || r.want == 0 || r.seen >= r.start.LastSeq {
			return r.finish()
		}
		msg, err := r.pull()
		switch {
		case r.ctx.Err() != nil:
			return fmt.Errorf("read stream %s: %w", r.source.Name, context.Cause(r.ctx))
		case r.ended(msg, err):
			return r.finish()
		case errors.Is(err, nats.ErrTimeout) && silences < maxSilences:
			silences++
			if done, err := r.silent(); done || err != nil {
				return cmp.Or(err, io.EOF)
			}
			continue
		case err != nil:
			return r.broken(err)
		}
		r.seen, r.last = msg.seq, msg.last
		r.got++
		return r.take(item, &msg)
	}
}

// silent checks why nothing comes: all remaining messages, or the stream itself, may have been removed.
func (r *streamReader) silent() (done bool, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, streamAsk)
	defer cancel()
	if _, err := r.stream.Info(ctx); errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, r.broken(err)
	}
	if !r.ended(r.after(max(r.seen+1, r.source.From))) {
		return false, nil
	}
	err = r.finish()
	return true, err
}

// ended reports whether a pull shows that no message of the range remains.
func (r *streamReader) ended(msg message, err error) bool {
	return errors.Is(err, io.EOF) || err == nil && msg.seq > r.start.LastSeq
}

func (r *streamReader) broken(err error) error {
	if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, jetstream.ErrStreamNotFound) {
		return r.fail("it was deleted after message %d, while it was read; nothing was started", r.seen)
	}
	return fmt.Errorf("read stream %s after message %d: %w", r.source.Name, r.seen, err)
}

func (r *streamReader) take(item *row.Item, msg *message) error {
	item.Line = int(msg.seq)
	r.lines.lines.number = item.Line
	err := r.check(item, msg)
	if wrong, ok := errors.AsType[*row.LineError](err); ok {
		return &row.RecordError{Unit: "message", Number: item.Line, Field: wrong.Column, Reason: wrong.Reason}
	}
	return err
}

func (r *streamReader) check(item *row.Item, msg *message) error {
	n, line := &r.lines, bytes.TrimSpace(msg.data)
	if len(line) > n.lines.limit {
		return n.errorAt("", "larger than %s; shorten it, or raise the limit", row.Size(n.lines.limit))
	}
	if err := n.checkBytes(line); err != nil {
		return err
	}
	n.keyless = msg.key != ""
	if !n.keyless && n.key == "" {
		if err := n.chooseKey(line); err != nil {
			return err
		}
	}
	key, err := n.check(line)
	if err != nil {
		return err
	}
	item.Key = cmp.Or(msg.key, key)
	item.Payload = row.AppendCompact(item.Payload[:0], line)
	return nil
}

func (r *streamReader) finish() error {
	ctx, cancel := context.WithTimeout(r.ctx, streamAsk)
	defer cancel()
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("check stream %s at the end: %w", r.source.Name, err)
	}

	removed := int64(r.start.Msgs) + int64(info.State.LastSeq) - int64(r.start.LastSeq) - int64(info.State.Msgs)
	const fix = "nothing was started. Read it again while nothing is removed from it"
	switch {
	case !info.Created.Equal(r.begun):
		return r.fail("it was deleted and recreated while it was read; %s", fix)
	case r.want >= 0 && r.got < r.want:
		return r.fail("%d of the %d messages that it had were removed (purged, deleted, expired or consumed) before they "+
			"could be read; %s", r.want-r.got, r.want, fix)
	case r.want < 0 && removed > 0:
		return r.fail("%d messages were removed from it while it was read, and it was too busy to say whether they were "+
			"to be read; %s", removed, fix)
	}
	return io.EOF
}
