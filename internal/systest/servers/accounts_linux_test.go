package servers

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

// guardedCluster is three servers by the configuration that `tranche nats config` writes, and a block for the cluster.
type guardedCluster struct {
	*cluster
	dir     string
	servers []*testenv.GuardedNATS
}

func newGuardedCluster(t *testing.T, roles natsaccess.Roles) *guardedCluster {
	t.Helper()
	g := &guardedCluster{cluster: newCluster(t), dir: t.TempDir()}
	system := testenv.Must(natsaccess.New(roles))(t)
	files := testenv.Must(system.WriteNkeys(g.dir))(t)
	written := testenv.Must(os.ReadFile(files[0]))(t)
	for i := range g.ports {
		g.servers = append(g.servers, g.start(i, string(written)))
	}
	testenv.Until(t, limit, "the servers are one", func() bool {
		for _, s := range g.servers {
			if !s.Server().JetStreamIsCurrent() {
				return false
			}
		}
		return true
	})
	return g
}

// as connects a role, of which only its key is known, to one of the servers.
func (g *guardedCluster) as(role string, i int) *nats.Conn {
	g.Helper()
	key := testenv.Must(nats.NkeyOptionFromSeed(filepath.Join(g.dir, role+".nk")))(g)
	return testenv.Dial(g.T, g.servers[i].URL(), key)
}

// PROOF: who may do what, 13 and 14.
// With three servers and copies the accounts do what they do with one: a service that has nothing but its key works off
// a run, each item once and right, and cannot have the nodes publish what is another's.
func TestAccountsOnACluster(t *testing.T) {
	t.Parallel()
	const items = 20_000
	g := newGuardedCluster(t, natsaccess.Roles{Services: []natsaccess.Grant{
		{Name: "accounts", To: []string{"accounts"}}, {Name: "statement", To: []string{"statement"}},
	}})
	store := database.New(testenv.Pool(t))
	nodeConn := g.as("node", 0)
	node := testenv.Must(orchestrator.New(store, nodeConn, orchestrator.Config{Log: zaptest.NewLogger(t)}))(t)
	testenv.Keep(t, t.Errorf, "the node", node.Run)
	service := testenv.Must(endpoints.New(g.as("accounts", 1), endpoints.Config{Name: "accounts"}))(t)
	var executed atomic.Int64
	testenv.NoError(t, endpoints.HandleEach(service, "accounts", func(_ context.Context, in int) (int, error) {
		executed.Add(1)
		return 2 * in, nil
	}))
	testenv.Keep(t, t.Errorf, "the service", service.Run)
	<-node.Ready()
	run := g.load(node, items)
	testenv.Until(t, limit, "the run is complete", func() bool {
		view, err := inspect.New(store).Run(t.Context(), run)
		return err == nil && view.State == "completed"
	})
	right := 0
	found := testenv.Must(export.New(store).Open(t.Context(), export.Request{Run: run}))(t)
	err := found.Each(t.Context(), func(item *export.Item) error {
		var result int
		if json.Unmarshal(item.Result, &result) == nil && result == 2*int(item.Ordinal) {
			right++
		}
		return nil
	})
	if n := executed.Load(); err != nil || right != items || n != items {
		t.Errorf("of %d items %d are right, and %d executions were made; %v", items, right, n, err)
	}
	js := testenv.Must(jetstream.New(nodeConn))(t)
	g.wantOnce(js, wire.StreamWork, "accounts")
	g.wantOnce(js, wire.StreamReply, wire.RecorderConsumer)
	g.attack(js)
}

func (g *guardedCluster) load(node *orchestrator.Node, items int) workqueue.RunID {
	g.Helper()
	n := 0
	loaded, err := node.Runs().Start(g.Context(), start.LoadRequest{Plan: "accounts", CreatedBy: "test",
		Steps: []workqueue.StepSpec{{Name: "accounts", Endpoint: "accounts", StepSettings: workqueue.StepSettings{Chunk: 500,
			InFlight: 8, MaxAttempts: 3, Timeout: limit, RetryBackoff: time.Second}}},
	}, func(item *start.LoadItem) error {
		if n == items {
			return io.EOF
		}
		item.Key, item.Payload = strconv.Itoa(n), strconv.AppendInt(nil, int64(n), 10)
		n++
		return nil
	})
	testenv.NoError(g, err)
	return loaded.Run
}

// wantOnce checks that messages of a stream have three copies, and that each was delivered once.
func (g *guardedCluster) wantOnce(js jetstream.JetStream, name, durable string) {
	g.Helper()
	var stream jetstream.Stream
	var consumer jetstream.Consumer
	testenv.Until(g, limit, "the stream is told", func() bool { // a busy server may disconnect who asks
		var err error
		if stream, err = js.Stream(g.Context(), name); err == nil {
			consumer, err = stream.Consumer(g.Context(), durable)
		}
		return err == nil
	})
	state, info := stream.CachedInfo(), consumer.CachedInfo()
	if state.Config.Replicas != 3 || info.NumRedelivered != 0 || info.Delivered.Consumer != state.State.LastSeq {
		g.Errorf("%s: with %d copies %d messages were delivered %d times", name, state.Config.Replicas,
			state.State.LastSeq, info.Delivered.Consumer)
	}
}

// attack has a service ask the nodes' JetStream for something to be answered at what is another's. The answer comes to
// its own account, at whatever server it is, and nowhere else.
func (g *guardedCluster) attack(js jetstream.JetStream) {
	g.Helper()
	others := wire.WorkSubject("statement")
	attacker := g.as("accounts", 2)
	home, err := attacker.SubscribeSync(others)
	if err == nil {
		err = attacker.PublishRequest(wire.NodesAPIPrefix+"CONSUMER.INFO."+wire.StreamWork+".accounts", others, nil)
	}
	testenv.NoError(g, err)
	testenv.Has(g, string(testenv.Must(home.NextMsg(limit))(g).Data), "consumer_info", "the answer does not come home")
	stream := testenv.Must(js.Stream(g.Context(), wire.StreamWork))(g)
	_, err = stream.GetLastMsgForSubject(g.Context(), others)
	testenv.Is(g, err, jetstream.ErrMsgNotFound, "a service has the nodes' JetStream publish to %s", others)
}
