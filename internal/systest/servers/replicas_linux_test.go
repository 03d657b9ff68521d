package servers

import (
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// cluster is three servers, of which not all need be up.
type cluster struct {
	*testing.T

	routes []*url.URL
	ports  []int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t}
	for range 3 {
		port := testenv.QuietPort(t)
		c.ports = append(c.ports, port)
		c.routes = append(c.routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	return c
}

// start starts one of the servers, which keeps running until the test ends.
func (c *cluster) start(i int) *server.Server {
	c.Helper()
	ns, err := server.NewServer(&server.Options{
		ServerName: fmt.Sprintf("s%d", i), Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: c.TempDir(), Routes: slices.Delete(slices.Clone(c.routes), i, i+1),
		Cluster: server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: c.ports[i]},
	})
	if err != nil {
		c.Fatal(err)
	}
	ns.Start()
	c.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(limit) {
		c.Fatal("a server does not start")
	}
	return ns
}

// A node that starts while two of three servers are up waits for the third, and does not settle for one copy.
func TestThreeCopiesWhenTheThirdServerComes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	first := c.start(0)
	c.start(1)
	nc, err := nats.Connect(first.ClientURL(), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	store := database.New(testenv.Pool(t))
	var mu sync.Mutex
	waited := 0
	cfg := orchestrator.Config{Log: zaptest.NewLogger(t)}
	cfg.Waits = func(_ string, err error) error {
		mu.Lock()
		defer mu.Unlock()
		if stream.TooFewServers(err) {
			waited++
		}
		return nil
	}
	node, err := orchestrator.New(store, nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Keep(t, t.Errorf, "the node", node.Run)
	testenv.Until(t, limit, "it waits for the third server", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return waited > 3
	})
	select {
	case <-node.Ready():
		t.Fatal("the node is ready with two servers")
	default:
	}
	c.start(2)
	select {
	case <-node.Ready():
	case <-time.After(limit):
		t.Fatal("the node does not get ready with three servers")
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	replicas := func(want int) bool {
		all, err := stream.Read(t.Context(), js, stream.Config{})
		if err != nil || len(all) != 6 {
			return false
		}
		for _, s := range all {
			if s.Have == nil || s.Have.Config.Replicas != want {
				return false
			}
		}
		return true
	}
	testenv.Until(t, limit, "each stream has three copies", func() bool { return replicas(3) })
	for _, want := range []int{1, 3} {
		change := session.StreamChanges{Replicas: &want}
		if _, err := session.New(store).ChangeStreams(t.Context(), change, "ann"); err != nil {
			t.Fatal(err)
		}
		testenv.Until(t, limit, fmt.Sprintf("each stream has %d", want), func() bool { return replicas(want) })
	}
}
