package streams_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
)

func deleteStreams(names ...string) func(*testing.T, *bundle, jetstream.JetStream) {
	return func(t *testing.T, _ *bundle, js jetstream.JetStream) {
		t.Helper()
		for _, name := range names {
			testenv.NoError(t, js.DeleteStream(t.Context(), name))
		}
	}
}

// recreate puts a stream of other settings in the place of one of ours.
func recreate(name, subject string) func(*testing.T, *bundle, jetstream.JetStream) {
	return func(t *testing.T, _ *bundle, js jetstream.JetStream) {
		t.Helper()
		nodetest.Until(t, "the stream is replaced", func() bool { // the node may be faster to create its own
			if err := js.DeleteStream(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Fatal(err)
			}
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject},
				Retention: jetstream.LimitsPolicy, Storage: jetstream.MemoryStorage})
			return err == nil
		})
	}
}

// What was in the streams is gone in the middle of a run: it completes, in seconds, although its deadlines are far.
func TestRunSurvivesTheLossOfStreams(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *bundle, jetstream.JetStream){
		"work stream deleted":           deleteStreams(wire.StreamWork),
		"reply stream deleted":          deleteStreams(wire.StreamReply),
		"all streams deleted":           deleteStreams(wire.StreamWork, wire.StreamReply, wire.StreamEvent),
		"work stream of other settings": recreate(wire.StreamWork, "tranche.work.*"),
		"store wiped": func(t *testing.T, b *bundle, _ jetstream.JetStream) {
			t.Helper()
			// The server may write into a directory between what empties and what removes it.
			nodetest.Until(t, "the store is gone", func() bool { return os.RemoveAll(b.Dir) == nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{})}
			l := nodetest.NewLedger(nodetest.Halfway)
			b.Serve(t, "statement", l.Handle)
			run := b.Start(t, nodetest.Patient(), nodetest.Size)
			l.Await(t)
			js := b.JS(t)
			lose(t, b, js)
			nodetest.Until(t, "what was sent is reissued", func() bool { return b.Node.Stats().Released > 0 })
			close(l.Gate)
			b.WantSound(t, l, run, nodetest.Size)
			testenv.Same(t, b.Node.Stats().Expired, 0, "slices had to wait for their deadline")
			info := testenv.Must(js.Stream(t.Context(), wire.StreamWork))(t)
			testenv.Same(t, info.CachedInfo().Config.Retention, jetstream.WorkQueuePolicy, "the work stream is %v", info)
		})
	}
}

// Consumers that someone paused or filtered, and streams that someone limited, are fixed without an operator.
func TestTamperedStreamsAndConsumersAreMended(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.Setup(t)}
	js := nodetest.JetStream(t, testenv.Conn(t, b.NS))
	b.Serve(t, "echo", nodetest.Echo)
	b.Outcome(t, b.Start(t, nodetest.Request("echo"), 10), 1)
	for name, tamper := range map[string]func() error{
		"paused recorder": func() error {
			_, err := js.PauseConsumer(t.Context(), wire.StreamReply, wire.RecorderConsumer, time.Now().Add(time.Hour))
			return err
		},
		"paused endpoint": func() error {
			_, err := js.PauseConsumer(t.Context(), wire.StreamWork, wire.ConsumerName("echo"), time.Now().Add(time.Hour))
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
		testenv.MustSame(t, tamper(), nil, "%s", name)
		b.Want(t, b.Start(t, nodetest.Request("echo"), 1000), 1, 1000, 0)
	}
	b.Check(t)
}

// Two databases on one NATS account would take each other's replies. A node of the second does not start; one that runs
// ends when the streams become another's; and streams that say nothing are the leader's to mark.
func TestStreamsAreOneInstallations(t *testing.T) {
	t.Parallel()
	b := setupStreams(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node := func(store *database.DB) (n *orchestrator.Node, ended <-chan error) {
		t.Helper()
		cfg := nodetest.Config(t)
		cfg.StreamsInterval, cfg.ReconcileInterval = 10*time.Millisecond, 10*time.Millisecond
		n = testenv.Must(orchestrator.New(store, testenv.Conn(t, b.NS), cfg))(t)
		end := make(chan error, 1)
		go func() { end <- n.Run(ctx) }()
		return n, end
	}
	wantStranger := func(what string, ended <-chan error) {
		t.Helper()
		err := <-ended
		if _, ok := errors.AsType[*stream.StrangerError](err); !ok || !strings.Contains(err.Error(), wire.StreamDead) ||
			!strings.Contains(err.Error(), "own NATS account") {
			t.Errorf("%s ended with %v; want that the streams are another installation's, and the remedy", what, err)
		}
	}
	ours, ended := node(b.Store)
	nodetest.WantReady(t, ours)
	made := b.stream(wire.StreamWork).Created

	other := testenv.Pool(t)
	testenv.Must(other.Exec(t.Context(), `UPDATE database_mark SET lineage = gen_random_uuid()`))(t)
	_, refused := node(database.New(other))
	wantStranger("a node of another database", refused)
	if again := b.stream(wire.StreamWork).Created; !again.Equal(made) {
		t.Error("it replaced the streams")
	}

	const key = "tranche_installation"
	mark := func(edit func(map[string]string)) {
		t.Helper()
		config := b.stream(wire.StreamWork).Config
		edit(config.Metadata)
		testenv.Must(b.js.UpdateStream(t.Context(), config))(t)
	}
	is := b.stream(wire.StreamWork).Config.Metadata[key]
	mark(func(m map[string]string) { delete(m, key); m["note"] = "by hand" })
	b.heard(b.updated, 2)
	testenv.Same(t, b.stream(wire.StreamWork).Config.Metadata[key], is, "the leader has marked its stream with")
	testenv.Same(t, b.stream(wire.StreamWork).Config.Metadata["note"], "by hand", "the note of the stream is now")
	select {
	case err := <-ended:
		t.Errorf("the first node ended: %v", err)
	default:
	}
	mark(func(m map[string]string) { m[key] = "another" })
	wantStranger("the node that ran", ended)
}
