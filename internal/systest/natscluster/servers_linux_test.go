package natscluster

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const (
	// clusterSize is the least that outlives the loss of one.
	clusterSize = 3
	// clusterTimeout bounds what is waited for in a cluster: a start, an election, a server that catches up.
	clusterTimeout = 90 * time.Second
	// nowhere is what servers tell each other of where they are. They find each other by their configuration alone, so
	// that no way between two of them leads around the proxies.
	nowhere = "127.0.0.1:1"
)

// servers is three nats-server processes with JetStream, each with a store of its own, that a test may kill, stop
// for a while, end in lame duck mode and cut off from one another. Servers keep their addresses over restarts. It is
// not safe for concurrent use.
type servers struct {
	servers [clusterSize]*natsProcess
	// ways are what the servers reach each other by: ways[a][b] is taken by a to b.
	ways [clusterSize][clusterSize]*testenv.Proxy
}

// startServers starts a cluster and waits until it has elected its leader. The test binary itself is the server.
func startServers(t testing.TB) *servers {
	t.Helper()
	c := &servers{}
	for i := range c.servers {
		dir := t.TempDir()
		c.servers[i] = &natsProcess{name: fmt.Sprintf("n%d", i+1), dir: dir, config: filepath.Join(dir, "nats.conf"),
			client: testenv.QuietPort(t), route: testenv.QuietPort(t), monitor: testenv.QuietPort(t)}
	}
	for a := range c.servers {
		for b, to := range c.servers {
			if a != b {
				c.ways[a][b] = testenv.NewProxy(t, fmt.Sprintf("127.0.0.1:%d", to.route))
			}
		}
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.end(t)
		}
	})
	for i, s := range c.servers {
		testenv.NoError(t, os.WriteFile(s.config, []byte(c.configure(i)), 0o600))
		s.start(t)
	}
	c.AwaitCurrent(t)
	return c
}

func (c *servers) configure(i int) string {
	s := c.servers[i]
	var routes []string
	for _, way := range c.ways[i] {
		if way != nil {
			routes = append(routes, "nats://"+way.Addr())
		}
	}
	return fmt.Sprintf(`server_name: %s
listen: 127.0.0.1:%d
http: 127.0.0.1:%d
log_file: %q
jetstream { store_dir: %q, max_mem: 256MB, max_file: 8GB }
cluster { name: testenv, listen: 127.0.0.1:%d, advertise: %q, routes: [%s] }
`, s.name, s.client, s.monitor, s.log(), filepath.Join(s.dir, "store"), s.route, nowhere, strings.Join(routes, ", "))
}

// URL returns the addresses of all servers, separated by commas.
func (c *servers) URL() string {
	var urls []string
	for _, s := range c.servers {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", s.client))
	}
	return strings.Join(urls, ",")
}

// Names returns the servers' names.
func (c *servers) Names() []string {
	var names []string
	for _, s := range c.servers {
		names = append(names, s.name)
	}
	return names
}

func (c *servers) server(t testing.TB, name string) (int, *natsProcess) {
	t.Helper()
	i := slices.IndexFunc(c.servers[:], func(s *natsProcess) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("the cluster has no server %q", name)
	}
	return i, c.servers[i]
}

// Kill ends servers as a crash of their process does.
func (c *servers) Kill(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, s := c.server(t, name)
		s.signal(t, syscall.SIGKILL)
		<-s.ended
	}
}

// Start starts servers that have ended, and returns when their processes run. See [servers.AwaitCurrent].
func (c *servers) Start(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, s := c.server(t, name)
		s.start(t)
	}
}

// Pause has servers are stalled: their connections stay, and nothing is answered.
func (c *servers) Pause(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, s := c.server(t, name)
		s.signal(t, syscall.SIGSTOP)
		s.paused = true
	}
}

// Resume ends a Pause.
func (c *servers) Resume(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, s := c.server(t, name)
		s.signal(t, syscall.SIGCONT)
		s.paused = false
	}
}

// LameDuck has a server hand over what it leads, send its clients away and end, as an operator does before an upgrade.
// It returns when the process ends.
func (c *servers) LameDuck(t testing.TB, name string) {
	t.Helper()
	_, s := c.server(t, name)
	s.signal(t, syscall.SIGUSR2)
	select {
	case <-s.ended:
	case <-time.After(clusterTimeout):
		t.Fatalf("NATS server %s does not end in lame duck mode", name)
	}
}

// Isolate cuts a server off from the others, not from its clients, until Heal.
func (c *servers) Isolate(t testing.TB, name string) {
	t.Helper()
	i, s := c.server(t, name)
	s.isolated = true
	for j := range c.servers {
		if i != j {
			c.ways[i][j].Cut()
			c.ways[j][i].Cut()
		}
	}
}

// Heal ends every Isolate.
func (c *servers) Heal() {
	for _, ways := range c.ways {
		for _, way := range ways {
			if way != nil {
				way.Heal()
			}
		}
	}
	for _, s := range c.servers {
		s.isolated = false
	}
}

// Restore ends every fault, and waits until all is well.
func (c *servers) Restore(t testing.TB) {
	t.Helper()
	c.Heal()
	for _, s := range c.servers {
		switch {
		case !s.runs():
			s.start(t)
		case s.paused:
			c.Resume(t, s.name)
		}
	}
	c.AwaitCurrent(t)
}

// natsServerVariable names the configuration file of the server that the test binary is to be.
const natsServerVariable = "TRANCHE_SYSTEST_NATS_SERVER"

const (
	// lameDuckGrace and lameDuckTime are what a server in lame duck mode leaves to its clients, and takes to send them
	// away. A configuration file cannot have the second below 30 s.
	lameDuckGrace = time.Second
	lameDuckTime  = 3 * time.Second
)

func beNATSServer(config string) error {
	opts, err := server.ProcessConfigFile(config)
	if err != nil {
		return err
	}
	opts.LameDuckGracePeriod, opts.LameDuckDuration = lameDuckGrace, lameDuckTime
	opts.DisableShortFirstPing = true // it may overtake the PONG of a slow login
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}

func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testenv.Until(t, clusterTimeout, what, holds)
}

type natsProcess struct {
	name, dir, config      string
	client, route, monitor int // its ports

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process ends; nil before the first start
	// paused and isolated are what a test has done to it.
	paused, isolated bool
}

func (s *natsProcess) log() string { return filepath.Join(s.dir, "log") }

// start runs the test binary as the server. It dies with us.
func (s *natsProcess) start(t testing.TB) {
	t.Helper()
	if s.runs() {
		t.Fatalf("NATS server %s runs already", s.name)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), natsServerVariable+"="+s.config)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	embedded.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	ended := make(chan struct{})
	if err := embedded.StartChild(cmd, func(error) { close(ended) }); err != nil { // most are killed
		t.Fatalf("start NATS server %s: %v", s.name, err)
	}
	s.cmd, s.ended, s.paused = cmd, ended, false
	await(t, "NATS server "+s.name+" listens", func() bool {
		if !s.runs() {
			t.Fatalf("NATS server %s ended:\n%s", s.name, s.said())
		}
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.client), time.Second)
		if err != nil {
			return false
		}
		_ = conn.Close() // it was only knocked at
		return true
	})
}

// runs reports whether the process is there, asleep or not.
func (s *natsProcess) runs() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// answers reports whether the process is there and awake.
func (s *natsProcess) answers() bool { return s.runs() && !s.paused }

func (s *natsProcess) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if !s.runs() {
		t.Fatalf("NATS server %s does not run; it was to get %v", s.name, sig)
	}
	testenv.MustSame(t, s.cmd.Process.Signal(sig), nil, "NATS server %s", s.name)
}

// end is for the end of the test: no one needs its store any more.
func (s *natsProcess) end(t testing.TB) {
	t.Helper()
	if s.runs() {
		_ = s.cmd.Process.Kill() // it may have ended in between
		<-s.ended
	}
	if t.Failed() && s.ended != nil {
		t.Logf("NATS server %s said:\n%s", s.name, s.said())
	}
}

func (s *natsProcess) said() string {
	const most = 8 << 10
	text, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
