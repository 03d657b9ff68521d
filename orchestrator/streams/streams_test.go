package streams_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/session"
)

// streamBench is nodes whose streams are looked at.
type streamBench struct {
	*bundle
	*testing.T

	js                     jetstream.JetStream
	made, updated, lookups *nats.Subscription
}

func setupStreams(t *testing.T) *streamBench {
	t.Helper()
	b := &streamBench{bundle: &bundle{nodetest.ServersOnly(t)}, T: t}
	b.js = b.JS(t)
	b.made = b.hear("$JS.EVENT.ADVISORY.STREAM.CREATED.>")
	b.updated = b.hear("$JS.EVENT.ADVISORY.STREAM.UPDATED.>")
	b.lookups = b.hear("$JS.API.STREAM.INFO." + wire.StreamDead)
	return b
}

func (b *streamBench) hear(subject string) *nats.Subscription {
	b.Helper()
	sub := testenv.Must(b.NC.SubscribeSync(subject))(b)
	testenv.NoError(b, b.NC.Flush())
	return sub
}

// heard waits for so many messages.
func (b *streamBench) heard(sub *nats.Subscription, n int) {
	b.Helper()
	for range n {
		testenv.Must(sub.NextMsg(nodetest.Stuck))(b)
	}
}

// left returns how many messages were not waited for.
func (b *streamBench) left(sub *nats.Subscription) int {
	b.Helper()
	n, _, err := sub.Pending()
	testenv.NoError(b, err)
	return n
}

// join starts a node whose program wants the streams to be like that, and returns what it warns of. Its lease and its
// session last: who begins to lead tries immediately what was refused.
func (b *streamBench) join(streams stream.Config) *observer.ObservedLogs {
	b.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	node := testenv.Must(orchestrator.New(b.Store, testenv.Conn(b.T, b.NS), orchestrator.Config{Log: zap.New(core),
		Streams: streams, StreamsInterval: 10 * time.Millisecond, ReconcileInterval: 10 * time.Millisecond,
		SessionTTL: nodetest.SessionLife, LeaseTTL: nodetest.SessionLife}))(b)
	nodetest.Run(b.T, "node", node.Run)
	nodetest.WantReady(b.T, node)
	return logs
}

func (b *streamBench) eventually(what string, holds func() bool) {
	b.Helper()
	nodetest.Until(b.T, what, holds)
}

func (b *streamBench) set() session.StreamSettings {
	b.Helper()
	return testenv.Must(session.New(b.Store).StreamsSet(b.Context()))(b)
}

func (b *streamBench) change(c session.StreamChanges) {
	b.Helper()
	testenv.Must(session.New(b.Store).ChangeStreams(b.Context(), c, "ann"))(b)
}

func (b *streamBench) stream(name string) *jetstream.StreamInfo {
	b.Helper()
	stream := testenv.Must(b.js.Stream(b.Context(), name))(b)
	return stream.CachedInfo()
}

// looked waits until the nodes have looked at the streams thirty times more.
func (b *streamBench) looked() {
	b.Helper()
	b.heard(b.lookups, b.left(b.lookups)+30)
}

// Nodes whose programs want other streams leave them as they are set. A change is made once, by one of them.
func TestNodesDoNotFightOverStreams(t *testing.T) {
	t.Parallel()
	b := setupStreams(t)
	first := b.join(stream.Config{WorkMaxBytes: 64 << 20, EventMaxBytes: 8 << 20})
	second := b.join(stream.Config{WorkMaxBytes: 32 << 20, ReplyMaxBytes: stream.DefaultReplyMaxBytes})
	b.heard(b.made, 6)
	b.looked()
	if made, updated := b.left(b.made), b.left(b.updated); made != 0 || updated != 0 {
		t.Errorf("%d more streams were made, and %d updated", made, updated)
	}
	testenv.Same(t, first.FilterMessageSnippet("tranche streams set").Len(), 0, "the first was warned: %v", first.All())
	warned := second.FilterMessageSnippet("tranche streams set").All()
	if len(warned) != 1 || strings.Count(warned[0].ContextMap()["differing"].([]any)[0].(string), "work_bytes") != 1 ||
		len(warned[0].ContextMap()["differing"].([]any)) != 1 {
		t.Errorf("the second was warned: %+v", warned)
	}
	room := int64(48 << 20)
	b.change(session.StreamChanges{WorkBytes: &room})
	b.heard(b.updated, 1)
	b.looked()
	if more, got := b.left(b.updated), b.stream(wire.StreamWork).Config.MaxBytes; more != 0 || got != room {
		t.Errorf("%d more updates, and room for %d; want %d", more, got, room)
	}
	testenv.Must(b.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: wire.StreamDead, MaxMsgs: 3,
		Subjects: b.stream(wire.StreamDead).Config.Subjects, Retention: jetstream.WorkQueuePolicy}))(t)
	b.heard(b.updated, 2)
	testenv.Same(t, b.stream(wire.StreamDead).Config.MaxMsgs, -1, "the limit that someone set by hand")
}

// What JetStream refuses stays wanted, with the reason, and is retried ever more seldom. Streams that are lost
// meanwhile are made as they were.
func TestARefusedSettingOfStreams(t *testing.T) {
	t.Parallel()
	b := setupStreams(t)
	b.join(stream.Config{})
	b.eventually("the settings are brought about", func() bool { return b.set().AppliedRevision == 1 })
	tried := b.hear("$JS.API.STREAM.UPDATE." + wire.StreamWork)
	three, begun := 3, time.Now()
	b.change(session.StreamChanges{Replicas: &three})
	b.eventually("the refusal is noted", func() bool { return b.set().Trouble != "" })
	b.looked()
	set := b.set()
	if !strings.Contains(set.Trouble, "replicas > 1") || set.Replicas != 3 || set.NextTry == nil ||
		set.AppliedRevision != 1 {
		t.Errorf("%+v", set)
	}
	b.eventually("each try is noted", func() bool { return b.left(tried) == b.set().Tries })
	if n, most := b.left(tried), mostTries(begun); n > most {
		t.Errorf("tried %d times; want at most %d", n, most)
	}
	testenv.NoError(t, b.js.DeleteStream(t.Context(), wire.StreamStage))
	b.heard(b.made, 7)
	testenv.Same(t, b.stream(wire.StreamStage).Config.Replicas, 1, "copies of the lost stream that was recreated")
	auto := 0
	b.change(session.StreamChanges{Replicas: &auto})
	b.eventually("the trouble is over", func() bool {
		set = b.set()
		return set.AppliedRevision == 3 && set.Trouble == ""
	})
}

// mostTries is how often something may have been tried since a time: after 5 s, and then after twice as long each time.
func mostTries(begun time.Time) (n int) {
	pause := 5 * time.Second
	for left := time.Since(begun); left >= 0; pause *= 2 {
		n, left = n+1, left-pause
	}
	return n
}

// A change that would have a stream delete what it holds is not made.
func TestASettingThatWouldLoseEvents(t *testing.T) {
	t.Parallel()
	b := setupStreams(t)
	b.join(stream.Config{EventMaxBytes: 8 << 20})
	for range 4 {
		testenv.Must(b.js.Publish(t.Context(), wire.EventSubject("test"), make([]byte, 512<<10)))(t)
	}
	room := int64(1 << 20)
	b.change(session.StreamChanges{EventBytes: &room})
	b.eventually("the refusal is noted", func() bool {
		return strings.Contains(b.set().Trouble, "the oldest would be deleted")
	})
	b.looked()
	if info := b.stream(wire.StreamEvent); info.State.Msgs < 4 || info.Config.MaxBytes != 8<<20 {
		t.Errorf("the stream holds %d messages in %d bytes", info.State.Msgs, info.Config.MaxBytes)
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }

// bundle is a node, a server and a database for one test.
type bundle struct{ *nodetest.Bundle }
