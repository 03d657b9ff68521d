package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A server may reach the leaders of some and not of others: one question that it never answers takes a connection to a
// server that does, although others are answered all the time.
func TestElsewhereForOneQuestion(t *testing.T) {
	t.Parallel()
	here, there := testenv.OwnNATS(t, embedded.NATSConfig{}), testenv.OwnNATS(t, embedded.NATSConfig{})
	nc := testenv.Must(nats.Connect(here.URL()+","+there.URL(), nats.DontRandomize(), nats.Timeout(time.Minute)))(t)
	t.Cleanup(nc.Close)
	js := testenv.Must(jetstream.New(testenv.Conn(t, there)))(t)
	testenv.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: wire.StreamWork}))(t)
	noted := stream.PermissionsOf(nc)
	testenv.Until(t, time.Minute, "the connection is where the question is answered", func() bool {
		noted.Elsewhere.Note(nc, []string{"$JS.API.STREAM.>"}, context.DeadlineExceeded)
		noted.Elsewhere.Note(nc, []string{"$JS.API.CONSUMER.INFO.TRANCHE_REPLY.recorder"}, nil)
		return nc.ConnectedUrl() == there.URL()
	})
}
