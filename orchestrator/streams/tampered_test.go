package streams_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// After a restart of the server, replies are acknowledged as before: none stays pending.
func TestRepliesAreAcknowledgedAfterARestart(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{})}
	b.Serve(t, "echo", nodetest.Echo)
	b.Outcome(t, b.Start(t, nodetest.Request("echo"), 500), 1)
	b.WantDrained(t)
	testenv.NoError(t, b.Own.Restart(t.Context()))
	nc := testenv.Conn(t, b.NS)
	acks, again := acknowledged(t, nc)
	run := b.Start(t, nodetest.Request("echo"), 500)
	b.Outcome(t, run, 1)
	js := nodetest.JetStream(t, nc)
	nodetest.Until(t, "no reply is unacknowledged", func() bool {
		consumer, err := js.Consumer(t.Context(), wire.StreamReply, wire.RecorderConsumer)
		return err == nil && consumer.CachedInfo().NumAckPending == 0 && consumer.CachedInfo().NumPending == 0
	})
	testenv.NoError(t, nc.FlushTimeout(nodetest.Stuck))
	if n := again.Load(); n != 0 || acks.Load() == 0 {
		t.Errorf("%d replies came again; want none. %d were acknowledged", n, acks.Load())
	}
}

// acknowledged counts the replies that nodes acknowledge, and those that they acknowledge again long after they did: a
// reply that comes again because it is recorded slowly is acknowledged twice in a row.
func acknowledged(t *testing.T, nc *nats.Conn) (acks, again *atomic.Int64) {
	t.Helper()
	acks, again = new(atomic.Int64), new(atomic.Int64)
	acked := map[string]time.Time{}
	_, err := nc.Subscribe("$JS.ACK."+wire.StreamReply+"."+wire.RecorderConsumer+".>", func(msg *nats.Msg) {
		place := strings.Split(msg.Subject, ".")[5] // in the stream
		switch at, known := acked[place]; {
		case string(msg.Data) != "+ACK":
		case !known:
			acked[place] = time.Now()
			acks.Add(1)
		case time.Since(at) > stream.RecorderAckWait/2:
			again.Add(1)
		}
	})
	if err == nil {
		err = nc.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
	return acks, again
}

// Consumers that someone paused or filtered, and streams that someone limited, are fixed without an operator.
func TestTamperedStreamsAndConsumersAreMended(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := nodetest.JetStream(t, testenv.Conn(t, b.NS))
	b.Serve(t, "echo", nodetest.Echo)
	b.Outcome(t, b.Start(t, nodetest.Request("echo"), 10), 1)
	for name, tamper := range map[string]func() error{
		"paused recorder": func() error {
			_, err := js.PauseConsumer(t.Context(), wire.StreamReply, wire.RecorderConsumer, time.Now().Add(time.Hour))
			return err
		},
		"paused endpoint": func() error {
			_, err := js.PauseConsumer(t.Context(), wire.StreamWork, wire.ConsumerName("echo"),
				time.Now().Add(time.Hour))
			return err
		},
		"limited work stream": func() error {
			stream, err := js.Stream(t.Context(), wire.StreamWork)
			if err != nil {
				return err
			}
			config := stream.CachedInfo().Config
			config.MaxMsgs = 1
			_, err = js.UpdateStream(t.Context(), config)
			return err
		},
	} {
		if err := tamper(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if done, failed := b.Outcome(t, b.Start(t, nodetest.Request("echo"), 1000), 1); done != 1000 || failed != 0 {
			t.Errorf("%s: done %d, failed %d", name, done, failed)
		}
	}
	b.Check(t)
}
