package servers

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// cluster is three servers, of which not all need be up.
type cluster struct {
	*testing.T

	routes []string
	ports  []int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t}
	for range 3 {
		port := testenv.QuietPort(t)
		c.ports = append(c.ports, port)
		c.routes = append(c.routes, fmt.Sprintf("%q", fmt.Sprintf("nats-route://127.0.0.1:%d", port)))
	}
	return c
}

// start starts one of the servers, by a configuration to which its own part is added.
func (c *cluster) start(i int, config string) *testenv.GuardedNATS {
	c.Helper()
	others := strings.Join(slices.Delete(slices.Clone(c.routes), i, i+1), ", ")
	return testenv.NATSByConfig(c, config+fmt.Sprintf("server_name: s%d\ncluster { name: three, "+
		"listen: \"127.0.0.1:%d\", routes: [%s] }\n", i, c.ports[i], others))
}

// A node that starts while two of three servers are up waits for the third, and does not settle for one copy.
func TestThreeCopiesWhenTheThirdServerComes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const stores = "jetstream {}\n"
	nc := testenv.Dial(t, c.start(0, stores).URL())
	c.start(1, stores)
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
	node := testenv.Must(orchestrator.New(store, nc, cfg))(t)
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
	c.start(2, stores)
	nodetest.WantReady(t, node)
	js := testenv.Must(jetstream.New(nc))(t)
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
		testenv.Must(session.New(store).ChangeStreams(t.Context(), change, "ann"))(t)
		testenv.Until(t, limit, fmt.Sprintf("each stream has %d", want), func() bool { return replicas(want) })
	}
}
