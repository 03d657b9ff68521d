package streams

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue/database"
)

// A stream of several copies is given time, since a server that cannot write leaves it to the others; a single one is
// replaced as soon as its fault is proven.
func TestAReplicatedStreamIsReplacedLater(t *testing.T) { //nolint:tparallel // its cases share a stream
	t.Parallel()
	nc := testenv.Dial(t, testenv.NATSCluster(t).URLs()[0])
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	testenv.NoError(t, err)
	streams := NewKeeper(core.New(database.New(testenv.Pool(t)), nc, js, zaptest.NewLogger(t)), Config{Try: func() {}})
	for _, tc := range []struct {
		replicas int
		since    time.Duration
		replaced bool
	}{
		{1, 0, true},
		{3, 0, false},
		{3, replicatedTimeout / 2, false}, // the machine may are stalled for a while, too
		{3, replicatedTimeout, true},
	} {
		t.Run(fmt.Sprintf("%d copies for %s", tc.replicas, tc.since), func(t *testing.T) {
			var stream jetstream.Stream
			testenv.Until(t, time.Minute, "the last one of its name is gone everywhere", func() bool {
				stream, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: wire.StreamWork,
					Subjects: []string{wire.WorkSubject(">")}, Replicas: tc.replicas})
				return err == nil
			})
			defer func() { _ = js.DeleteStream(t.Context(), wire.StreamWork) }() // it may be gone
			c := streamReconciler{Keeper: streams, faults: map[string]time.Time{wire.StreamWork: time.Now().Add(-tc.since)}}
			testenv.Until(t, time.Minute, "the stream is led", func() bool {
				_, err := c.led(t.Context(), wire.StreamWork)
				return err == nil
			})
			testenv.NoError(t, c.silent(t.Context(), wire.StreamWork, true, stream.CachedInfo().Created))
			var replaced bool
			testenv.Until(t, time.Minute, "the cluster says whether the stream is there", func() bool {
				_, err = js.Stream(t.Context(), wire.StreamWork)
				replaced = errors.Is(err, jetstream.ErrStreamNotFound)
				return err == nil || replaced
			})
			testenv.Same(t, replaced, tc.replaced, "it is replaced, %v", err)
		})
	}
}
