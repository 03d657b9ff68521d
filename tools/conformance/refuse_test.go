package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testenv"
)

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// within returns those of the names that are in both lists.
func within(names, of []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(of, name) })
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	self := start(serveSDK)
	tests := map[string]struct {
		config Config
		want   string
	}{
		"no endpoint":    {Config{service: self}, "endpoint name"},
		"nothing to ask": {Config{Endpoint: endpoint}, "-- COMMAND"},
		"both":           {Config{Endpoint: endpoint, URL: "nats://127.0.0.1:1", service: self}, "-- COMMAND"},
		"unknown check":  {Config{Endpoint: endpoint, service: self, Only: []string{"liste"}}, `no check "liste"`},
		"bad item":       {Config{Endpoint: endpoint, service: self, Items: []json.RawMessage{[]byte(`{`)}}, "item 1"},
		"no server":      {Config{Endpoint: endpoint, URL: "nats://127.0.0.1:1"}, "connect to NATS"},
		"no program":     {Config{Endpoint: endpoint, Command: []string{"/nowhere/to/be/found"}}, "start the service"},
		"ends at once":   {Config{Endpoint: endpoint, Command: []string{"sh", "-c", "echo so sorry; exit 3"}}, "so sorry"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Run(t.Context(), test.config)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something about %q", err, test.want)
			}
		})
	}
}

func TestRunRefusesAServerInUse(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t)
	nc := testenv.Conn(t, ns)
	js := jetStream(t, nc)
	n := &node{config: Config{Endpoint: endpoint, lasting: patiently}, nc: nc, js: js}
	config := Config{Endpoint: endpoint, URL: ns.URL()}
	refused := func(why string) {
		t.Helper()
		if _, err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want something about %q", err, why)
		}
	}
	refused("there is no stream")
	if err := n.makeStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.ask(t.Context(), orders(order{"do": "hello"})); err != nil {
		t.Fatal(err)
	}
	refused("TRANCHE_WORK holds 1 messages")
	if err := n.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorder, err := stream.EnsureRecorder(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	reading, err := recorder.Consume(func(jetstream.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Stop()
	if err := n.poll(t.Context(), patience, func() (bool, error) {
		info, err := recorder.Info(t.Context())
		return err == nil && info.NumWaiting > 0, err
	}, "the recorder asked for replies", "it was not"); err != nil {
		t.Fatal(err)
	}
	refused("a node reads the replies")
}
