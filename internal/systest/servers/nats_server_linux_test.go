package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// natsDiskVariable makes the test binary a NATS server with its store in the directory that it names.
const natsDiskVariable = "TRANCHE_SYSTEST_NATS_DISK"

// natsOnDisk is a NATS server with JetStream in a process of its own, whose disk a test may fill.
type natsOnDisk struct {
	cmd  *exec.Cmd
	port int
	log  testenv.Log
}

// Said reports whether the server has logged a text.
func (d *natsOnDisk) Said(text string) bool { return strings.Contains(d.log.String(), text) }

// startOnDisk starts such a server, which lives until the test ends: nats-server, or the private one of package
// embedded. The test binary itself is the server.
func startOnDisk(t testing.TB, private bool) *natsOnDisk {
	t.Helper()
	d := &natsOnDisk{port: testenv.QuietPort(t)}
	d.cmd = exec.Command(os.Args[0], "-test.run=^$")
	d.cmd.Env = append(os.Environ(), natsDiskVariable+"="+t.TempDir(), natsDiskVariable+"_PORT="+strconv.Itoa(d.port))
	if private {
		d.cmd.Env = append(d.cmd.Env, natsDiskVariable+"_PRIVATE=1")
	}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	testenv.MustSame(t, d.cmd.Start(), nil, "start a NATS server")
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // no one needs its store any more
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Logf("the NATS server said:\n%.8000s", d.log.String())
		}
	})
	testenv.Until(t, limit, "the NATS server listens", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", d.port))
		if err == nil {
			_ = conn.Close() // it was only knocked at
		}
		return err == nil
	})
	return d
}

// URL returns the address for clients.
func (d *natsOnDisk) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", d.port) }

// FillDisk makes every write of the server to a file fail from now on, as on a full disk: with the process's limit of
// the size of files (RLIMIT_FSIZE), for which no one must be root or to mount anything. The error is EFBIG and not
// ENOSPC; whoever goes by that must be tested otherwise.
func (d *natsOnDisk) FillDisk(t testing.TB) {
	t.Helper()
	d.limitFiles(t, "0:unlimited")
}

// FreeDisk ends FillDisk.
func (d *natsOnDisk) FreeDisk(t testing.TB) {
	t.Helper()
	d.limitFiles(t, "unlimited:unlimited")
}

func (d *natsOnDisk) limitFiles(t testing.TB, limit string) {
	t.Helper()
	out, err := exec.Command("prlimit", "--pid", strconv.Itoa(d.cmd.Process.Pid), "--fsize="+limit).CombinedOutput()
	testenv.MustSame(t, err, nil, "a full disk is made with prlimit: %s\nOn Debian: apt-get install util-linux", out)
}

// beNATSOnDisk is the main function of the server.
func beNATSOnDisk(dir string) error {
	signal.Ignore(syscall.SIGXFSZ) // a write beyond the limit is to be an error
	port, err := strconv.Atoi(os.Getenv(natsDiskVariable + "_PORT"))
	if err != nil {
		return err
	}
	if os.Getenv(natsDiskVariable+"_PRIVATE") != "" {
		log, err := zap.NewProduction()
		if err != nil {
			return err
		}
		_, err = embedded.StartNATS(context.Background(), embedded.NATSConfig{StoreDir: filepath.Join(dir, "nats"), Log: log,
			Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
		if err != nil {
			return err
		}
		select {} // until it is killed
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir})
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}

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
