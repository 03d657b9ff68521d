package orchestrator_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// bare is a bundle without a node.
func bare(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.ServersOnly(t)}
}

// PostgreSQL is unavailable in the middle of an upload, for longer than the load tries to take back what it wrote. The
// node and its session live on; once PostgreSQL is back the node clears away what was left, and the key is free.
func TestHalfMadeLoadIsClearedByItsNode(t *testing.T) {
	t.Parallel()
	b := bare(t)
	store, toDatabase := b.Through(t, time.Minute)
	cfg := nodetest.Config(t)
	// The session outlives the cut, which lasts for as long as the load tries, and a slow machine.
	cfg.SessionTTL, cfg.Heartbeat, cfg.LeaseTTL = 10*time.Minute, time.Second, 2*time.Second
	node := b.Join(t, store, testenv.Conn(t, b.NS), cfg)
	session := node.Session()
	req := nodetest.Patient()
	req.IdempotencyKey = "k"
	const count, last = 20, 19
	gate, n := make(chan struct{}), 0
	source, payload := nodetest.Items(count), []byte(`"`+strings.Repeat("x", 1<<20)+`"`)
	ended := make(chan error, 1)
	go func() {
		_, err := node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
			if n++; n == last {
				<-gate
			}
			err := source(item)
			item.Payload = payload
			return err
		})
		ended <- err
	}()
	rows := func(table string) int { return b.Number(t, `SELECT count(*) FROM `+table) }
	nodetest.Until(t, "a batch is written", func() bool { return rows("work_queue") > 0 })
	toDatabase.Cut()
	close(gate)
	err := <-ended
	if left, ok := errors.AsType[*workqueue.CleanupPendingError](err); !ok {
		t.Fatalf("%v, %v; want an CleanupPendingError", left, err)
	}
	if rows("batchrun") != 1 || rows("work_queue") == 0 {
		t.Fatal("nothing is left to be cleared")
	}
	toDatabase.Heal()
	nodetest.Until(t, "the half-made load is gone", func() bool { return rows("batchrun")+rows("work_queue") == 0 })
	if node.Session() != session {
		t.Error("the node lost its session: the leader may have cleared the load")
	}
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	loaded, err := node.Runs().Start(t.Context(), req, nodetest.Items(nodetest.Size))
	if err != nil || loaded.Existing {
		t.Fatalf("the same key again: %+v, %v; want a new run", loaded, err)
	}
	b.WantSound(t, l, loaded.Run, nodetest.Size)
	if err := node.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// givenBack returns what counts the replies that nodes give back from now on, to be delivered again sooner than they
// would be by themselves, and what counts all that they have done with: these, and probes of the stream.
func (b *bundle) givenBack(t *testing.T) (count, done func() uint64) {
	t.Helper()
	var given, acked atomic.Uint64
	of := "$JS.ACK." + wire.StreamReply + "." + wire.RecorderConsumer + ".>"
	_, err := b.NC.Subscribe(of, func(msg *nats.Msg) {
		text, isNak := strings.CutPrefix(string(msg.Data), "-NAK")
		var rest struct {
			Delay time.Duration `json:"delay"` // nanoseconds
		}
		switch {
		case string(msg.Data) == "+ACK":
			acked.Add(1)
		case isNak && (text == "" || json.Unmarshal([]byte(text), &rest) == nil) && rest.Delay < stream.RecorderAckWait:
			given.Add(1)
		}
	})
	testenv.NoError(t, err)
	return given.Load, func() uint64 { return given.Load() + acked.Load() }
}

// A node that is cut off from PostgreSQL gives back the replies that it has, and reads no more: another node records
// them long before the server would take them from it.
func TestNodeWithoutADatabaseGivesRepliesBack(t *testing.T) {
	t.Parallel()
	const count = 60
	b := bare(t)
	store, toDatabase := b.Through(t, time.Minute)
	config := nodetest.Config(t)
	config.Grace = nodetest.Stuck // it takes its time to find its way back
	given, doneWith := b.givenBack(t)
	cut := b.Join(t, store, testenv.Conn(t, b.NS), config)
	b.Node = cut.Node
	f, slices := b.Forge(t, 10, 10*count)
	var replies []*nats.Msg
	for _, s := range slices {
		replies = append(replies, f.Reply(s.ID, 10, nodetest.Body(b.Items(t, s.ID)...)))
	}
	toDatabase.Cut()
	f.Publish(t, replies...)
	recorder := func() *jetstream.ConsumerInfo {
		t.Helper()
		consumer := testenv.Must(f.JS.Consumer(t.Context(), wire.StreamReply, wire.RecorderConsumer))(t)
		return consumer.CachedInfo()
	}
	nodetest.Until(t, "the node has given back all that it was handed, and reads no more", func() bool {
		info := recorder()
		return given() > 0 && info.NumWaiting == 0 && doneWith() == info.Delivered.Consumer
	})
	other := b.Join(t, b.Store, testenv.Conn(t, b.NS), nodetest.Config(t))
	if done, failed := b.Outcome(t, f.Run, 1); done != 10*count || failed != 0 {
		t.Errorf("done %d, failed %d; want all %d done", done, failed, 10*count)
	}
	nodetest.Until(t, "the other node has recorded all replies", func() bool { return other.Stats().Replies >= count })
	if n := cut.Stats().Replies; n != 0 {
		t.Errorf("the node without a database recorded %d replies", n)
	}
	b.WantRight(t, f.Run, 10*count)
	b.Check(t)
	toDatabase.Heal()
	if err := cut.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
