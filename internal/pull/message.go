package pull

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// message is one that was delivered, as jetstream's own consumers give it.
type message struct {
	msg  *nats.Msg
	nc   *nats.Conn
	done atomic.Bool // it was acknowledged for good
}

func (m *message) Data() []byte         { return m.msg.Data }
func (m *message) Headers() nats.Header { return m.msg.Header }
func (m *message) Subject() string      { return m.msg.Subject }
func (m *message) Reply() string        { return m.msg.Reply }

// Metadata reads the acknowledgement subject.
func (m *message) Metadata() (*jetstream.MsgMetadata, error) {
	meta, err := m.msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", jetstream.ErrNotJSMessage, err)
	}
	return &jetstream.MsgMetadata{
		Sequence:     jetstream.SequencePair{Consumer: meta.Sequence.Consumer, Stream: meta.Sequence.Stream},
		NumDelivered: meta.NumDelivered, NumPending: meta.NumPending, Timestamp: meta.Timestamp,
		Stream: meta.Stream, Consumer: meta.Consumer, Domain: meta.Domain,
	}, nil
}

func (m *message) Ack() error  { return m.tell("+ACK") }
func (m *message) Nak() error  { return m.tell("-NAK") }
func (m *message) Term() error { return m.tell("+TERM") }

func (m *message) TermWithReason(reason string) error { return m.tell("+TERM " + reason) }

func (m *message) NakWithDelay(delay time.Duration) error {
	if delay <= 0 {
		return m.Nak()
	}
	return m.tell(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

// InProgress may be told any number of times, until the message is acknowledged.
func (m *message) InProgress() error {
	if m.done.Load() {
		return jetstream.ErrMsgAlreadyAckd
	}
	return m.publish("+WPI")
}

// DoubleAck waits for the server's word that it has the acknowledgement.
func (m *message) DoubleAck(ctx context.Context) error {
	if m.msg.Reply == "" {
		return jetstream.ErrMsgNoReply
	}
	if m.done.Swap(true) {
		return jetstream.ErrMsgAlreadyAckd
	}
	_, err := m.nc.RequestWithContext(ctx, m.msg.Reply, []byte("+ACK"))
	if err != nil {
		m.done.Store(false)
	}
	return err
}

// tell sends an acknowledgement after which no other may be sent.
func (m *message) tell(what string) error {
	if m.done.Swap(true) {
		return jetstream.ErrMsgAlreadyAckd
	}
	err := m.publish(what)
	if err != nil {
		m.done.Store(false)
	}
	return err
}

func (m *message) publish(what string) error {
	if m.msg.Reply == "" {
		return jetstream.ErrMsgNoReply
	}
	return m.nc.Publish(m.msg.Reply, []byte(what))
}
