package streams_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// list announces a listener, as a service with the least of permissions can.
func (b *bundle) list(t *testing.T, stages map[string]int) {
	t.Helper()
	svc := testenv.Must(micro.AddService(testenv.Conn(t, b.NS), micro.Config{
		Name: "least", Version: "1.0.0", Metadata: map[string]string{"tranche": wire.ProtocolVersion},
		StatsHandler: func(at *micro.Endpoint) any { return map[string]int{"stages": stages[at.Name]} },
	}))(t)
	t.Cleanup(func() { _ = svc.Stop() })
	for name := range stages {
		err := svc.AddEndpoint(name, micro.HandlerFunc(func(micro.Request) {}), micro.WithEndpointSubject("status."+name))
		testenv.NoError(t, err)
	}
}

func (b *bundle) has(t *testing.T, stream, name string) bool {
	t.Helper()
	_, err := b.JS(t).Consumer(t.Context(), stream, name)
	return err == nil
}

// A node makes the consumers of services that may not make their own, and again when someone deletes them.
func TestConsumersOfListedServicesAreMade(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	b.Node = b.StartNodeWith(t, orchestrator.Config{ReconcileInterval: 500 * time.Millisecond})
	for _, name := range []string{"plain", "silent"} { // canaries, of which only one has a service
		canary := pace.EndpointChange{Endpoint: "old-" + name, Canary: &pace.Canary{Endpoint: name, Share: 5}}
		testenv.Must(b.Node.Endpoints().ChangeEndpoint(t.Context(), canary, "ann"))(t)
	}
	b.list(t, map[string]int{"plain": 0, "flow": 3})
	made := func(what string) {
		t.Helper()
		nodetest.Until(t, what, func() bool {
			return b.has(t, wire.StreamWork, "plain") && b.has(t, wire.StreamWork, "flow") && b.has(t, wire.StreamStage, "flow")
		})
	}
	made("the consumers are made")
	b.Await(t, "only the canary with a service is noted", `
		SELECT coalesce(string_agg(canary, ' '), '') = 'plain' FROM endpoint_setting WHERE canary_has_listeners`)
	if b.has(t, wire.StreamStage, "plain") {
		t.Error("an endpoint without stages has a consumer for them")
	}
	js := b.JS(t)
	for stream, name := range map[string]string{wire.StreamWork: "plain", wire.StreamStage: "flow"} {
		testenv.NoError(t, js.DeleteConsumer(t.Context(), stream, name))
	}
	made("the consumers are recreated")
}

type setter interface {
	ChangeEndpoint(context.Context, pace.EndpointChange, string) (pace.EndpointSetting, error)
}

// change sets the concurrency of an endpoint, at a node or in the store.
func change(t *testing.T, at setter, set pace.EndpointSetting) error {
	t.Helper()
	_, err := at.ChangeEndpoint(t.Context(), pace.EndpointChange{Endpoint: set.Endpoint, Concurrency: &set.Concurrency},
		"ann")
	return err
}

// What operators set for an endpoint reaches its consumer, wherever it was set and whenever the consumer was made.
func TestEndpointSettingsReachTheConsumer(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	b.Node = b.StartNodeWith(t, orchestrator.Config{ReconcileInterval: 500 * time.Millisecond})
	js := b.JS(t)
	const leftToLeader = 2 * time.Second // so long a node tries it itself
	wanted := func(what string, want int) {
		t.Helper()
		nodetest.Until(t, what, func() bool {
			consumer, err := js.Consumer(t.Context(), wire.StreamWork, "statement")
			return err == nil && stream.SettingsOf(consumer.CachedInfo()).Concurrency == want
		})
	}
	set := pace.EndpointSetting{Endpoint: "statement", Concurrency: 3}
	if err := change(t, b.Node.Endpoints(), set); err != nil { // there is no consumer yet
		t.Fatal(err)
	}
	run := b.Start(t, nodetest.Patient(), 100)
	wanted("a new consumer has the setting", 3)
	set.Concurrency = 5
	begun := time.Now()
	testenv.NoError(t, change(t, b.Node.Endpoints(), set))
	took := time.Since(begun)
	consumer := testenv.Must(js.Consumer(t.Context(), wire.StreamWork, "statement"))(t)
	if got := stream.SettingsOf(consumer.CachedInfo()).Concurrency; got != 5 && took < leftToLeader {
		t.Errorf("after %s the consumer has the concurrency %d; want 5 immediately", took, got)
	}
	wanted("the setting reaches the consumer", 5)
	set.Concurrency = 0
	if err := change(t, pace.New(b.Store), set); err != nil { // by a node that dies
		t.Fatal(err)
	}
	wanted("the leader brings the setting", 0)
	set.Concurrency = 7
	testenv.NoError(t, change(t, pace.New(b.Store), set))
	wanted("the leader brings the next setting", 7)
	testenv.NoError(t, js.DeleteConsumer(t.Context(), wire.StreamWork, "statement"))
	wanted("a recreated consumer has the setting", 7)
	consumer = testenv.Must(js.Consumer(t.Context(), wire.StreamWork, "statement"))(t)
	config := consumer.CachedInfo().Config
	config.MaxDeliver, config.Metadata = -1, nil
	consumer = testenv.Must(js.UpdateConsumer(t.Context(), wire.StreamWork, config))(t)
	wanted("a consumer that someone changed has the setting again", 7)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 100)
	testenv.Fails(t, change(t, b.Node.Endpoints(), pace.EndpointSetting{Endpoint: "no name"}),
		"a setting of no endpoint was taken")
	info := testenv.Must(consumer.Info(t.Context()))(t)
	if config := info.Config; config.AckPolicy != jetstream.AckExplicitPolicy || config.MaxDeliver != wire.MaxDeliver {
		t.Errorf("the consumer is %+v", config)
	}
}
