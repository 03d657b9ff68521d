package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// patience bounds one wait.
	patience = 5 * time.Second
	// impatience bounds later waits after one was missing; a silent service would otherwise take minutes.
	impatience = 3 * time.Second
	// grace is how long to wait for a possibly incomplete reply to grow.
	grace = 400 * time.Millisecond
	// ownAckWait is the AckWait on the suite's own server: short, so that heartbeats are frequent.
	ownAckWait = 3 * time.Second
)

// node acts as a node for one endpoint.
type node struct {
	config   Config
	nc       *nats.Conn
	js       jetstream.JetStream
	service  service // nil if the suite does not run it
	private  bool    // the suite runs the server
	contract bool    // the endpoint implements the contract
	ackWait  time.Duration
	journal  *journal
	recorder *recorder     // nil if not recording
	stopped  bool          // the service was told to stop
	late     bool          // a wait has timed out; later ones are shorter
	more     time.Duration // extra patience for expensive requests
	retains  bool          // the service holds parts of replies back
}

// lasting returns a context with a timeout.
type lasting func(context.Context, time.Duration) (context.Context, context.CancelFunc)

// within returns when done is true, or an error after limit. See [journal.until].
func (n *node) within(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := n.config.lasting(ctx, limit)
	defer cancel()
	return n.journal.until(ctx, done)
}

// tap subscribes to all messages of an endpoint's service on one channel, which preserves their order.
func tap(nc *nats.Conn, endpoint string, to chan *nats.Msg) error {
	for _, subject := range []string{
		"tranche.reply.>", "tranche.stage." + caller + ".>", "tranche.call." + caller + ".>",
		fmt.Sprintf("$JS.ACK.%s.%s.>", wire.StreamWork, endpoint),
		fmt.Sprintf("$JS.ACK.*.*.%s.%s.>", wire.StreamWork, endpoint),
		fmt.Sprintf("$JS.ACK.%s.%s.>", wire.StreamWork, wire.LaneOf(endpoint)),
		fmt.Sprintf("$JS.ACK.*.*.%s.%s.>", wire.StreamWork, wire.LaneOf(endpoint)),
	} {
		if _, err := nc.ChanSubscribe(subject, to); err != nil {
			return fmt.Errorf("listen to %s: %w", subject, err)
		}
	}
	return nc.Flush()
}

func (n *node) ask(ctx context.Context, r *request) {
	n.askOn(ctx, wire.WorkSubject(n.config.Endpoint), r)
}

func (n *node) askOn(ctx context.Context, subject string, r *request) {
	msg := &nats.Msg{Subject: subject, Header: r.header, Data: r.body}
	ctx, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	ack, err := n.js.PublishMsg(ctx, msg)
	if err != nil {
		stop(fmt.Errorf("publish a request: %w", err))
	}
	r.sequence = ack.Sequence
}

func (n *node) answered(ctx context.Context, r *request) *answer {
	n.ask(ctx, r)
	return must(n.answer(ctx, r, 0))
}

// answer waits for the reply to a request, skipping the slice's first messages.
func (n *node) answer(ctx context.Context, r *request, without int) (*answer, error) {
	limit := n.patience()
	ctx, cancel := n.config.lasting(ctx, limit)
	defer cancel()
	var a *answer
	update := func() bool {
		all := n.journal.of(r.slice())
		a = &answer{all[min(without, len(all)):]}
		return a.final() >= 0 && a.sent() >= a.final()
	}
	// Complete, or apparently so.
	err := n.journal.until(ctx, func() bool {
		return update() || a.final() >= 0 || len(a.slots()) >= len(r.items)
	})
	for err == nil && !n.journal.look(update) {
		had := len(a.messages)
		err = n.within(ctx, grace, func() bool { return update() || len(a.messages) > had })
	}
	if len(a.messages) == 0 {
		n.late = true
		return nil, differs("a reply", "nothing in %s", limit)
	}
	return a, nil
}

func (n *node) patience() time.Duration {
	if n.late {
		return impatience
	}
	return patience + n.more
}

func (n *node) settled(ctx context.Context, r *request) (ack acknowledgement) {
	limit := n.patience()
	err := n.within(ctx, limit, func() (ok bool) {
		ack, ok = n.journal.settled(r.sequence)
		return ok
	})
	if err != nil {
		n.late = true
		fail("an acknowledgement of the request", "none in %s", limit)
	}
	return ack
}

// expectSettled fails unless the request gets an acknowledgement of the kind and is removed.
func (n *node) expectSettled(ctx context.Context, r *request, kind string) {
	if ack := n.settled(ctx, r); ack.kind != kind {
		fail(kind+" for the request", "%s", ack.text)
	}
	n.poll(ctx, patience, func() bool { return !n.waiting(ctx, r) },
		"the request gone from the stream after "+kind, "it is still in the stream")
}

func (n *node) waiting(ctx context.Context, r *request) bool {
	_, err := must(n.js.Stream(ctx, wire.StreamWork)).GetMsg(ctx, r.sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false
	}
	stop(err)
	return true
}

func (n *node) delivered(ctx context.Context, r *request) {
	n.poll(ctx, patience, func() bool { return must(n.consumer(ctx)).Delivered.Stream >= r.sequence },
		"the request fetched", "it was not")
}

func (n *node) consumer(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	consumer, err := n.js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(n.config.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("check the consumer of %s: %w", n.config.Endpoint, err)
	}
	return consumer.CachedInfo(), nil
}

// poll returns when done is true, and fails on timeout.
func (n *node) poll(ctx context.Context, within time.Duration, done func() bool, expected, got string) {
	if !n.eventually(ctx, within, done) {
		fail(expected, "%s after %s", got, within)
	}
}

// eventually reports whether done becomes true before the deadline.
func (n *node) eventually(ctx context.Context, within time.Duration, done func() bool) bool {
	ctx, cancel := n.config.lasting(ctx, within)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		switch ok := done(); {
		case ok:
			return true
		case ctx.Err() != nil:
			return false
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// maxDeliver is the documented limit; after it, requests are left to nodes.
const maxDeliver = 20

// makeStreams creates the streams and the endpoint's consumer on the suite's own server.
func (n *node) makeStreams(ctx context.Context) error {
	return n.makeStreamsWith(ctx, stream.Config{Memory: true}, ownAckWait)
}

func (n *node) makeStreamsWith(ctx context.Context, config stream.Config, ackWait time.Duration) error {
	if _, err := stream.Ensure(ctx, n.js, config); err != nil {
		return err
	}
	_, err := n.js.CreateOrUpdateConsumer(ctx, wire.StreamWork, n.consumerConfig(ackWait))
	if err != nil {
		return fmt.Errorf("make the consumer of %s: %w", n.config.Endpoint, err)
	}
	return nil
}

// consumerConfig returns the documented consumer configuration.
func (n *node) consumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: wire.ConsumerName(n.config.Endpoint), FilterSubject: wire.WorkSubject(n.config.Endpoint),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: maxDeliver, MaxAckPending: 10_000,
		MaxWaiting: 4096,
	}
}

// remakeStreams recreates the streams of requests and replies, as after the loss of a server.
func (n *node) remakeStreams(ctx context.Context) {
	for _, name := range []string{wire.StreamWork, wire.StreamReply} {
		stop(n.js.DeleteStream(ctx, name))
	}
	stop(n.makeStreams(ctx))
}

// checkUnused returns an error if a node or other work uses the server.
func (n *node) checkUnused(ctx context.Context) error {
	for range 20 { // a node's reads have short gaps
		recorder, err := n.js.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			break
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("there is no stream %s on this server; make the streams by starting a node once, or leave "+
				"--nats out and give the command that starts the service", wire.StreamReply)
		}
		if err != nil {
			return fmt.Errorf("find a node: %w", err)
		}
		if recorder.CachedInfo().NumWaiting > 0 {
			return errors.New("a node reads the replies on this server, and would take the suite's; stop it, or leave " +
				"--nats out and give the command that starts the service")
		}
		_ = backoff.Sleep(ctx, 25*time.Millisecond)
	}
	for subject, stream := range n.subjects() {
		held, err := n.held(ctx, stream, subject)
		if err != nil {
			return err
		}
		if held > 0 {
			return fmt.Errorf("%s holds %d messages of %s; the suite removes what it made and would remove them too: run it "+
				"on another server, or when they are done", stream, held, subject)
		}
	}
	return nil
}

// subjects maps the subjects on which checks leave messages to their streams.
func (n *node) subjects() map[string]string {
	return map[string]string{
		wire.WorkSubject(n.config.Endpoint):  wire.StreamWork,
		n.laneSubject():                      wire.StreamWork,
		wire.ReplySubject(n.config.Endpoint): wire.StreamReply,
		"tranche.stage." + caller + ".>":     wire.StreamStage,
	}
}

func (n *node) held(ctx context.Context, stream, subject string) (uint64, error) {
	s, err := n.js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("check stream %s: %w", stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, fmt.Errorf("check stream %s: %w", stream, err)
	}
	var held uint64
	for _, count := range info.State.Subjects {
		held += count
	}
	return held, nil
}

func (n *node) clean(ctx context.Context) error {
	for subject, stream := range n.subjects() {
		s, err := n.js.Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil {
			return fmt.Errorf("remove what a check left in %s: %w", stream, err)
		}
	}
	return nil
}

// stored reports whether a stream's last message on the subject is of the slice.
func (n *node) stored(ctx context.Context, stream, subject string, r *request) bool {
	msg, err := must(n.js.Stream(ctx, stream)).GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false
	}
	stop(err)
	return msg.Header.Get(wire.HeaderSlice) == r.slice()
}

// fillReplies makes the reply stream refuse messages until makeRoom is called.
func (n *node) fillReplies(ctx context.Context) (makeRoom func() error) {
	before := must(n.js.Stream(ctx, wire.StreamReply)).CachedInfo().Config
	full := before
	full.MaxBytes = 1
	must(n.js.UpdateStream(ctx, full))
	return func() error {
		ctx, cancel := n.config.lasting(context.WithoutCancel(ctx), patience)
		defer cancel()
		_, err := n.js.UpdateStream(ctx, before)
		return err
	}
}

// request is a request; checks modify it before it is sent.
type request struct {
	header   nats.Header
	items    []item
	body     []byte
	sequence uint64 // in the stream, once sent
}

type item struct {
	ordinal int
	key     string
	payload json.RawMessage
	parts   json.RawMessage // "p"; nil without
}

func (r *request) slice() string { return r.header.Get(wire.HeaderSlice) }

func newRequest(items ...item) *request {
	slice := uuid.NewString()
	r := &request{items: items, header: nats.Header{
		wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderRun: {uuid.NewString()},
		wire.HeaderSlice: {slice}, wire.HeaderMsgID: {slice}, wire.HeaderStep: {"0"},
		wire.HeaderAttempt: {"1"}, wire.HeaderGeneration: {"1"}, wire.HeaderMode: {"batch"},
	}}
	r.body = fmt.Appendf(nil, `{"items":%s}`, writeItems(items))
	return r
}

func writeItems(items []item) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for n, item := range items {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"i":%d,"k":%s`, item.ordinal, quote(item.key))
		if item.payload != nil {
			fmt.Fprintf(&b, `,"d":%s`, item.payload)
		}
		if item.parts != nil {
			fmt.Fprintf(&b, `,"p":%s`, item.parts)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return b.Bytes()
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be written
	}
	return string(quoted)
}

func (n *node) sample(count int) *request {
	items := make([]item, count)
	for i := range items {
		items[i] = n.item(i)
	}
	return newRequest(items...)
}

func (n *node) item(ordinal int) item {
	payload := n.config.Items[ordinal%len(n.config.Items)]
	if n.contract {
		payload = fmt.Appendf(nil, `{"do":"echo","value":{"n":%d}}`, ordinal)
	}
	return item{ordinal: ordinal, key: fmt.Sprintf("KEY-%d", ordinal), payload: payload}
}

type order map[string]any

func orders(list ...order) *request {
	items := make([]item, len(list))
	for i, o := range list {
		payload, err := json.Marshal(o)
		if err != nil {
			panic(err) // the orders are ours
		}
		items[i] = item{ordinal: i, key: fmt.Sprintf("KEY-%d", i), payload: payload}
	}
	return newRequest(items...)
}
