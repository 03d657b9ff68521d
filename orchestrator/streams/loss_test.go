package streams_test

import (
	"errors"
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// epoch returns the epoch of the streams.
func (b *bundle) epoch(t *testing.T) (epoch int64) {
	t.Helper()
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT epoch FROM stream_epoch`).Scan(&epoch))
	return epoch
}

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
			before := b.epoch(t)
			js := b.JS(t)
			lose(t, b, js)
			nodetest.Until(t, "a new epoch begins", func() bool { return b.epoch(t) > before })
			nodetest.Until(t, "what was sent is reissued", func() bool { return b.Node.Stats().Released > 0 })
			close(l.Gate)
			b.WantSound(t, l, run, nodetest.Size)
			if n := b.Node.Stats().Expired; n != 0 {
				t.Errorf("%d slices had to wait for their deadline", n)
			}
			info, err := js.Stream(t.Context(), wire.StreamWork)
			if err != nil || info.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy {
				t.Errorf("the work stream is %v, %v", info, err)
			}
		})
	}
}
